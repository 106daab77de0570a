// What config.json says of Qwen3.5 and 3.6 beyond the fields that all architectures share.
#pragma once

#include "model/config_fields.h"
#include "model/model_config.h"

namespace tailrace {

// Which layers attend linearly, the sizes of that, and the mixture's. Sizes, rope and biases were read before.
void read_qwen35(ConfigFields& fields, ModelConfig* config);

}  // namespace tailrace
