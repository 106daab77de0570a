// A kernel that answers the host's questions for the time, one after another, and gives up when none comes.
#include "device/cuda/gpu_clock.h"

#include <algorithm>

#include "base/clock.h"

namespace tailrace::cuda {
namespace {

constexpr int kRounds = 200;
constexpr int64_t kGiveUpNs = 2'000'000'000;

struct ClockMail {
  volatile int asked, answered;
  volatile int64_t gpu_ns;
};

__device__ int64_t globaltimer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return static_cast<int64_t>(ns);
}

__global__ void answer_kernel(ClockMail* mail) {
  const int64_t begun = globaltimer_ns();
  for (int round = 1; round <= kRounds; ++round) {
    int64_t now = begun;
    do {
      if (now - begun > kGiveUpNs) return;
      now = globaltimer_ns();
    } while (mail->asked < round);
    mail->gpu_ns = globaltimer_ns();
    __threadfence_system();
    mail->answered = round;
  }
}

bool ask(ClockMail* mail, int round) {
  mail->asked = round;
  const int64_t begun = now_ns();
  while (mail->answered < round) {
    if (now_ns() - begun > kGiveUpNs) return false;
  }
  return true;
}

}  // namespace

cudaError_t GpuClock::align(cudaStream_t stream) {
  ClockMail* mail = nullptr;
  cudaError_t error = cudaHostAlloc(reinterpret_cast<void**>(&mail), sizeof(ClockMail), cudaHostAllocMapped);
  if (error != cudaSuccess) return error;
  mail->asked = 0;
  mail->answered = 0;
  answer_kernel<<<1, 1, 0, stream>>>(mail);
  error = cudaGetLastError();
  int64_t best_ns = INT64_MAX;
  for (int round = 1; error == cudaSuccess && round <= kRounds; ++round) {
    const int64_t sent = now_ns();
    if (!ask(mail, round)) {
      error = cudaErrorTimeout;
      break;
    }
    const int64_t back = now_ns();
    if (back - sent >= best_ns) continue;
    best_ns = back - sent;
    offset_ns_ = sent + best_ns / 2 - mail->gpu_ns;
  }
  const cudaError_t drained = cudaStreamSynchronize(stream);
  cudaFreeHost(mail);
  return error != cudaSuccess ? error : drained;
}

void GpuClock::observe(int64_t globaltimer_ns, int64_t seen_ns) {
  least_lag_ns_ = std::min(least_lag_ns_, seen_ns - to_host_ns(globaltimer_ns));
  if (++observed_ < kWindow) return;
  offset_ns_ += least_lag_ns_ - kSeenAfter;
  least_lag_ns_ = INT64_MAX;
  observed_ = 0;
}

}  // namespace tailrace::cuda
