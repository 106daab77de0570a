#include "kernels/cpu/attention.h"

#if defined(__AVX2__) && defined(__FMA__)
#define TAILRACE_LANES 8
#include "kernels/cpu/attention_kernels.h"

namespace tailrace::cpu {
const AttentionKernels* attention_avx2() {
  static constexpr AttentionKernels kKernels{"avx2", decode, extend};
  return &kKernels;
}
}  // namespace tailrace::cpu
#else
namespace tailrace::cpu {
const AttentionKernels* attention_avx2() { return nullptr; }
}  // namespace tailrace::cpu
#endif
