// What requests may hold by their standards' leave, without effect here: checked for type and bounds, then dropped.
#pragma once

#include "server/json_fields.h"

namespace tailrace {

// OpenAI's user, safety_identifier, metadata, prompt_cache_key, prompt_cache_retention, prompt_cache_options and
// service_tier (there is one: auto and default).
void read_labels(FieldReader& fields);

// Anthropic's metadata: {"user_id"}.
void read_user_id(FieldReader& fields);

// Anthropic's cache_control: {"type": "ephemeral", "ttl", "scope"}. A hint: every prefix is cached.
void read_cache_control(FieldReader& fields);

}  // namespace tailrace
