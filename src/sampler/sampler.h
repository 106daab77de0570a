// The choice of the next token from a row of logits: host maths only, the semantics of base/request.h and batch.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "batch/batch.h"

namespace tailrace {

// One row to sample. All pointers are the row's own.
struct SampleInput {
  const float* logits = nullptr;         // [vocab], as the model made them
  int64_t vocab = 0;
  const RowSampling* sampling = nullptr;
  const TokenId* log = nullptr;          // [log_len] prompt and output so far
  int32_t log_len = 0;                   // also the position of the token that is chosen
  const TokenId* bias_ids = nullptr;     // [sampling->num_bias]
  const float* bias_values = nullptr;
  const TokenId* stop_ids = nullptr;     // [sampling->num_stop_ids]
  const uint32_t* mask = nullptr;        // [mask_words(vocab)], at least one bit set; null: every token may be chosen
};

SampleInput sample_input(const Batch& batch, const BatchRow& row, const float* logits, int64_t vocab);

// Bytes of one thread's scratch (a multiple of 64). init_sampler_scratch once before the first use.
size_t sampler_scratch_bytes(int64_t vocab);
void init_sampler_scratch(void* scratch, int64_t vocab);

// Chooses a token and writes id, logprob and top logprobs to *out. Order: min_len mask and logit_bias, penalties, mask
// (repetition over the whole log; presence and frequency over its output), temperature, top_k, top_p on the renormalised
// rest, min_p relative to the largest left; ties at an edge go to the lower id. temperature <= kGreedyTemperature or
// top_k == 1 is exact argmax. The draw depends on (seed, choice_index, log_len) only. Logprobs are the log-softmax of the
// raw logits, at least kMinLogprob; not computed (0) when num_top_logprobs < 0. NaN logits are never chosen while a number
// is there. Allocates nothing; `scratch` serves one call at a time.
void sample_row(const SampleInput& in, void* scratch, SampledRow* out);

// What a chosen id changes in the row's state: its token log, and its stop flag where the id ends the row.
void keep_sampled(const RowStateView& state, const BatchRow& row, TokenId id);

// Both for a row that samples. One that is late for its mask (RowStateView::masks) gets kNoToken and its stop flag.
void sample_batch_row(const Batch& batch, const BatchRow& row, const float* logits, int64_t vocab, void* scratch,
                      SampledRow* out);

inline constexpr float kMinLogprob = -9999.0f;  // OpenAI's stand-in for -infinity, which JSON cannot carry
inline constexpr float kBanBias = -100.0f;      // OpenAI: this bias and below ban; added it would only make rare
inline constexpr float kBanned = -1e30f;        // added instead; finite: a row whose every token is banned has a largest

}  // namespace tailrace
