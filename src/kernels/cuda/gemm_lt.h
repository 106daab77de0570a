// Products of many tokens by cuBLASLt, which is opened at run time; algorithms are chosen at boot.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"

namespace tailrace::cuda {

inline constexpr size_t kGemmWorkspace = size_t{32} << 20;

// out[m][n] (+)= alpha x[m][k] w[n][k]^T.
struct GemmShape {
  int n = 0, k = 0;
  bool half = false;      // x, w and a 16-bit out are f16, else bf16; sums are fp32
  bool fp32_out = false;
  bool operator==(const GemmShape&) const = default;
};
struct Gemm {
  GemmShape shape;
  const void *x = nullptr, *w = nullptr;  // rows of x are k apart
  int tokens = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  float alpha = 1;
  bool accumulate = false;
};

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
  // Chooses algorithms for products of this shape of up to max_tokens. Boot only.
  Status prepare(const GemmShape& shape, int max_tokens);
  // Whether some shape's algorithm for so many tokens serves none of its smaller buckets: run once at boot, it is loaded
  // for all.
  bool brings_new_algorithm(int tokens) const;
  // The shape must have been prepared. Neither blocks nor allocates.
  cudaError_t run(const Gemm& gemm, cudaStream_t stream);

 private:
  struct Library;
  struct Plan;
  GemmLt() = default;
  const Plan* find(const GemmShape& shape, int tokens) const;

  std::unique_ptr<Library> library_;
  std::vector<Plan> plans_;
  void* workspace_ = nullptr;
};

}  // namespace tailrace::cuda
