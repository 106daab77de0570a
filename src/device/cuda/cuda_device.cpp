#include "device/cuda/cuda_device.h"

#include <cstring>
#include <functional>

#include "base/check.h"
#include "device/cuda/read_bandwidth.h"

namespace tailrace::cuda {
namespace {

class CudaStream : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<CudaCore> core) : core_(std::move(core)) {
    core_->make_current();
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    core_->add_stream(stream_);
  }
  ~CudaStream() override {
    core_->make_current();
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    core_->remove_stream(stream_);
    CUDA_CHECK(cudaStreamDestroy(stream_));
  }

  void run(std::function<void()> work) override {
    const auto call = [](void* data) {
      std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()>*>(data));
      (*work)();
    };
    CUDA_CHECK(cudaLaunchHostFunc(stream_, call, new std::function<void()>(std::move(work))));
  }

  void copy(void* dst, const void* src, size_t bytes) override {
    CHECK_MSG(core_->owns(dst, bytes) && core_->owns(src, bytes),
              "a stream copy must stay within device or pinned memory");
    core_->make_current();
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_));
  }

  void copy_blocking(void* dst, const void* src, size_t bytes, const char* site) override {
    CHECK_MSG(core_->owns(dst, bytes), "a blocking copy must go to device memory");
    core_->make_current();
    core_->count_wait(site);
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  std::shared_ptr<Event> record() override {
    core_->make_current();
    return record_event(core_, stream_);
  }

  void wait_for(const std::shared_ptr<Event>& event) override {
    if (event->done()) return;
    core_->make_current();
    static_cast<const CudaWaitable&>(*event).enqueue_wait(stream_);
  }

  cudaStream_t stream() const { return stream_; }

 private:
  std::shared_ptr<CudaCore> core_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<CudaCore> core, const cudaDeviceProp& properties, size_t free_bytes,
                       cudaStream_t loading)
    : core_(std::move(core)), properties_(properties), free_bytes_(free_bytes), loading_(loading) {}

CudaDevice::~CudaDevice() {
  core_->make_current();
  CUDA_CHECK(cudaDeviceSynchronize());
  uploads_.clear();
  for (const Chunk& chunk : chunks_) CUDA_CHECK(cudaFree(chunk.base));
  for (void* memory : pinned_) CUDA_CHECK(cudaFreeHost(memory));
  CUDA_CHECK(cudaStreamDestroy(loading_));
}

std::string CudaDevice::description() const {
  return std::string(properties_.name) + ", " + std::to_string(properties_.multiProcessorCount) + " SMs, " +
         std::to_string(properties_.totalGlobalMem >> 20) + " MiB";
}

std::unique_ptr<Stream> CudaDevice::create_stream(const std::string&) { return std::make_unique<CudaStream>(core_); }

void* CudaDevice::alloc_device(size_t bytes, FirstTouch) {
  bytes = rounded_claim(bytes);
  std::lock_guard lock(mutex_);
  core_->count_allocation();
  core_->make_current();
  Chunk* chunk = chunk_for(chunks_, bytes, [this](size_t wanted) -> Chunk {
    void* base = nullptr;
    if (cudaMalloc(&base, wanted) != cudaSuccess) {
      cudaGetLastError();
      return {};
    }
    CUDA_CHECK(cudaMemsetAsync(base, 0, wanted, loading_));
    CUDA_CHECK(cudaStreamSynchronize(loading_));
    core_->add_range(base, wanted);
    return {static_cast<std::byte*>(base), wanted, 0};
  });
  if (chunk == nullptr) return nullptr;
  core_->device_bytes += bytes;
  return chunk->take(bytes);
}

void* CudaDevice::alloc_pinned(size_t bytes) {
  bytes = rounded_claim(bytes);
  std::lock_guard lock(mutex_);
  core_->count_allocation();
  core_->make_current();
  void* base = nullptr;
  if (cudaHostAlloc(&base, bytes, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  void* on_device = nullptr;
  CUDA_CHECK(cudaHostGetDevicePointer(&on_device, base, 0));
  CHECK_MSG(on_device == base, "pinned memory must have one address on host and device");
  std::memset(base, 0, bytes);
  core_->add_range(base, bytes);
  pinned_.push_back(base);
  core_->pinned_bytes += bytes;
  return base;
}

void CudaDevice::set_ready() {
  make_current();
  uploads_.clear();
  core_->ready = true;
}

double CudaDevice::read_gbs() {
  make_current();
  return read_bandwidth_gbs(sm_count());
}

void CudaDevice::upload(void* dst, const void* src, size_t bytes) {
  CHECK_MSG(core_->owns(dst, bytes), "an upload must stay within device memory");
  core_->make_current();
  uploads_.upload(dst, src, bytes);
}

DeviceCounters CudaDevice::counters() const {
  return {core_->host_blocks, core_->allocs_after_ready, core_->device_bytes, core_->pinned_bytes};
}

cudaStream_t CudaDevice::cuda_stream(Stream& stream) const {
  core_->make_current();
  return static_cast<CudaStream&>(stream).stream();
}

}  // namespace tailrace::cuda
