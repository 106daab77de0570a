// Frequencies of rotary embeddings, as transformers' modeling_rope_utils defines them.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "model/model_config.h"

namespace tailrace {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// Llama 3.1: wavelengths beyond original / low are slowed down by factor, those below original / high are kept.
double llama3_frequency(const RopeConfig& rope, double frequency) {
  const double turns = rope.original_context * frequency / kTwoPi;  // over the original context
  if (turns > rope.high_freq_factor) return frequency;
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  const double smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

YarnRange yarn_range(const RopeConfig& rope) {
  // The dimension that turns `rotations` times over the original context.
  const auto dimension = [&](double rotations) {
    return rope.rotary_dim * std::log(rope.original_context / (rotations * kTwoPi)) / (2.0 * std::log(rope.theta));
  };
  YarnRange range{dimension(rope.beta_fast), dimension(rope.beta_slow)};
  if (rope.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, rope.rotary_dim - 1.0)};
  if (range.low == range.high) range.high += 0.001;  // no division by zero below
  return range;
}

std::vector<float> rope_inv_freq(const RopeConfig& rope) {
  const int count = rope.rotary_dim / 2;
  CHECK(rope.scaling != RopeScaling::kDivisors || rope.divisors.size() == static_cast<size_t>(count));
  const YarnRange range = rope.scaling == RopeScaling::kYarn ? yarn_range(rope) : YarnRange{};
  std::vector<float> out(count);
  for (int i = 0; i < count; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / rope.rotary_dim);
    switch (rope.scaling) {
      case RopeScaling::kNone: break;
      case RopeScaling::kLinear: frequency /= rope.factor; break;
      case RopeScaling::kLlama3: frequency = llama3_frequency(rope, frequency); break;
      case RopeScaling::kYarn: {
        const double ramp = std::clamp((i - range.low) / (range.high - range.low), 0.0, 1.0);
        frequency = frequency / rope.factor * ramp + frequency * (1.0 - ramp);
        break;
      }
      case RopeScaling::kProportional: frequency = i < rope.rotated ? frequency / rope.factor : 0.0; break;
      case RopeScaling::kDivisors: frequency /= rope.divisors[i]; break;
    }
    out[i] = static_cast<float>(frequency);
  }
  return out;
}

double yarn_attention_factor(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace tailrace
