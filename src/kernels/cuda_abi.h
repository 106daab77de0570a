// The stamp by which a binary and the CUDA plugin know that they were compiled from the same interfaces.
#pragma once

#include <cstdint>

#include "device/cuda_plugin.h"
#include "kernels/backend.h"

namespace tailrace {

// Raised by whoever changes the meaning or the order of what crosses the seam without changing a size.
inline constexpr uint64_t kCudaSeamVersion = 2;

// FNV-1a over the version, the compiler and the sizes of everything that crosses the seam.
constexpr uint64_t cuda_plugin_abi() {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001b3u; };
  add(kCudaSeamVersion);
  for (const char* c = __VERSION__; *c != '\0'; ++c) add(static_cast<unsigned char>(*c));
  for (uint64_t size : {sizeof(CudaPlugin),
                        sizeof(CudaDeviceOptions),
                        sizeof(BackendOptions),
                        sizeof(TuningTable),
                        sizeof(DecodeTuning) + sizeof(MixedTuning),
                        sizeof(TuneShape),
                        sizeof(StepBinding),
                        sizeof(StepLaunch),
                        sizeof(StepEvents),
                        sizeof(StepLimits),
                        sizeof(TensorView),
                        sizeof(LayerBlock),
                        sizeof(DeviceCounters),
                        sizeof(Status),
                        sizeof(std::string),
                        sizeof(std::shared_ptr<Event>),
                        sizeof(Batch),
                        sizeof(BatchRow),
                        sizeof(RowSampling),
                        sizeof(SampledRow),
                        sizeof(SlabHeader),
                        sizeof(SlabStart),
                        sizeof(SlabBlockPatch),
                        sizeof(SlabLogPatch)}) {
    add(size);
  }
  return hash;
}

}  // namespace tailrace
