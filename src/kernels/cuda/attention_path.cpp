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
                                .beside_extend = decode_beside_extend,
                                .mixed_decode_ctas = mixed_decode_ctas,
                                .run_decode = run_decode,
                                .extend_tile_rows = extend_tile_rows,
                                .extend_split = extend_split,
                                .max_extend_parts = kMaxExtendParts,
                                .run_extend = run_extend_hopper};

// No CTA waits for another and no tile is cut: the kernels' grids beside each other are as they are alone.
bool always_beside(int, int, int) { return true; }
ExtendSplit never_split(int, int, int64_t, int, int, bool) { return {}; }

constexpr AttentionPath kPortable{.decode = "own kernel, portable (cp.async, mma.sync)",
                                  .extend = "portable (cp.async, mma.sync), paged",
                                  .supported = portable_attention_supported,
                                  .prepare = prepare_portable_attention,
                                  .decode_ctas = portable_decode_ctas,
                                  .beside_extend = always_beside,
                                  .mixed_decode_ctas = portable_decode_ctas,
                                  .run_decode = run_decode_portable,
                                  .extend_tile_rows = portable_extend_tile_rows,
                                  .extend_split = never_split,
                                  .max_extend_parts = 0,
                                  .run_extend = run_extend_portable};

}  // namespace

const AttentionPath& attention_path() { return has_hopper_code() ? kHopper : kPortable; }

}  // namespace tailrace::cuda
