// config.json: any JSON either gives a configuration within its bounds, or a Status.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "model/model_tensors.h"

using namespace tailrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return 0;
  const auto config = parse_hf_config(json, "fuzz.json");
  if (!config) {
    CHECK(!config.error().message().empty());
    return 0;
  }
  CHECK(config->layers >= 1 && config->layers <= 1000);
  CHECK(config->window.size() == static_cast<size_t>(config->layers));
  for (const RopeConfig& rope : config->ropes) (void)rope_inv_freq(rope);
  return 0;
}
