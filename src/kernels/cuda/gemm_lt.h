// Products of many tokens by cuBLASLt, which is opened at run time; algorithms are chosen at boot.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace tailrace::cuda {

inline constexpr size_t kGemmWorkspace = size_t{32} << 20;

class GemmLt {
 public:
  // kUnsupported: no cuBLASLt is found; says where it was looked for.
  static Expected<std::unique_ptr<GemmLt>> create();
  ~GemmLt();

  // Where products may work: kGemmWorkspace bytes, 256-byte aligned.
  void set_workspace(void* workspace) { workspace_ = workspace; }
  // An algorithm serves all numbers of tokens up to the same bucket.
  static int bucket(int tokens) {
    const int step = tokens <= 64 ? 16 : tokens <= 512 ? 64 : 256;
    return (tokens + step - 1) / step * step;
  }
  // Chooses algorithms for products of up to max_tokens with this matrix shape. Boot only.
  Status prepare(int n, int k, bool fp32_out, int max_tokens);

  // out[m][n] (+)= x[m][k] w[n][k]^T, fp32 sums. x rows are k apart, out rows out_stride. Shapes must have been prepared.
  // Neither blocks nor allocates.
  cudaError_t run(const __nv_bfloat16* x, int tokens, const __nv_bfloat16* w, int n, int k, void* out, bool fp32_out,
                  int64_t out_stride, bool accumulate, cudaStream_t stream);

 private:
  struct Library;
  struct Plan;
  GemmLt() = default;
  const Plan* find(int n, int k, bool fp32_out, int tokens) const;

  std::unique_ptr<Library> library_;
  std::vector<Plan> plans_;
  void* workspace_ = nullptr;
};

}  // namespace tailrace::cuda
