#include "device/cuda/driver_watch.h"

#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>

#include <array>
#include <atomic>

#include "device/cuda/cupti_library.h"

namespace tailrace::cuda {
namespace {

constexpr size_t kMaxCalls = 2048;  // of the driver's functions; a newer CUPTI knows more than the headers here
static_assert(kMaxCalls > CUPTI_DRIVER_TRACE_CBID_SIZE);
// Entries of libraries that are loaded at run time; null where there is none.
struct Entries {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableDomain) enable_domain = nullptr;
  decltype(&cuptiGetResultString) result_text = nullptr;
  CUresult (*pointer_attribute)(void*, CUpointer_attribute, CUdeviceptr) = nullptr;

  bool complete() const { return subscribe && unsubscribe && enable_domain && result_text && pointer_attribute; }
};

Entries load_entries() {
  Entries e;
  void* cupti = cupti_library();
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (cupti == nullptr || driver == nullptr) return e;
  find_entry(cupti, "cuptiSubscribe", e.subscribe);
  find_entry(cupti, "cuptiUnsubscribe", e.unsubscribe);
  find_entry(cupti, "cuptiEnableDomain", e.enable_domain);
  find_entry(cupti, "cuptiGetResultString", e.result_text);
  find_entry(driver, "cuPointerGetAttribute", e.pointer_attribute);
  return e;
}

class DriverWatch : public CallWatch {
 public:
  explicit DriverWatch(const Entries& entries) : entries_(entries) {}
  ~DriverWatch() override {
    if (subscriber_ != nullptr) entries_.unsubscribe(subscriber_);
  }

  Status subscribe() {
    const auto callback = reinterpret_cast<CUpti_CallbackFunc>(&DriverWatch::on_call);
    CUptiResult result = entries_.subscribe(&subscriber_, callback, this);
    if (result == CUPTI_SUCCESS) result = entries_.enable_domain(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API);
    if (result == CUPTI_SUCCESS) return {};
    const char* text = nullptr;
    entries_.result_text(result, &text);
    return {StatusCode::kUnavailable,
            std::string("CUPTI cannot watch the driver: ") + (text ? text : "no reason given")};
  }

  void begin(pthread_t thread) override {
    for (auto& count : counts_) count = 0;
    for (auto& count : pageable_) count = 0;
    thread_ = thread;
    watching_.store(true, std::memory_order_release);
  }

  std::vector<DriverCall> end() override {
    watching_ = false;
    std::vector<DriverCall> calls;
    for (size_t id = 0; id < counts_.size(); ++id) {
      const uint64_t pageable = pageable_[id], plain = counts_[id] - pageable;
      if (plain > 0) calls.push_back({names_[id].load(), plain});
      if (pageable > 0) calls.push_back({std::string(names_[id].load()) + " (pageable)", pageable});
    }
    return calls;
  }

 private:
  static void on_call(void* user, CUpti_CallbackDomain, CUpti_CallbackId id, const CUpti_CallbackData* call) {
    auto& watch = *static_cast<DriverWatch*>(user);
    if (call->callbackSite != CUPTI_API_ENTER || id >= watch.counts_.size()) return;
    if (!watch.watching_.load(std::memory_order_acquire) || !pthread_equal(pthread_self(), watch.thread_)) return;
    static thread_local bool asking = false;  // what this function itself asks the driver is not the thread's call
    if (asking) return;
    asking = true;
    watch.names_[id].store(call->functionName, std::memory_order_relaxed);
    watch.counts_[id].fetch_add(1, std::memory_order_relaxed);
    if (watch.touches_pageable(id, call->functionParams)) watch.pageable_[id].fetch_add(1, std::memory_order_relaxed);
    asking = false;
  }

  // The driver knows device, pinned and mapped memory by address; what it does not know is pageable.
  bool pageable(const void* p) const {
    unsigned kind = 0;
    return entries_.pointer_attribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(p)) !=
           CUDA_SUCCESS;
  }

  bool touches_pageable(CUpti_CallbackId id, const void* params) const {
    switch (id) {
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync_ptsz: {
        const auto& copy = *static_cast<const cuMemcpyAsync_params*>(params);
        return pageable(reinterpret_cast<const void*>(copy.src)) || pageable(reinterpret_cast<const void*>(copy.dst));
      }
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoDAsync_v2_ptsz:
        return pageable(static_cast<const cuMemcpyHtoDAsync_v2_params*>(params)->srcHost);
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2:
      case CUPTI_DRIVER_TRACE_CBID_cuMemcpyDtoHAsync_v2_ptsz:
        return pageable(static_cast<const cuMemcpyDtoHAsync_v2_params*>(params)->dstHost);
      default: return false;
    }
  }

  const Entries entries_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::atomic<bool> watching_{false};
  std::atomic<pthread_t> thread_{};
  std::array<std::atomic<uint64_t>, kMaxCalls> counts_{}, pageable_{};
  std::array<std::atomic<const char*>, kMaxCalls> names_{};
};

}  // namespace

Expected<std::unique_ptr<CallWatch>> watch_driver_calls() {
  const Entries entries = load_entries();
  if (!entries.complete()) {
    return fail(StatusCode::kUnavailable,
                "the driver's calls cannot be watched: no libcupti in the loader's path or under /usr/local/cuda");
  }
  auto watch = std::make_unique<DriverWatch>(entries);
  if (Status status = watch->subscribe(); !status.ok()) return fail(status);
  return std::unique_ptr<CallWatch>(std::move(watch));
}

}  // namespace tailrace::cuda
