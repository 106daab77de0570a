#include "kernels/cuda/attention_path.h"

#include "device/cuda/gpu_code.h"
#include "kernels/cuda/attention_portable.h"

namespace tailrace::cuda {
namespace {

constexpr AttentionPath kHopper{.decode = "own kernel, bulk copies",
                                .extend = "wgmma, paged",
                                .supported = decode_supported,
                                .prepare = prepare_extend,
                                .decode_ctas = decode_ctas,
                                .run_decode = run_decode,
                                .extend_tile_rows = extend_tile_rows,
                                .run_extend = run_extend_hopper};
constexpr AttentionPath kPortable{.decode = "own kernel, portable (cp.async, mma.sync)",
                                  .extend = "portable (cp.async, mma.sync), paged",
                                  .supported = portable_attention_supported,
                                  .prepare = prepare_portable_attention,
                                  .decode_ctas = portable_decode_ctas,
                                  .run_decode = run_decode_portable,
                                  .extend_tile_rows = portable_extend_tile_rows,
                                  .run_extend = run_extend_portable};

}  // namespace

const AttentionPath& attention_path() { return has_hopper_code() ? kHopper : kPortable; }

}  // namespace tailrace::cuda
