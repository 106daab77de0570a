#include "sampler/sampler.h"

#include <algorithm>
#include <cmath>

#include "base/arena.h"
#include "base/check.h"
#include "base/test_fault.h"
#include "sampler/philox.h"
#include "sampler/vocab_ops.h"

namespace tailrace {
namespace {

// A token with its logit or its unnormalised probability. Filters keep a prefix of the order (value down, id up).
struct Candidate {
  float value;
  TokenId id;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

bool needs_processing(const SampleInput& in) {
  const RowSampling& s = *in.sampling;
  return s.num_bias > 0 || s.repetition_penalty != 1.0f || s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f ||
         (s.num_stop_ids > 0 && in.log_len < s.min_len) || in.mask != nullptr;
}

// The arrays of one thread, each over the vocabulary.
struct Scratch {
  float* logits;          // processed copy
  float* probs;           // exp((logit - max) / temperature)
  float* block_max;       // per kVocabBlock ids
  float* block_sum;
  int32_t* counts;        // 2 * occurrences in the output, + 1 when in the log at all; zero between calls
  Candidate* kept;
  Candidate* order;       // work space of the selections
  size_t bytes;

  Scratch(void* base, int64_t vocab) {
    ArenaCursor arena(base);
    const int64_t blocks = vocab_blocks(vocab);
    logits = arena.take<float>(vocab);
    probs = arena.take<float>(vocab);
    block_max = arena.take<float>(blocks);
    block_sum = arena.take<float>(blocks);
    counts = arena.take<int32_t>(vocab);
    kept = arena.take<Candidate>(vocab);
    order = arena.take<Candidate>(vocab);
    bytes = arena.bytes();
  }
};

void apply_penalties(const SampleInput& in, const Scratch& scratch) {
  const RowSampling& s = *in.sampling;
  const bool repetition = s.repetition_penalty != 1.0f;
  if (!repetition && s.presence_penalty == 0.0f && s.frequency_penalty == 0.0f) return;
  const int32_t begin = repetition ? 0 : std::min(s.prompt_len, in.log_len);
  for (int32_t i = begin; i < in.log_len; ++i) {
    const TokenId id = in.log[i];
    if (id < 0 || id >= in.vocab) continue;
    scratch.counts[id] |= 1;
    if (i >= s.prompt_len) scratch.counts[id] += 2;
  }
  for (int32_t i = begin; i < in.log_len; ++i) {
    const TokenId id = in.log[i];
    if (id < 0 || id >= in.vocab || scratch.counts[id] == 0) continue;
    const auto output_count = static_cast<float>(scratch.counts[id] / 2);
    scratch.counts[id] = 0;
    float& logit = scratch.logits[id];
    if (repetition) logit = logit < 0 ? logit * s.repetition_penalty : logit / s.repetition_penalty;
    if (output_count > 0) logit -= s.presence_penalty + s.frequency_penalty * output_count;
  }
}

// What the mask allows stays above what it forbids, whatever the logits are: one of those is chosen.
void apply_mask(const SampleInput& in, const Scratch& scratch) {
  for (int64_t i = 0; i < in.vocab; ++i) {
    const bool allowed = (in.mask[i / 32] >> (i % 32) & 1) != 0;
    const float logit = scratch.logits[i];
    scratch.logits[i] = !allowed ? -HUGE_VALF : logit > kBanned ? logit : kBanned;
  }
}

// Bias, penalties, the min_len mask and the row's own on a copy; the logits themselves when nothing applies.
const float* process_logits(const SampleInput& in, const Scratch& scratch) {
  if (!needs_processing(in)) return in.logits;
  const RowSampling& s = *in.sampling;
  std::copy_n(in.logits, in.vocab, scratch.logits);
  for (int32_t i = 0; i < s.num_bias; ++i) {
    const TokenId id = in.bias_ids[i];
    if (id < 0 || id >= in.vocab) continue;
    scratch.logits[id] += in.bias_values[i] <= kBanBias ? kBanned : in.bias_values[i];
  }
  apply_penalties(in, scratch);
  if (in.log_len < s.min_len) {
    for (int32_t i = 0; i < s.num_stop_ids; ++i) {
      const TokenId id = in.stop_ids[i];
      if (id >= 0 && id < in.vocab) scratch.logits[id] = -HUGE_VALF;
    }
  }
  if (in.mask != nullptr) apply_mask(in, scratch);
  return scratch.logits;
}

// The first k of the order (value down, id up) into scratch.order, unsorted; needs block_max. Looks only into blocks that
// hold something above the k-th best so far; an equal value at a higher id never replaces one.
int64_t select_top(const float* logits, int64_t vocab, int64_t k, const Scratch& scratch) {
  Candidate* best = scratch.order;
  const int64_t capacity = std::min(vocab, 2 * k + kVocabBlock);
  int64_t count = 0;
  bool full = false;  // k candidates are known: `threshold` is the worst of them
  float threshold = 0;
  for (int64_t block = 0; block < vocab_blocks(vocab); ++block) {
    if (full && !(scratch.block_max[block] > threshold)) continue;
    const int64_t end = std::min(vocab, (block + 1) * kVocabBlock);
    for (int64_t i = block * kVocabBlock; i < end; ++i) {
      const float value = clean_logit(logits[i]);
      if (full && !(value > threshold)) continue;
      best[count++] = {value, static_cast<TokenId>(i)};
      if (count == capacity && count > k) {
        std::nth_element(best, best + (k - 1), best + count, before);
        count = k;
        full = true;
        threshold = best[k - 1].value;
      }
    }
  }
  if (count > k) {
    std::nth_element(best, best + (k - 1), best + count, before);
    count = k;
  }
  return count;
}

// Keeps the smallest prefix of the order whose sum reaches top_p of the whole; quickselect on the mass, O(count).
int64_t apply_top_p(Candidate* kept, int64_t count, double total, float top_p, Candidate* order) {
  const double target = static_cast<double>(top_p) * total;
  std::copy_n(kept, count, order);
  int64_t low = 0, high = count;
  double mass = 0;  // of order[0, low)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    std::nth_element(order + low, order + middle, order + high, before);
    double half = 0;
    for (int64_t i = low; i < middle; ++i) half += order[i].value;
    if (mass + half >= target) {
      high = middle;
    } else {
      mass += half;
      low = middle;
    }
  }
  const Candidate cut = order[low];  // the last one kept: the first is kept even when top_p is tiny
  return std::remove_if(kept, kept + count, [&](const Candidate& c) { return before(cut, c); }) - kept;
}

double sum_of(const Candidate* kept, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += kept[i].value;
  return total;
}

// The token at which the running sum in id order passes u of the whole: small noise in the logits moves few draws.
TokenId draw(const Candidate* kept, int64_t count, double u) {
  const double target = u * sum_of(kept, count);
  double sum = 0;
  TokenId last = kept[0].id;
  for (int64_t i = 0; i < count; ++i) {
    if (kept[i].value <= 0) continue;
    sum += kept[i].value;
    last = kept[i].id;
    if (sum > target) break;
  }
  return last;
}

// Tokens that survive top_k, in id order, with exp((logit - max) / temperature).
int64_t keep_top_k(const float* logits, int64_t vocab, float max, const RowSampling& s, const Scratch& scratch) {
  const int64_t count = select_top(logits, vocab, s.top_k, scratch);
  std::copy_n(scratch.order, count, scratch.kept);
  std::sort(scratch.kept, scratch.kept + count, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = (scratch.kept[i].value - max) / s.temperature;
    scratch.kept[i].value = scaled > -87.0f ? std::exp(scaled) : 0.0f;
  }
  return count;
}

// Tokens that top_p or min_p can keep, in id order. Those below (1 - top_p) * total / vocab weigh less than 1 - top_p
// together, so the smallest set never reaches them.
int64_t keep_above_floor(int64_t vocab, double total, const RowSampling& s, const Scratch& scratch) {
  const double top_p_floor = (1.0 - s.top_p) * total / static_cast<double>(vocab) * 0.99;
  const float floor = s.top_p < 1.0f ? static_cast<float>(top_p_floor) : s.min_p;
  int64_t count = 0;
  for (int64_t block = 0; block < vocab_blocks(vocab); ++block) {
    if (scratch.block_sum[block] < floor) continue;
    const int64_t end = std::min(vocab, (block + 1) * kVocabBlock);
    for (int64_t i = block * kVocabBlock; i < end; ++i) {
      if (scratch.probs[i] >= floor) scratch.kept[count++] = {scratch.probs[i], static_cast<TokenId>(i)};
    }
  }
  return count;
}

// Without filters: find the block by its sum, then the token in it.
TokenId draw_unfiltered(int64_t vocab, double total, double u, const Scratch& scratch) {
  const double target = u * total;
  double sum = 0;
  TokenId last = 0;
  for (int64_t block = 0; block < vocab_blocks(vocab); ++block) {
    if (sum + scratch.block_sum[block] <= target) {
      sum += scratch.block_sum[block];
      continue;
    }
    const int64_t end = std::min(vocab, (block + 1) * kVocabBlock);
    for (int64_t i = block * kVocabBlock; i < end; ++i) {
      if (scratch.probs[i] <= 0) continue;
      sum += scratch.probs[i];
      last = static_cast<TokenId>(i);
      if (sum > target) return last;
    }
  }
  return last;
}

TokenId sample(const float* logits, const SampleInput& in, const Scratch& scratch) {
  const RowSampling& s = *in.sampling;
  const float max = block_maxima(logits, in.vocab, scratch.block_max);
  if (max == -HUGE_VALF) return 0;
  const double u = uniform_draw(s.seed, s.choice_index, static_cast<uint32_t>(in.log_len));
  const bool top_p = s.top_p < 1.0f;
  int64_t count = 0;
  double total = 0;
  if (s.top_k > 0 && s.top_k < in.vocab) {
    count = keep_top_k(logits, in.vocab, max, s, scratch);
    total = sum_of(scratch.kept, count);
  } else {
    total = exp_sums(logits, in.vocab, max, 1.0f / s.temperature, scratch.probs, scratch.block_sum);
    if (!top_p && !(s.min_p > 0)) return draw_unfiltered(in.vocab, total, u, scratch);
    count = keep_above_floor(in.vocab, total, s, scratch);
  }
  if (top_p) count = apply_top_p(scratch.kept, count, total, s.top_p, scratch.order);
  if (s.min_p > 0) {  // the largest is always kept and is exp(0) = 1
    count = std::remove_if(scratch.kept, scratch.kept + count,
                           [&](const Candidate& c) { return c.value < s.min_p; }) - scratch.kept;
  }
  return draw(scratch.kept, count, u);
}

void write_logprobs(const SampleInput& in, const Scratch& scratch, SampledRow* out) {
  const float max = block_maxima(in.logits, in.vocab, scratch.block_max);
  const double sum = exp_sums(in.logits, in.vocab, max, 1.0f, nullptr, scratch.block_sum);
  const double log_sum = max + std::log(sum);
  const auto logprob = [&](float logit) {
    const auto value = static_cast<float>(clean_logit(logit) - log_sum);
    return value > kMinLogprob ? value : kMinLogprob;  // also when all logits are -infinity
  };
  out->logprob = logprob(in.logits[out->id]);
  const int64_t wanted = std::min<int64_t>({in.sampling->num_top_logprobs, kMaxTopLogprobs, in.vocab});
  if (wanted == 0) return;
  const int64_t count = select_top(in.logits, in.vocab, wanted, scratch);
  std::sort(scratch.order, scratch.order + count, before);
  for (int64_t i = 0; i < count; ++i) out->top[i] = {scratch.order[i].id, logprob(scratch.order[i].value)};
  out->num_top = static_cast<int32_t>(count);
}

}  // namespace

SampleInput sample_input(const Batch& batch, const BatchRow& row, const float* logits, int64_t vocab) {
  const RowStateView& state = batch.state;
  return {.logits = logits,
          .vocab = vocab,
          .sampling = state.sampling + row.slot,
          .log = state.token_log + row.slot * state.log_stride,
          .log_len = row.kv_len,
          .bias_ids = state.bias_ids + static_cast<int64_t>(row.slot) * kMaxLogitBias,
          .bias_values = state.bias_values + static_cast<int64_t>(row.slot) * kMaxLogitBias,
          .stop_ids = state.stop_ids + static_cast<int64_t>(row.slot) * kMaxStopTokenIds,
          .mask = state.sampling[row.slot].constrained != 0 ? state.masks + row.slot * state.mask_words : nullptr};
}

void keep_sampled(const RowStateView& state, const BatchRow& row, TokenId id) {
  CHECK(row.kv_len < state.log_stride);
  const int64_t slot = row.slot;
  state.token_log[slot * state.log_stride + row.kv_len] = id;
  const RowSampling& s = state.sampling[slot];
  const TokenId* stops = state.stop_ids + slot * kMaxStopTokenIds;
  if (row.kv_len >= s.min_len && std::find(stops, stops + s.num_stop_ids, id) != stops + s.num_stop_ids) {
    state.stopped[slot] = 1;
  }
}

void sample_batch_row(const Batch& batch, const BatchRow& row, const float* logits, int64_t vocab, void* scratch,
                      SampledRow* out) {
  const RowStateView& state = batch.state;
  if (state.sampling[row.slot].constrained != 0 &&
      __atomic_load_n(state.mask_len + row.slot * kMaskLenStride, __ATOMIC_ACQUIRE) != row.kv_len && !test_fault(Fault::kStaleMask)) {
    out->id = kNoToken;
    state.stopped[row.slot] = 1;
    return;
  }
  sample_row(sample_input(batch, row, logits, vocab), scratch, out);
  keep_sampled(state, row, out->id);
}

size_t sampler_scratch_bytes(int64_t vocab) { return Scratch(nullptr, vocab).bytes; }

void init_sampler_scratch(void* scratch, int64_t vocab) {
  std::fill_n(Scratch(scratch, vocab).counts, vocab, 0);
}

void sample_row(const SampleInput& in, void* scratch_base, SampledRow* out) {
  CHECK(in.vocab > 0);
  const Scratch scratch(scratch_base, in.vocab);
  const RowSampling& s = *in.sampling;
  const float* logits = process_logits(in, scratch);
  const bool greedy = !(s.temperature > kGreedyTemperature) || s.top_k == 1;
  out->id = greedy ? static_cast<TokenId>(argmax(logits, in.vocab)) : sample(logits, in, scratch);
  out->logprob = 0;
  out->num_top = 0;
  if (s.num_top_logprobs >= 0) write_logprobs(in, scratch, out);
}

}  // namespace tailrace
