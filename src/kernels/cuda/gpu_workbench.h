// What every CUDA kernel test and benchmark needs: checked calls, random and poisoned buffers, cold-cache timing by graph
// replay, and the ceilings of this run.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace tailrace::cuda::workbench {

inline void check(cudaError_t error, const char* what, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "line %d: %s: %s\n", line, what, cudaGetErrorString(error));
  std::exit(1);
}
#define GPU_CHECK(call) ::tailrace::cuda::workbench::check((call), #call, __LINE__)

// What a program is to do, "all" by default. Ends it where that is none of `modes`, words with a blank between.
inline std::string mode_of(int argc, char** argv, const std::string& modes) {
  const std::string mode = argc > 1 ? argv[1] : "all";
  if (!mode.empty() && (" all " + modes + " ").find(" " + mode + " ") != std::string::npos) return mode;
  std::fprintf(stderr, "%s: not a mode: %s; say all %s\n", argv[0], mode.c_str(), modes.c_str());
  std::exit(2);
}

inline float bf16_round(float v) { return __bfloat162float(__float2bfloat16(v)); }

// Device memory with a host twin; without one where it is gigabytes that stay on the device.
template <typename T>
struct Buffer {
  std::vector<T> host;
  T* device = nullptr;
  size_t count = 0;

  explicit Buffer(size_t n, bool twin = true) : host(twin ? n : 0), count(n) {
    GPU_CHECK(cudaMalloc(reinterpret_cast<void**>(&device), std::max<size_t>(n, 1) * sizeof(T)));
    poison();
  }
  ~Buffer() { cudaFree(device); }
  Buffer(const Buffer&) = delete;
  void poison() { GPU_CHECK(cudaMemset(device, 0xff, count * sizeof(T))); }  // NaN as fp32 and bf16
  void zero() { GPU_CHECK(cudaMemset(device, 0, count * sizeof(T))); }
  void upload() { GPU_CHECK(cudaMemcpy(device, host.data(), count * sizeof(T), cudaMemcpyHostToDevice)); }
  void download() { GPU_CHECK(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost)); }
};

// Standard normal values from a counter hash, rounded to T, made on the device: quick for gigabytes.
template <typename T>
static __global__ void fill_normal_kernel(T* out, size_t n, uint64_t seed, float scale) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x) {
    uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull ^ seed * 0xD1B54A32D192ED03ull;
    x ^= x >> 32, x *= 0xBF58476D1CE4E5B9ull, x ^= x >> 29, x *= 0x94D049BB133111EBull, x ^= x >> 32;
    const float u = (static_cast<uint32_t>(x) + 1.0f) * 2.3283064e-10f, v = static_cast<uint32_t>(x >> 32) * 2.3283064e-10f;
    out[i] = T(sqrtf(-2 * __logf(u)) * __cosf(6.2831853f * v) * scale);
  }
}
template <typename T>
void fill_normal(T* out, size_t n, uint64_t seed, float scale = 1.0f) {
  fill_normal_kernel<<<1024, 256>>>(out, n, seed, scale);
  GPU_CHECK(cudaGetLastError());
}

// Median time (us) of one call of `launch(i, stream)`: `calls` of them captured in a graph (i rotates buffers), replayed.
inline double time_us(int calls, const std::function<void(int, cudaStream_t)>& launch, int replays = 15) {
  cudaStream_t stream;
  GPU_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  GPU_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) launch(i, stream);
  GPU_CHECK(cudaStreamEndCapture(stream, &graph));
  GPU_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  GPU_CHECK(cudaEventCreate(&begin));
  GPU_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int r = 0; r < replays + 2; ++r) {
    GPU_CHECK(cudaEventRecord(begin, stream));
    GPU_CHECK(cudaGraphLaunch(exec, stream));
    GPU_CHECK(cudaEventRecord(end, stream));
    GPU_CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    GPU_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (r >= 2) times.push_back(ms * 1000.0 / calls);
  }
  GPU_CHECK(cudaGraphExecDestroy(exec));
  GPU_CHECK(cudaGraphDestroy(graph));
  GPU_CHECK(cudaEventDestroy(begin));
  GPU_CHECK(cudaEventDestroy(end));
  GPU_CHECK(cudaStreamDestroy(stream));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

static __global__ void read_kernel(const uint4* data, size_t n, uint32_t* sink) {
  uint32_t x = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  for (; i + 3 * stride < n; i += 4 * stride) {
    const uint4 a = __ldcs(data + i), b = __ldcs(data + i + stride), c = __ldcs(data + i + 2 * stride),
                d = __ldcs(data + i + 3 * stride);
    x ^= a.x ^ b.y ^ c.z ^ d.w;
  }
  for (; i < n; i += stride) x ^= data[i].x;
  if (x == 0x12345678) *sink = x;
}

// Read bandwidth of this run (GB/s), a 2 GiB reduction.
inline double read_ceiling_gbs() {
  const size_t bytes = size_t{2} << 30;
  Buffer<uint32_t> data(bytes / 4), sink(1);
  fill_normal(reinterpret_cast<__nv_bfloat16*>(data.device), bytes / 2, 7);
  double best = 0;
  for (int blocks : {132 * 8, 132 * 16, 132 * 4}) {
    const double us = time_us(2, [&](int, cudaStream_t s) {
      read_kernel<<<blocks, 512, 0, s>>>(reinterpret_cast<const uint4*>(data.device), bytes / 16, sink.device);
    }, 7);
    best = std::max(best, bytes / us / 1000);
  }
  return best;
}

}  // namespace tailrace::cuda::workbench
