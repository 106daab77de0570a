#include "ids/same_answer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tailrace {
namespace {

// No single logprob may be off by more tolerances: twice the tolerance is what two logits off by one each make.
constexpr double kMostTolerances = 20;

// By how much the reference preferred its token at `at`, bias and output penalties included; 0 when it cannot be known.
double margin(const Request& request, const Answer& reference, size_t at) {
  const auto& top = reference.top[at];
  if (top.size() < 2) return 0;
  const SamplingParams& sampling = request.sampling;
  const auto adjusted = [&](const TokenLogprob& candidate) {
    double value = candidate.logprob;
    for (const auto& [id, bias] : sampling.logit_bias) value += id == candidate.id ? bias : 0;
    const auto seen = std::count(reference.ids.begin(), reference.ids.begin() + at, candidate.id);
    return value - sampling.frequency_penalty * seen - (seen > 0 ? sampling.presence_penalty : 0);
  };
  double chosen = -INFINITY, best_other = -INFINITY;
  for (const TokenLogprob& candidate : top) {
    double& side = candidate.id == reference.ids[at] ? chosen : best_other;
    side = std::max(side, adjusted(candidate));
  }
  // Tokens below the list may have been lifted by a positive bias or hold the choice itself: then nothing is known.
  for (const auto& bias : sampling.logit_bias) {
    if (bias.second > 0) return 0;
  }
  return std::isfinite(chosen) && std::isfinite(best_other) ? chosen - best_other : 0;
}

// The request as it stands after the reference's first `count` tokens.
Request continued(const Request& request, const Answer& reference, size_t count) {
  Request next = request;
  next.prompt_ids.insert(next.prompt_ids.end(), reference.ids.begin(), reference.ids.begin() + count);
  next.max_tokens = request.max_tokens - static_cast<int32_t>(count);
  next.min_tokens = std::max(0, request.min_tokens - static_cast<int32_t>(count));
  return next;
}

bool counts_output(const SamplingParams& sampling) {
  return sampling.presence_penalty != 0 || sampling.frequency_penalty != 0;
}

std::string describe(size_t request, size_t at, TokenId expected, TokenId got, double margin) {
  char text[160];
  std::snprintf(text, sizeof text, "request %zu, token %zu: %d instead of %d, which led by %.4f", request, at, got,
                expected, margin);
  return text;
}

class Comparer {
 public:
  Comparer(const std::vector<Request>& requests, const std::vector<Answer>& reference, const SameAnswerOptions& options)
      : requests_(requests), reference_(reference), options_(options), done_(requests.size(), 0) {}

  // Takes one run's answers; true when some request goes on from a forced token.
  bool take(const std::vector<Answer>& answers) {
    bool again = false;
    for (size_t i = 0; i < requests_.size(); ++i) again |= take_one(i, answers[i]);
    return again && result_.failure.empty();
  }

  std::vector<Request> next_requests() const {
    std::vector<Request> next;
    for (size_t i = 0; i < requests_.size(); ++i) {
      const bool complete = done_[i] >= reference_[i].ids.size();
      next.push_back(complete ? requests_[i] : continued(requests_[i], reference_[i], done_[i]));
    }
    return next;
  }

  Comparison result_;

 private:
  bool take_one(size_t i, const Answer& answer) {
    const Answer& reference = reference_[i];
    if (done_[i] >= reference.ids.size()) return false;
    for (size_t k = 0;; ++k) {
      const size_t at = done_[i] + k;
      if (at == reference.ids.size() || k == answer.ids.size()) return take_end(i, at, k, answer);
      result_.compared++;
      if (answer.ids[k] == reference.ids[at]) {
        take_logprob(i, at, answer.logprobs[k]);
        continue;
      }
      return force(i, at, answer.ids[k]);
    }
  }

  void take_logprob(size_t i, size_t at, float got) {
    const float expected = reference_[i].logprobs[at];
    const double error = std::abs(got - expected);
    result_.max_logprob_error = std::max(result_.max_logprob_error, error);
    if (!(error <= kMostTolerances * options_.tolerance)) {  // or not a number
      char text[120];
      std::snprintf(text, sizeof text, "request %zu, token %zu: a logprob of %.7g instead of %.7g", i, at, got, expected);
      fail(text);
    }
    result_.off += error > 2 * options_.tolerance;
  }

  bool take_end(size_t i, size_t at, size_t num_ids, const Answer& answer) {
    const Answer& reference = reference_[i];
    if (at != reference.ids.size() || num_ids != answer.ids.size() || answer.finish != reference.finish) {
      fail("request " + std::to_string(i) + " ended after " + std::to_string(at) + " tokens " +
           (answer.error.empty() ? "" : "(" + answer.error + ") ") + "with reason " +
           std::to_string(static_cast<int>(answer.finish)) + "; the reference gave " +
           std::to_string(reference.ids.size()) + " and reason " + std::to_string(static_cast<int>(reference.finish)));
    }
    done_[i] = reference.ids.size();
    return false;
  }

  bool force(size_t i, size_t at, TokenId got) {
    const Answer& reference = reference_[i];
    const double lead = options_.sampled ? 0 : margin(requests_[i], reference, at);
    if (lead > 2 * options_.tolerance) {
      const std::string what = describe(i, at, reference.ids[at], got, lead);
      if (options_.max_outside_share == 0) {
        fail(what);
        return false;
      }
      if (result_.outside++ == 0) result_.first_outside = what;
    }
    result_.forced++;
    // Output penalties count from the prompt's end, so such a request cannot be continued from another prompt.
    done_[i] = counts_output(requests_[i].sampling) ? reference.ids.size() : at + 1;
    return done_[i] < reference.ids.size();
  }

  void fail(std::string what) {
    if (result_.failure.empty()) result_.failure = std::move(what);
  }

  const std::vector<Request>& requests_;
  const std::vector<Answer>& reference_;
  const SameAnswerOptions& options_;
  std::vector<size_t> done_;  // tokens of each answer that are compared or forced
};

}  // namespace

std::string Comparison::verdict(const SameAnswerOptions& options) const {
  if (!failure.empty()) return failure;
  if (compared == 0) return "nothing was compared";
  if (forced_share() > options.max_forced_share) {
    return std::to_string(forced) + " of " + std::to_string(compared) + " tokens had to be forced";
  }
  if (outside > options.max_outside_share * compared) {
    return std::to_string(outside) + " of " + std::to_string(compared) + " tokens beyond the margin, first " + first_outside;
  }
  if (off > options.max_forced_share * compared) {
    char text[80];
    std::snprintf(text, sizeof text, "%d of %d logprobs are off by more than %g", off, compared, 2 * options.tolerance);
    return text;
  }
  return "";
}

Comparison same_answer(const std::vector<Request>& requests, const std::vector<Answer>& reference,
                       const Variant& variant, const SameAnswerOptions& options) {
  Comparer comparer(requests, reference, options);
  while (comparer.take(variant(comparer.next_requests()))) {
  }
  return comparer.result_;
}

}  // namespace tailrace
