// safetensors: any bytes either open as tensors that lie within them, of the size of their shape, or give a Status.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "weights/safetensors.h"

using namespace tailrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto file = SafetensorsFile::open_memory({bytes, size}, "fuzz.safetensors");
  if (!file) {
    CHECK(!file.error().message().empty());
    return 0;
  }
  for (const TensorView& tensor : (*file)->tensors()) {
    CHECK(tensor.data >= bytes && tensor.bytes <= size && tensor.data <= bytes + (size - tensor.bytes));
    uint64_t expected = format_traits(tensor.format).block_bytes;
    for (const int64_t dim : tensor.shape) expected *= static_cast<uint64_t>(dim);
    CHECK(expected == tensor.bytes);
  }
  return 0;
}
