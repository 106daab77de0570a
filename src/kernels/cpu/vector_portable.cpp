#define TAILRACE_LANES 4
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/token_kernels.h"

namespace tailrace::cpu {
const AttentionKernels* attention_portable() {
  static constexpr AttentionKernels kKernels{"portable", decode, extend, merge_segments};
  return &kKernels;
}
const TokenKernels* token_portable() {
  static constexpr TokenKernels kKernels{rms_norm, rope,       gate,    swiglu,    gate_sigmoid,
                                         add,      add_scaled, softcap, round_bf16, round_e4m3};
  return &kKernels;
}
const DeltaKernels* delta_portable() {
  static constexpr DeltaKernels kKernels{convolve, l2_norm, delta_step, delta_chunk_keys, delta_chunk};
  return &kKernels;
}
}  // namespace tailrace::cpu
