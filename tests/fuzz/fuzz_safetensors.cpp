// Whatever a safetensors file holds: opened with every tensor inside the file, or refused with a message.
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.h"
#include "weights/safetensors.h"

using namespace tailrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An exact-size copy, so that ASan sees a read past the end.
  auto copy = std::make_unique<std::byte[]>(size);
  for (size_t i = 0; i < size; ++i) copy[i] = static_cast<std::byte>(data[i]);
  auto file = SafetensorsFile::open_memory(std::span<const std::byte>(copy.get(), size), "fuzz.safetensors");
  if (!file) {
    CHECK(!file.error().message().empty());
    return 0;
  }
  volatile uint8_t sink = 0;
  for (const TensorView& tensor : (*file)->tensors()) {
    if (tensor.bytes > 0) sink = static_cast<uint8_t>(tensor.data[tensor.bytes - 1]);
  }
  (void)sink;
  return 0;
}
