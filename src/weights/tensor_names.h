// Canonical tensor names: Hugging Face's spelling, whatever the container calls a tensor.
#pragma once

#include <string>
#include <string_view>

namespace tailrace {

// blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight; names without an equivalent come back unchanged.
// `architecture` is general.architecture: what ffn_norm means depends on it.
std::string canonical_gguf_name(std::string_view name, std::string_view architecture);

// Takes off the prefixes that multimodal wrappers put before their language model.
std::string canonical_hf_name(std::string_view name);

}  // namespace tailrace
