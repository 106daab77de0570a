#include "kernels/cpu/attention.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/token_ops.h"

#if defined(__AVX2__) && defined(__FMA__)
#define TAILRACE_LANES 8
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/token_kernels.h"

namespace tailrace::cpu {
const AttentionKernels* attention_avx2() {
  static constexpr AttentionKernels kKernels{"avx2", decode, extend, merge_segments};
  return &kKernels;
}
const TokenKernels* token_avx2() {
  static constexpr TokenKernels kKernels{rms_norm, rope,       gate,    swiglu,    gate_sigmoid,
                                         add,      add_scaled, softcap, round_bf16, round_e4m3};
  return &kKernels;
}
const DeltaKernels* delta_avx2() {
  static constexpr DeltaKernels kKernels{convolve, l2_norm, delta_step, delta_chunk_keys, delta_chunk};
  return &kKernels;
}
}  // namespace tailrace::cpu
#else
namespace tailrace::cpu {
const AttentionKernels* attention_avx2() { return nullptr; }
const TokenKernels* token_avx2() { return nullptr; }
const DeltaKernels* delta_avx2() { return nullptr; }
}  // namespace tailrace::cpu
#endif
