#include <algorithm>
#include <cstdint>

#include "device/cuda/read_bandwidth.h"

namespace tailrace::cuda {
namespace {

constexpr size_t kMost = size_t{2} << 30,
                 kLeast = size_t{256} << 20;  // well beyond any second-level cache
constexpr int kThreads = 512, kRounds = 5;

__global__ void read_kernel(const uint4* data, size_t n, uint32_t* sink) {
  uint32_t x = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride),
                c = __ldcs(data + i + 2 * stride), d = __ldcs(data + i + 3 * stride);
    x ^= a.x ^ b.y ^ c.z ^ d.w;
  }
  for (; i < n; i += stride) x ^= data[i].x;
  if (x == 0x12345678) *sink = x;
}

}  // namespace

double read_bandwidth_gbs(int num_sms) {
  size_t free_bytes = 0, total = 0;
  if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return 0;
  const size_t bytes = std::min(kMost, free_bytes / 2 / 4096 * 4096);
  void* data = nullptr;
  if (bytes < kLeast || cudaMalloc(&data, bytes) != cudaSuccess) return cudaGetLastError(), 0;
  cudaEvent_t begun = nullptr, ended = nullptr;
  double best = 0;
  if (cudaEventCreate(&begun) == cudaSuccess && cudaEventCreate(&ended) == cudaSuccess &&
      cudaMemset(data, 1, bytes) == cudaSuccess) {
    for (int round = 0; round < kRounds; ++round) {
      cudaEventRecord(begun);
      read_kernel<<<num_sms * 8, kThreads>>>(static_cast<const uint4*>(data), bytes / sizeof(uint4),
                                             static_cast<uint32_t*>(data));
      cudaEventRecord(ended);
      float ms = 0;
      if (cudaEventSynchronize(ended) != cudaSuccess ||
          cudaEventElapsedTime(&ms, begun, ended) != cudaSuccess)
        break;
      best = std::max(best, static_cast<double>(bytes) / ms / 1e6);
    }
  }
  if (begun != nullptr) cudaEventDestroy(begun);
  if (ended != nullptr) cudaEventDestroy(ended);
  cudaFree(data);
  return best;
}

}  // namespace tailrace::cuda
