#include "device/cuda/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/cuda_core.h"

namespace tailrace::cuda {
namespace {

constexpr size_t kPieceBytes = 4 << 20;

}  // namespace

UploadRing::Place UploadRing::take() {
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const Place place = idle_.back();
      idle_.pop_back();
      return place;
    }
  }
  Place place;
  void* memory = nullptr;
  CUDA_CHECK(cudaHostAlloc(&memory, 2 * kPieceBytes, cudaHostAllocPortable));
  place.memory = static_cast<std::byte*>(memory);
  CUDA_CHECK(cudaStreamCreateWithFlags(&place.stream, cudaStreamNonBlocking));
  for (cudaEvent_t& event : place.copied) CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return place;
}

void UploadRing::upload(void* dst, const void* src, size_t bytes) {
  const Place place = take();
  for (size_t at = 0, piece = 0; at < bytes; at += kPieceBytes, ++piece) {
    const size_t half = piece % 2, size = std::min(kPieceBytes, bytes - at);
    if (piece >= 2) CUDA_CHECK(cudaEventSynchronize(place.copied[half]));
    std::byte* staged = place.memory + half * kPieceBytes;
    std::memcpy(staged, static_cast<const std::byte*>(src) + at, size);
    CUDA_CHECK(cudaMemcpyAsync(static_cast<std::byte*>(dst) + at, staged, size, cudaMemcpyHostToDevice, place.stream));
    CUDA_CHECK(cudaEventRecord(place.copied[half], place.stream));
  }
  CUDA_CHECK(cudaStreamSynchronize(place.stream));
  std::lock_guard lock(mutex_);
  idle_.push_back(place);
}

void UploadRing::clear() {
  std::lock_guard lock(mutex_);
  for (const Place& place : idle_) {
    for (const cudaEvent_t event : place.copied) CUDA_CHECK(cudaEventDestroy(event));
    CUDA_CHECK(cudaStreamDestroy(place.stream));
    CUDA_CHECK(cudaFreeHost(place.memory));
  }
  idle_.clear();
}

}  // namespace tailrace::cuda
