#include "kernels/cpu/attention.h"
#include "kernels/cpu/gated_delta.h"
#include "kernels/cpu/token_ops.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define TAILRACE_LANES 16
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/gated_delta_kernels.h"
#include "kernels/cpu/token_kernels.h"

namespace tailrace::cpu {
const AttentionKernels* attention_avx512() {
  static constexpr AttentionKernels kKernels{"avx512", decode, extend, merge_segments};
  return &kKernels;
}
const TokenKernels* token_avx512() {
  static constexpr TokenKernels kKernels{rms_norm, rope,       gate,    swiglu,    gate_sigmoid,
                                         add,      add_scaled, softcap, round_bf16, round_e4m3};
  return &kKernels;
}
const DeltaKernels* delta_avx512() {
  static constexpr DeltaKernels kKernels{convolve, l2_norm, delta_step, delta_chunk_keys, delta_chunk};
  return &kKernels;
}
}  // namespace tailrace::cpu
#else
namespace tailrace::cpu {
const AttentionKernels* attention_avx512() { return nullptr; }
const TokenKernels* token_avx512() { return nullptr; }
const DeltaKernels* delta_avx512() { return nullptr; }
}  // namespace tailrace::cpu
#endif
