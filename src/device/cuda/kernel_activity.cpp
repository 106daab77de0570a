#include "device/cuda/kernel_activity.h"

#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "device/cuda/cupti_library.h"

namespace tailrace::cuda {
namespace {

constexpr size_t kBufferBytes = 8 << 20, kBufferAlign = 8;

struct Entries {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiGetResultString) result_text = nullptr;

  bool complete() const { return register_callbacks && enable && disable && flush && next_record && result_text; }
};

// CUPTI's callbacks carry no user pointer.
struct Store {
  Entries entries;
  std::mutex mutex;
  std::map<const char*, std::string> names;  // demangled, by the driver's own string
  std::vector<KernelRun> runs;
} store;

// "void tailrace::cuda::(anonymous namespace)::linear_kernel<(tailrace::cuda::WeightForm)2, 1>(...)": "linear_kernel".
std::string short_name(const char* mangled) {
  int failed = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &failed);
  std::string name = failed == 0 ? demangled : mangled;
  std::free(demangled);
  for (size_t at; (at = name.find("(anonymous namespace)::")) != std::string::npos;) name.erase(at, 23);
  name.resize(std::min(name.find('<'), std::min(name.find('('), name.size())));
  const size_t space = name.rfind(' '), scope = name.rfind("::");
  if (scope != std::string::npos) return name.substr(scope + 2);
  return space == std::string::npos ? name : name.substr(space + 1);
}

void CUPTIAPI on_request(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlign, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI on_complete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(store.mutex);
  CUpti_Activity* record = nullptr;
  while (store.entries.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    std::string& name = store.names[kernel.name];
    if (name.empty()) name = short_name(kernel.name);
    store.runs.push_back({.name = name,
                          .begin_ns = static_cast<int64_t>(kernel.start),
                          .end_ns = static_cast<int64_t>(kernel.end),
                          .launch = kernel.correlationId,
                          .node = kernel.graphNodeId,
                          .graph = kernel.graphId});
  }
  std::free(buffer);
}

class KernelActivity : public KernelTrace {
 public:
  ~KernelActivity() override { store.entries.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL); }
  void begin() override {
    store.entries.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(store.mutex);
    store.runs.clear();
  }
  std::vector<KernelRun> end() override {
    store.entries.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(store.mutex);
    return std::exchange(store.runs, {});
  }
};

}  // namespace

Expected<std::unique_ptr<KernelTrace>> trace_kernels() {
  Entries& e = store.entries;
  if (void* cupti = cupti_library(); cupti != nullptr) {
    find_entry(cupti, "cuptiActivityRegisterCallbacks", e.register_callbacks);
    find_entry(cupti, "cuptiActivityEnable", e.enable);
    find_entry(cupti, "cuptiActivityDisable", e.disable);
    find_entry(cupti, "cuptiActivityFlushAll", e.flush);
    find_entry(cupti, "cuptiActivityGetNextRecord", e.next_record);
    find_entry(cupti, "cuptiGetResultString", e.result_text);
  }
  if (!e.complete()) {
    return fail(StatusCode::kUnavailable,
                "kernels cannot be traced: no libcupti in the loader's path or under /usr/local/cuda");
  }
  CUptiResult result = e.register_callbacks(on_request, on_complete);
  if (result == CUPTI_SUCCESS) result = e.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  if (result != CUPTI_SUCCESS) {
    const char* text = nullptr;
    e.result_text(result, &text);
    return fail(StatusCode::kUnavailable, std::string("CUPTI cannot trace kernels: ") + (text ? text : "no reason given"));
  }
  return std::unique_ptr<KernelTrace>(new KernelActivity());
}

}  // namespace tailrace::cuda
