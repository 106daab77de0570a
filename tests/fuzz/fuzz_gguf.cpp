// GGUF: any bytes either open as a checkpoint whose tensors lie within them, or give a Status.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "model/model_tensors.h"
#include "weights/checkpoint.h"

using namespace tailrace;

namespace {

// Every accessor on every key: wrong types must be errors, not reads beyond the value.
void read_metadata(const GgufFile& gguf) {
  for (const std::string& key : gguf.keys()) {
    (void)gguf.get_u64(key);
    (void)gguf.get_f64(key);
    (void)gguf.get_bool(key);
    (void)gguf.get_string(key);
    (void)gguf.get_strings(key);
    (void)gguf.get_ints(key);
    (void)gguf.get_floats(key);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto gguf = GgufFile::open_memory({bytes, size}, "fuzz.gguf");
  if (!gguf) {
    CHECK(!gguf.error().message().empty());
    return 0;
  }
  read_metadata(**gguf);
  for (const TensorView& tensor : (*gguf)->tensors()) {
    CHECK(tensor.data >= bytes && tensor.bytes <= size && tensor.data <= bytes + (size - tensor.bytes));
  }
  const auto checkpoint = Checkpoint::from_gguf(*gguf, "fuzz.gguf");
  if (!checkpoint) return 0;
  const auto config = load_model_config(**checkpoint);
  if (!config) return 0;
  (void)check_model_tensors(**checkpoint, *config);
  for (const RopeConfig& rope : config->ropes) (void)rope_inv_freq(rope);
  return 0;
}
