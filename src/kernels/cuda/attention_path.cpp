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

MixedTuning always_beside_fp8(int head_dim, int group) {
  return {.decode_ctas = portable_decode_ctas_fp8(head_dim, group), .chunks_per_cta = 2, .beside_tiles = 0};
}

constexpr AttentionPath portable_fp8() {
  AttentionPath path = kPortable;
  path.decode = "own kernel, portable (cp.async, mma.sync), KV in FP8";
  path.extend = "portable (cp.async, mma.sync), paged, KV in FP8";
  path.prepare = prepare_portable_attention_fp8;
  path.decode_ctas = portable_decode_ctas_fp8;
  path.mixed_defaults = always_beside_fp8;
  path.run_decode = run_decode_portable_fp8;
  path.run_extend = run_extend_portable_fp8;
  return path;
}
constexpr AttentionPath kPortableFp8 = portable_fp8();

constexpr AttentionPath hopper_fp8() {
  AttentionPath path = kHopper;
  path.decode = "own kernel, bulk copies, KV in FP8";
  path.extend = "wgmma, paged, KV from FP8 made BF16 on the way";
  path.tuned = false;
  path.prepare = prepare_extend_fp8;
  path.decode_ctas = decode_ctas_fp8;
  path.mixed_defaults = mixed_defaults_fp8;
  path.run_decode = run_decode_fp8;
  path.extend_split = extend_split_fp8;
  path.run_extend = run_extend_hopper_fp8;
  return path;
}
constexpr AttentionPath kHopperFp8 = hopper_fp8();

}  // namespace

const AttentionPath& attention_path(Format kv_format, bool portable) {
  const bool hopper = has_hopper_code() && !portable;
  if (kv_format == Format::kF8E4M3) return hopper ? kHopperFp8 : kPortableFp8;
  return hopper ? kHopper : kPortable;
}

}  // namespace tailrace::cuda
