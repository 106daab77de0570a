// Typed, bounded access to the fields of a JSON configuration; the first fault sticks and names file and key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace tailrace {

// After a fault all accessors return fallbacks (zeros where there is none): read everything, then look at status().
// A null value counts as absent, as in Hugging Face's files. The object must outlive this.
class ConfigFields {
 public:
  // `label` opens every message, e.g. "config.json" or "config.json: rope_scaling".
  ConfigFields(const nlohmann::json& object, std::string label) : object_(object), label_(std::move(label)) {}

  const std::string& label() const { return label_; }
  const Status& status() const { return status_; }
  // Records a fault unless there is one already.
  void fault(StatusCode code, const std::string& reason);
  void fault(const Status& status);

  bool has(const char* key) const { return value(key) != nullptr; }
  bool is_null(const char* key) const;
  int64_t integer(const char* key, int64_t lowest, int64_t highest);
  int64_t integer_or(const char* key, int64_t fallback, int64_t lowest, int64_t highest);
  double number(const char* key, double lowest, double highest);
  double number_or(const char* key, double fallback, double lowest, double highest);
  bool flag_or(const char* key, bool fallback);
  std::string text_or(const char* key, const std::string& fallback);
  std::vector<std::string> texts(const char* key);   // empty when absent
  // One integer or a list of them; empty when absent.
  std::vector<int32_t> ids(const char* key, int32_t highest);
  const nlohmann::json* object(const char* key);     // null when absent

 private:
  const nlohmann::json* value(const char* key) const;

  const nlohmann::json& object_;
  std::string label_;
  Status status_;
};

}  // namespace tailrace
