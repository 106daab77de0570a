// What a client asked (immutable once submitted) and the stream on which the engine answers.
// This header and RequestQueue are all that server/ and engine/ share.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/token_constraint.h"

namespace tailrace {

using TokenId = int32_t;

// Order of application (Hugging Face's): logit_bias, penalties, temperature, top_k, top_p on the renormalised rest,
// min_p relative to the largest probability left. temperature <= kGreedyTemperature or top_k == 1 is exact argmax, lowest
// id on ties.
struct SamplingParams {
  float temperature = 1.0f;
  int32_t top_k = 0;                 // 0: off
  float top_p = 1.0f;                // (0, 1]
  float min_p = 0.0f;                // [0, 1]
  float repetition_penalty = 1.0f;   // > 0; over prompt and output
  float presence_penalty = 0.0f;     // [-2, 2]; over output only
  float frequency_penalty = 0.0f;    // [-2, 2]; over output only
  std::vector<std::pair<TokenId, float>> logit_bias;  // at most kMaxLogitBias, ids < vocabulary, unique
  uint64_t seed = 0;                 // always set: drawn fresh by the server where the client gave none
  uint32_t choice_index = 0;         // which of its prompt's n choices: part of the random stream's key
  int32_t num_top_logprobs = -1;     // -1: no logprobs; 0..kMaxTopLogprobs: the chosen token's and that many more
};

inline constexpr float kGreedyTemperature = 1e-5f;
inline constexpr int kMaxLogitBias = 1024;
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxStopTokenIds = 64;

enum class FinishReason {
  kStop,       // an end-of-sequence or stop token (that token is delivered too, as the last one)
  kLength,     // max_tokens or the context is used up, or the lone sequence cannot grow
  kCancelled,  // the client went away or aborted
  kError,      // TokenEvent::error says why
};

struct TokenLogprob {
  TokenId id;
  float logprob;
};

// One event of a TokenStream. A stream carries max_tokens token events at most, then exactly one finish event.
struct TokenEvent {
  enum class Kind { kToken, kFinish } kind = Kind::kToken;
  TokenId id = -1;
  float logprob = 0;                          // log-softmax of the raw logits (after bias and penalties: no)
  std::vector<TokenLogprob> top_logprobs;     // highest first
  FinishReason finish = FinishReason::kStop;  // kFinish only
  Status error;                               // kFinish with kError only
};

// Times of one request on the engine's clock (now_ns), 0 until they happen.
struct RequestTimes {
  std::atomic<int64_t> queued_ns{0}, admitted_ns{0}, first_token_ns{0}, finished_ns{0};
};

// The engine's answer to one request: a queue from the engine thread to one consumer. Bounded by construction, since the
// engine pushes at most max_tokens + 1 events. The callback is invoked from the engine thread when the queue turns
// non-empty; it must not block.
class TokenStream {
 public:
  void set_ready_callback(std::function<void()> callback);
  // Moves the queued events, `most` at a time, to the consumer; empty when there are none. Who has got as many as it asked for asks
  // again: nobody calls back for those that are left.
  std::vector<TokenEvent> take(size_t most = SIZE_MAX);

  // The consumer no longer wants the answer; idempotent. The engine still pushes the one finish event.
  void cancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  void push(TokenEvent event);  // engine thread only; CHECKs that nothing follows a finish event

  RequestTimes times;
  std::atomic<int32_t> cached_len{0};      // prompt tokens served from the prefix cache, at most prompt_len - 1
  std::atomic<int32_t> num_preemptions{0};
  std::atomic<int64_t> gpu_idle_ns{0};     // device idle time between the steps this request took part in

 private:
  std::mutex mutex_;
  std::deque<TokenEvent> events_;
  std::function<void()> ready_;
  std::atomic<bool> cancelled_{false};
  bool finished_ = false;
};

struct Request {
  uint64_t id = 0;                        // unique in the process, from next_request_id()
  std::vector<TokenId> prompt_ids;        // 1..context_length - 1 tokens
  int32_t max_tokens = 1;                 // >= 1; prompt + max_tokens <= context_length
  int32_t min_tokens = 0;                 // no stop token ends the sequence before this many tokens
  std::vector<TokenId> stop_token_ids;    // end-of-sequence ids included, unless ignore_eos
  SamplingParams sampling;
  // Null: any token may come. Else its ends are among stop_token_ids, and where it must end before min_tokens it does.
  std::shared_ptr<const TokenConstraint> constraint;
  std::string cache_salt;                 // prefix reuse only among equal salts; empty is a salt like any other
  std::shared_ptr<TokenStream> stream = std::make_shared<TokenStream>();
};

uint64_t next_request_id();

}  // namespace tailrace
