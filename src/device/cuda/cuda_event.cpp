// The two kinds of events: pooled CUDA events behind copies, and stamps that a step's kernels write.
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "device/cuda/cuda_core.h"

namespace tailrace::cuda {
namespace {

constexpr int64_t kSpinNs = 200'000;             // then the waiter sleeps between looks
constexpr int64_t kHealthCheckNs = 100'000'000;  // a waiter that gets nothing asks the device whether it is well
constexpr int kSpinsPerLook = 64;                // pauses between two looks at the clock

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class CudaEvent : public CudaWaitable {
 public:
  CudaEvent(std::shared_ptr<CudaCore> core, cudaStream_t stream) : core_(std::move(core)), event_(core_->take_event()) {
    CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  ~CudaEvent() override { core_->give_event(event_); }

  bool done() const override {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) return false;
    CUDA_CHECK(error);
    return true;
  }

  void wait(const char* site) override {
    if (done()) return;
    core_->count_wait(site);
    const int64_t begun = now_ns();
    while (!done()) {
      if (now_ns() - begun > kSpinNs) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      } else {
        pause();
      }
    }
  }

  int64_t device_ns() const override { return core_->event_ns(event_); }
  void enqueue_wait(cudaStream_t stream) const override { CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  std::shared_ptr<CudaCore> core_;
  cudaEvent_t event_;
};

class StampedEvent : public CudaWaitable {
 public:
  StampedEvent(std::shared_ptr<CudaCore> core, const StepStamp* stamp, uint64_t launch, bool begun)
      : core_(std::move(core)), stamp_(stamp), launch_(launch), begun_(begun) {}

  bool done() const override { return written() >= launch_ + 1; }

  void wait(const char* site) override {
    if (done()) return;
    core_->count_wait(site);
    int64_t next_check = now_ns() + kHealthCheckNs;
    for (;;) {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        if (done()) {
          core_->clock.observe(static_cast<int64_t>(stamp_->done_ns), now_ns());
          return;
        }
        pause();
      }
      if (now_ns() < next_check) continue;
      CHECK_MSG(!core_->check_healthy() || done(),
                "the device has run dry, and a step that was launched left no stamp");
      next_check = now_ns() + kHealthCheckNs;
    }
  }

  int64_t device_ns() const override {
    CHECK_MSG(written() == launch_ + 1, "a step's stamp is read when it is done and before its place is used again");
    return core_->clock.to_host_ns(static_cast<int64_t>(begun_ ? stamp_->begun_ns : stamp_->done_ns));
  }

  void enqueue_wait(cudaStream_t stream) const override {
    core_->wait_for_word(stream, &stamp_->launch_plus_one, launch_ + 1);
  }

 private:
  uint64_t written() const { return __atomic_load_n(&stamp_->launch_plus_one, __ATOMIC_ACQUIRE); }

  std::shared_ptr<CudaCore> core_;
  const StepStamp* stamp_;
  uint64_t launch_;
  bool begun_;
};

}  // namespace

std::shared_ptr<Event> record_event(const std::shared_ptr<CudaCore>& core, cudaStream_t stream) {
  return std::make_shared<CudaEvent>(core, stream);
}

std::shared_ptr<Event> stamped_event(const std::shared_ptr<CudaCore>& core, const StepStamp* stamp, uint64_t launch,
                                     bool begun) {
  return std::make_shared<StampedEvent>(core, stamp, launch, begun);
}

}  // namespace tailrace::cuda
