// Whatever a GGUF file holds: opened or refused with a message, every value readable or refused, never a crash.
#include <cstdint>
#include <memory>
#include <span>

#include "base/check.h"
#include "model/model_config.h"
#include "weights/checkpoint.h"
#include "weights/gguf.h"

using namespace tailrace;

namespace {

// Each getter must answer for each key, whatever type is stored there.
void read_every_value(const GgufFile& file) {
  for (const std::string& key : file.keys()) {
    (void)file.get_u64(key);
    (void)file.get_i64(key);
    (void)file.get_f64(key);
    (void)file.get_bool(key);
    (void)file.get_string(key);
    (void)file.get_strings(key);
    (void)file.get_ints(key);
    (void)file.get_floats(key);
  }
}

// The last byte of each tensor must be inside the file: a wrong bound is an ASan report here.
void touch_every_tensor(const GgufFile& file) {
  volatile uint8_t sink = 0;
  for (const TensorView& tensor : file.tensors()) {
    if (tensor.bytes > 0) sink = static_cast<uint8_t>(tensor.data[tensor.bytes - 1]);
  }
  (void)sink;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An exact-size copy, so that ASan sees a read past the end.
  auto copy = std::make_unique<std::byte[]>(size);
  for (size_t i = 0; i < size; ++i) copy[i] = static_cast<std::byte>(data[i]);
  auto file = GgufFile::open_memory(std::span<const std::byte>(copy.get(), size), "fuzz.gguf");
  if (!file) {
    CHECK(!file.error().message().empty());
    return 0;
  }
  read_every_value(**file);
  touch_every_tensor(**file);
  (void)parse_gguf_config(**file);
  (void)Checkpoint::from_gguf(*file, "fuzz.gguf");
  return 0;
}
