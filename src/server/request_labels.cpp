#include "server/request_labels.h"

#include <algorithm>

namespace tailrace {
namespace {

constexpr size_t kMaxMetadata = 16, kMaxMetadataKey = 64, kMaxMetadataValue = 512;  // OpenAI's, in characters
constexpr size_t kMaxIdentifier = 128;                                              // OpenAI's, of safety_identifier
constexpr size_t kMaxUserId = 512;                                                  // Anthropic's
constexpr size_t kMaxLabelBytes = 4096;  // of what no standard bounds

// Code points: the JSON reader has seen to it that the text is UTF-8.
size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

void read_short(FieldReader& fields, const char* name, size_t most) {
  std::string text;
  fields.read(name, text, kMaxLabelBytes);
  if (characters(text) > most) fields.set_error(name, "is longer than " + std::to_string(most) + " characters");
}

void read_one_of(FieldReader& fields, const char* name, std::initializer_list<const char*> words) {
  const Json* value = fields.get(name);
  if (value == nullptr || std::find(words.begin(), words.end(), *value) != words.end()) return;
  std::string list;
  for (const char* word : words) list += (list.empty() ? "" : " or ") + std::string(word);
  fields.set_error(name, "must be " + list);
}

void read_metadata(FieldReader& fields) {
  fields.ignore("metadata", "an object");
  const Json* metadata = fields.get("metadata");
  if (metadata == nullptr) return;
  if (metadata->size() > kMaxMetadata) {
    return fields.set_error("metadata", "must have at most 16 members");
  }
  for (const auto& [name, value] : metadata->items()) {
    if (characters(name) > kMaxMetadataKey) {
      return fields.set_error("metadata", "must have names of at most 64 characters");
    }
    if (!value.is_string() || characters(value.get_ref<const std::string&>()) > kMaxMetadataValue) {
      return fields.set_error("metadata." + name, "must be a string of at most 512 characters");
    }
  }
}

}  // namespace

void read_labels(FieldReader& fields) {
  read_short(fields, "user", kMaxLabelBytes);
  read_short(fields, "prompt_cache_key", kMaxLabelBytes);
  read_short(fields, "safety_identifier", kMaxIdentifier);
  read_one_of(fields, "prompt_cache_retention", {"in_memory", "in-memory", "24h"});
  fields.ignore("prompt_cache_options", "an object");
  read_metadata(fields);
  fields.refuse("service_tier", {Json("auto"), Json("default")}, "there is one tier: auto, or default");
}

void read_user_id(FieldReader& fields) {
  fields.ignore("metadata", "an object");
  const Json* metadata = fields.get("metadata");
  if (metadata == nullptr) return;
  FieldReader inner(*metadata, "metadata.");
  read_short(inner, "user_id", kMaxUserId);
  inner.refuse_unknown();
  if (!inner.ok()) fields.adopt(*inner.error());
}

void read_cache_control(FieldReader& fields) {
  fields.ignore("cache_control", "an object");
  const Json* control = fields.get("cache_control");
  if (control == nullptr) return;
  FieldReader inner(*control, fields.path("cache_control."));
  if (inner.get("type") == nullptr) inner.set_error("type", "is required: ephemeral");
  read_one_of(inner, "type", {"ephemeral"});
  read_one_of(inner, "ttl", {"5m", "1h"});
  inner.ignore("scope", "a string");
  inner.refuse_unknown();
  if (!inner.ok()) fields.adopt(*inner.error());
}

}  // namespace tailrace
