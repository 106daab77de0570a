#include "model/config_fields.h"

#include <cmath>

namespace tailrace {
namespace {

// "0.5", "32" for messages.
std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

void ConfigFields::fault(StatusCode code, const std::string& reason) {
  if (status_.ok()) status_ = Status(code, label_ + ": " + reason);
}

void ConfigFields::fault(const Status& status) {
  if (status_.ok()) status_ = status;
}

const nlohmann::json* ConfigFields::value(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigFields::is_null(const char* key) const {
  const auto it = object_.find(key);
  return it != object_.end() && it->is_null();
}

int64_t ConfigFields::integer(const char* key, int64_t lowest, int64_t highest) {
  if (has(key)) return integer_or(key, lowest, lowest, highest);
  fault(StatusCode::kDataLoss, std::string(key) + " is missing");
  return 0;
}

int64_t ConfigFields::integer_or(const char* key, int64_t fallback, int64_t lowest, int64_t highest) {
  if (!has(key)) return fallback;
  const double read = number_or(key, 0, static_cast<double>(lowest), static_cast<double>(highest));
  if (!status_.ok()) return fallback;
  if (read != std::floor(read)) {
    fault(StatusCode::kDataLoss, std::string(key) + " is not an integer");
    return fallback;
  }
  return static_cast<int64_t>(read);
}

double ConfigFields::number(const char* key, double lowest, double highest) {
  if (has(key)) return number_or(key, lowest, lowest, highest);
  fault(StatusCode::kDataLoss, std::string(key) + " is missing");
  return 0;
}

double ConfigFields::number_or(const char* key, double fallback, double lowest, double highest) {
  const nlohmann::json* found = value(key);
  if (!found) return fallback;
  if (!found->is_number()) {
    fault(StatusCode::kDataLoss, std::string(key) + " is not a number");
    return fallback;
  }
  const double read = found->get<double>();
  if (read >= lowest && read <= highest) return read;  // false for NaN
  fault(StatusCode::kDataLoss, std::string(key) + " is " + number_text(read) + ", not within " + number_text(lowest) +
                                   ".." + number_text(highest));
  return fallback;
}

bool ConfigFields::flag_or(const char* key, bool fallback) {
  const nlohmann::json* found = value(key);
  if (!found) return fallback;
  if (found->is_boolean()) return found->get<bool>();
  fault(StatusCode::kDataLoss, std::string(key) + " is neither true nor false");
  return fallback;
}

std::string ConfigFields::text_or(const char* key, const std::string& fallback) {
  const nlohmann::json* found = value(key);
  if (!found) return fallback;
  if (found->is_string()) return found->get<std::string>();
  fault(StatusCode::kDataLoss, std::string(key) + " is not a string");
  return fallback;
}

std::vector<std::string> ConfigFields::texts(const char* key) {
  const nlohmann::json* found = value(key);
  if (!found) return {};
  std::vector<std::string> out;
  const bool is_list = found->is_array();
  for (size_t i = 0; is_list && i < found->size() && (*found)[i].is_string(); ++i) {
    out.push_back((*found)[i].get<std::string>());
  }
  if (is_list && out.size() == found->size()) return out;
  fault(StatusCode::kDataLoss, std::string(key) + " is not a list of strings");
  return {};
}

std::vector<int32_t> ConfigFields::ids(const char* key, int32_t highest) {
  const nlohmann::json* found = value(key);
  if (!found) return {};
  const nlohmann::json list = found->is_array() ? *found : nlohmann::json::array({*found});
  std::vector<int32_t> out;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > highest) {
      fault(StatusCode::kDataLoss, std::string(key) + " holds something else than token ids up to " +
                                       std::to_string(highest));
      return {};
    }
    out.push_back(id.get<int32_t>());
  }
  return out;
}

const nlohmann::json* ConfigFields::object(const char* key) {
  const nlohmann::json* found = value(key);
  if (!found || found->is_object()) return found;
  fault(StatusCode::kDataLoss, std::string(key) + " is not an object");
  return nullptr;
}

}  // namespace tailrace
