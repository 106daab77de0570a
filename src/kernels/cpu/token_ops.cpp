#include "kernels/cpu/token_ops.h"

#include <cstring>

#include "kernels/cpu/linear.h"

namespace tailrace::cpu {

const TokenKernels& token_kernels() {
  const char* isa = isa_name();
  if (std::strncmp(isa, "avx512", 6) == 0 && token_avx512() != nullptr) return *token_avx512();
  if (std::strncmp(isa, "portable", 8) != 0 && token_avx2() != nullptr) return *token_avx2();
  return *token_portable();
}

}  // namespace tailrace::cpu
