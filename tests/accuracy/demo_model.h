// Where the demo model's file is.
#pragma once

#include <filesystem>
#include <string>

namespace tailrace {

inline std::string demo_model_path() {
  return std::string(TAILRACE_SOURCE_DIR) + "/models/demo/SmolLM2-135M-Instruct.Q4_1.gguf";
}
inline std::string demo_golden_path(const std::string& name) {
  return std::string(TAILRACE_SOURCE_DIR) + "/tests/goldens/demo/" + name;
}

}  // namespace tailrace

#define SKIP_WITHOUT_DEMO_MODEL()                                                                      \
  if (!std::filesystem::exists(tailrace::demo_model_path()))                                           \
  GTEST_SKIP() << tailrace::demo_model_path() << " is not there; tools/fetch_demo_model.sh fetches it"
