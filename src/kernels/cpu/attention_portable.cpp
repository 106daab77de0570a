#define TAILRACE_LANES 4
#include "kernels/cpu/attention_kernels.h"

namespace tailrace::cpu {
const AttentionKernels* attention_portable() {
  static constexpr AttentionKernels kKernels{"portable", decode, extend};
  return &kKernels;
}
}  // namespace tailrace::cpu
