// The two attention kernels of a mixed step beside each other on two streams, as the backend launches them, and their time.
#pragma once

#include "kernels/cuda/attention_launch.h"

namespace tailrace::cuda::workbench {

// The side stream of a mixed step, and how it leaves and joins the main one. decode_on_main: extend waits for the fork, so that
// decode's CTAs, which are few, are in place before extend's fill the GPU.
struct TwoStreams {
  cudaStream_t main, side;
  cudaEvent_t fork, join;
  bool decode_on_main = true;

  TwoStreams() {
    int least = 0, greatest = 0;
    GPU_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    GPU_CHECK(cudaStreamCreateWithPriority(&main, cudaStreamNonBlocking, greatest));
    GPU_CHECK(cudaStreamCreateWithPriority(&side, cudaStreamNonBlocking, least));
    GPU_CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GPU_CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  }
  ~TwoStreams() {
    cudaEventDestroy(fork), cudaEventDestroy(join);
    cudaStreamDestroy(main), cudaStreamDestroy(side);
  }
  TwoStreams(const TwoStreams&) = delete;

  void run(DecodeRun& decode, ExtendRun& extend, int layer) {
    GPU_CHECK(cudaEventRecord(fork, main));
    GPU_CHECK(cudaStreamWaitEvent(side, fork, 0));
    decode.run(layer, decode_on_main ? main : side);
    const bool late = decode.first_ctas < decode.ctas;
    extend.run(layer, decode_on_main ? side : main, 0, late);
    if (late) decode.run_late(layer, decode_on_main ? side : main);
    GPU_CHECK(cudaEventRecord(join, side));
    GPU_CHECK(cudaStreamWaitEvent(main, join, 0));
  }
};

// Median us a layer of a step of `layers` layers, launched call by call as mixed steps are; the plan is not counted.
template <typename F>
double step_us(cudaStream_t stream, DecodeRun& decode, int layers, F run, int repeats = 7) {
  cudaEvent_t begin, end;
  GPU_CHECK(cudaEventCreate(&begin));
  GPU_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int r = 0; r < repeats + 2; ++r) {
    decode.make_plan(stream);
    GPU_CHECK(cudaEventRecord(begin, stream));
    for (int l = 0; l < layers; ++l) run(l);
    GPU_CHECK(cudaEventRecord(end, stream));
    GPU_CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    GPU_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (r >= 2) times.push_back(ms * 1000.0 / layers);
  }
  GPU_CHECK(cudaEventDestroy(begin));
  GPU_CHECK(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Decode rows of random length in [low, high], then one chunk of `chunk` tokens over `prefix`.
inline AttentionCase mixed(const char* name, int q_heads, int kv_heads, int dim, int window, bool sinks, int rows,
                           int low, int high, int chunk, int prefix, uint64_t seed = 3) {
  AttentionCase c{name, q_heads, kv_heads, dim, window, sinks, {}};
  std::mt19937_64 random(seed);
  for (int r = 0; r < rows; ++r) {
    c.lens.push_back(low + static_cast<int>(random() % (high - low + 1))), c.q_lens.push_back(1);
  }
  c.lens.push_back(prefix + chunk), c.q_lens.push_back(chunk);
  return c;
}

}  // namespace tailrace::cuda::workbench
