#include "server/echoed_prompt.h"

#include <algorithm>

#include "server/openai_response.h"

namespace tailrace {
namespace {

class GivenTokensRun : public ConstraintRun {
 public:
  explicit GivenTokensRun(std::shared_ptr<const std::vector<TokenId>> given) : given_(std::move(given)) {}

  Status next(std::span<const int32_t> tokens, std::span<uint32_t> mask) override {
    at_ += tokens.size();
    // Behind the last nothing is sampled, but a mask is never empty.
    const TokenId id = (*given_)[std::min(at_, given_->size() - 1)];
    std::fill(mask.begin(), mask.end(), 0);
    mask[id / 32] |= 1u << (id % 32);
    return Status();
  }

 private:
  const std::shared_ptr<const std::vector<TokenId>> given_;
  size_t at_ = 0;
};

class GivenTokens : public TokenConstraint {
 public:
  explicit GivenTokens(std::vector<TokenId> given)
      : given_(std::make_shared<const std::vector<TokenId>>(std::move(given))) {}

  Expected<std::unique_ptr<ConstraintRun>> start() const override { return std::make_unique<GivenTokensRun>(given_); }

 private:
  const std::shared_ptr<const std::vector<TokenId>> given_;
};

}  // namespace

std::vector<int64_t> token_offsets(const Tokenizer& tokenizer, std::string_view text, const std::vector<TokenId>& ids) {
  std::vector<int64_t> out;
  out.reserve(ids.size());
  int64_t offset = 0;
  for (const TokenId id : ids) {
    out.push_back(offset);
    std::string_view bytes = tokenizer.token_bytes(id);
    if (!text.starts_with(bytes)) {
      if (bytes.starts_with(' ') && text.starts_with(bytes.substr(1))) {
        bytes.remove_prefix(1);
      } else if (tokenizer.is_special(id)) {
        bytes = {};
      }
    }
    const std::string_view covered = text.substr(0, bytes.size());
    offset += count_code_points(covered);
    text.remove_prefix(covered.size());
  }
  return out;
}

std::shared_ptr<const Request> prompt_scorer(const std::vector<TokenId>& prompt, int32_t num_top_logprobs,
                                             const std::string& cache_salt) {
  if (prompt.size() < 2) return nullptr;
  auto request = std::make_shared<Request>();
  request->id = next_request_id();
  request->prompt_ids = {prompt.front()};
  request->max_tokens = static_cast<int32_t>(prompt.size()) - 1;
  request->sampling.temperature = 0;
  request->sampling.num_top_logprobs = num_top_logprobs;
  request->constraint = std::make_shared<const GivenTokens>(std::vector<TokenId>(prompt.begin() + 1, prompt.end()));
  request->cache_salt = cache_salt;
  return request;
}

}  // namespace tailrace
