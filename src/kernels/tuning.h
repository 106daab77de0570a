// TuningTable: what the CUDA attention kernels leave to measurement, by kernel and shape (`tailrace tune`).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tailrace {

// How a decode step's KV is cut (attention_plan.cu). These values serve wherever no table says otherwise.
struct DecodeTuning {
  int32_t chunks_per_cta = 2;  // aimed at with plenty of work: fewer leave slow SMs behind, more pay for joins
  int32_t plenty_tiles = 8;    // blocks a CTA from which work is plenty; with less, one chunk a CTA
  bool operator==(const DecodeTuning&) const = default;
};

// Decode beside extend. The defaults depend on the kernels: AttentionPath::mixed_defaults.
struct MixedTuning {
  int32_t decode_ctas = 0;     // of those that the GPU holds at once, these start before extend, the others behind its last
  int32_t chunks_per_cta = 2;  // as DecodeTuning's, of all of them
  int32_t beside_tiles = 0;    // with fewer extend tiles (of all KV heads) the two run in turn
  bool operator==(const MixedTuning&) const = default;
};

// A shape as the kernels tell them apart.
struct TuningKey {
  int32_t head_dim = 0;  // as stored: 64, 128, 256 or 512
  int32_t group = 0;     // query heads a KV head, rounded up to the kernel's 8 or 16
  bool window = false;
  bool operator==(const TuningKey&) const = default;
};

template <typename T>
using TuningEntries = std::vector<std::pair<TuningKey, T>>;

struct TuningTable {
  std::string source = "built-in defaults";  // for messages: the file, or why there is none
  TuningEntries<DecodeTuning> decode;
  TuningEntries<MixedTuning> mixed;
};

template <typename T>
T tuning_for(const TuningEntries<T>& entries, const TuningKey& key, T otherwise) {
  for (const auto& [k, value] : entries) {
    if (k == key) return value;
  }
  return otherwise;
}

// A shape of attention to tune for.
struct TuneShape {
  std::string name;
  int32_t q_heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  bool sinks = false;
};

}  // namespace tailrace
