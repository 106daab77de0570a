// StepBytes: what a decode step has to read, in the formats that the checkpoint stores: the floor of its time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/model.h"

namespace tailrace {

struct StepBytes {
  // Routed experts of one layer.
  struct Mixture {
    int64_t expert_bytes = 0;  // of one expert's three matrices
    int32_t experts = 0, top_k = 0;
  };
  // KV of the layers of one group.
  struct Kv {
    int64_t token_bytes = 0;  // K and V
    int32_t window = 0;       // 0: full
  };
  int64_t weights = 0;  // of everything that each step reads whole: not the embedding's table
  std::vector<Mixture> mixtures;
  std::vector<Kv> kv;
  int64_t state_bytes = 0;  // of a row's recurrent states, read and written

  // Experts of a layer that `rows` tokens take, each top_k at random: E (1 - (1 - top_k / E)^rows).
  static double distinct_experts(const Mixture& mixture, double rows);
  // Of a step of `rows` rows with `context` tokens each, whose mixtures read `distinct` experts each, as counted;
  // without, distinct_experts.
  double step(double rows, double context, std::optional<double> distinct = {}) const;
};

StepBytes step_bytes(const Model& model);
// Of a matrix as its checkpoint stores it; 0: it has no rows.
double weight_bytes(const Weight& weight);

}  // namespace tailrace
