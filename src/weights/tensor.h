// A tensor of a checkpoint, as a view into mapped memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"

namespace tailrace {

// What a matrix is multiplied as; a backend may lay each out its own way.
enum class MatrixRole : uint8_t {
  kProjection,
  kRouter,  // chooses experts
  kExpert,  // one of a mixture's
};

struct TensorView {
  std::string name;                 // canonical: Hugging Face's spelling, e.g. model.layers.0.self_attn.q_proj.weight
  Format format = Format::kF32;
  std::vector<int64_t> shape;       // outermost first; a matrix is [rows (outputs), cols (inputs)]
  const std::byte* data = nullptr;  // row-major, stored form, unaligned in general
  size_t bytes = 0;
  bool rope_interleaved = false;    // q/k rows are ordered for pairwise RoPE (GGUF's llama): the packer permutes them
  int64_t head_dim = 0;             // rows per head; set with rope_interleaved
  MatrixRole role = MatrixRole::kProjection;
};

// A name from a file, fit for a one-line message: control characters replaced, cut at 200 bytes.
inline std::string printable(std::string_view name) {
  std::string out(name.substr(0, 200));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

// "[2, 3]" for messages.
inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

}  // namespace tailrace
