#include "kernels/cuda/attention_path.h"

#include "device/cuda/gpu_code.h"
#include "kernels/cuda/attention_portable.h"

namespace tailrace::cuda {
namespace {

constexpr AttentionPath kHopper{.decode = "own kernel, bulk copies",
                                .extend = "wgmma, paged",
                                .tuned = true,
                                .supported = decode_supported,
                                .prepare = prepare_extend,
                                .decode_ctas = decode_ctas,
                                .mixed_defaults = mixed_defaults,
                                .run_decode = run_decode,
                                .extend_tile_rows = extend_tile_rows,
                                .extend_split = extend_split,
                                .max_extend_parts = kMaxExtendParts,
                                .run_extend = run_extend_hopper};

// No CTA waits for another and no tile is cut: the kernels' grids beside each other are as they are alone.
MixedTuning always_beside(int head_dim, int group) { return {.decode_ctas = portable_decode_ctas(head_dim, group), .chunks_per_cta = 2, .beside_tiles = 0}; }
ExtendSplit never_split(int, int, int64_t, int, int, bool) { return {}; }

constexpr AttentionPath kPortable{.decode = "own kernel, portable (cp.async, mma.sync)",
                                  .extend = "portable (cp.async, mma.sync), paged",
                                  .tuned = false,
                                  .supported = portable_attention_supported,
                                  .prepare = prepare_portable_attention,
                                  .decode_ctas = portable_decode_ctas,
                                  .mixed_defaults = always_beside,
                                  .run_decode = run_decode_portable,
                                  .extend_tile_rows = portable_extend_tile_rows,
                                  .extend_split = never_split,
                                  .max_extend_parts = 0,
                                  .run_extend = run_extend_portable};

}  // namespace

const AttentionPath& attention_path() { return has_hopper_code() ? kHopper : kPortable; }

}  // namespace tailrace::cuda
