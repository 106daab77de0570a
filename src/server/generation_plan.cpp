#include "server/generation_plan.h"

#include <algorithm>

#include "base/unix_time.h"
#include "server/answer_constraint.h"
#include "server/echoed_prompt.h"
#include "server/openai_writer.h"
#include "server/random_id.h"
#include "server/thinking_budget.h"

namespace tailrace {
namespace {

SamplingParams resolve_sampling(const GenerationParams& params, const SamplingDefaults& defaults, int32_t vocab_size) {
  SamplingParams out;
  out.temperature = params.temperature.value_or(defaults.temperature.value_or(1.0f));
  out.top_k = params.top_k.value_or(std::max(0, defaults.top_k.value_or(0)));
  out.top_p = params.top_p.value_or(defaults.top_p.value_or(1.0f));
  out.min_p = params.min_p.value_or(defaults.min_p.value_or(0.0f));
  out.repetition_penalty = params.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1.0f));
  out.presence_penalty = params.presence_penalty.value_or(defaults.presence_penalty.value_or(0.0f));
  out.frequency_penalty = params.frequency_penalty.value_or(defaults.frequency_penalty.value_or(0.0f));
  out.num_top_logprobs = params.num_top_logprobs;
  out.logit_bias = params.logit_bias;
  for (const TokenId id : defaults.suppress_tokens) {
    const auto same = [id](const auto& entry) { return entry.first == id; };
    if (id < 0 || id >= vocab_size || out.logit_bias.size() >= static_cast<size_t>(kMaxLogitBias)) continue;
    if (std::none_of(out.logit_bias.begin(), out.logit_bias.end(), same)) out.logit_bias.emplace_back(id, -100.0f);
  }
  return out;
}

std::vector<TokenId> stop_ids(const GenerationParams& params, const TextModel& text) {
  std::vector<TokenId> out = params.stop_token_ids;
  if (!params.ignore_eos) out.insert(out.end(), text.eos_ids.begin(), text.eos_ids.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;  // fits kMaxStopTokenIds: the API takes half of them at most, and TextModel::load the other half
}

// The output bound of a prompt of this length.
ApiExpected<int32_t> resolve_max_tokens(const ServedModel& model, const GenerationParams& params, size_t prompt_len,
                                        const char* field) {
  const int64_t limit = model.context_length;
  const auto prompt = static_cast<int64_t>(prompt_len);
  if (prompt == 0) return bad_field(field, std::string(field) + " has no tokens");
  const std::string start = "This model's maximum context length is " + std::to_string(limit) + " tokens. However, ";
  if (prompt >= limit) {
    return bad_field(field, start + "your prompt has " + std::to_string(prompt) +
                                " tokens, which leaves no room for an answer.",
                     "context_length_exceeded");
  }
  if (params.max_tokens && !params.end_with_context && prompt + *params.max_tokens > limit) {
    return bad_field(field, start + "you requested " + std::to_string(prompt + *params.max_tokens) + " tokens (" +
                                std::to_string(prompt) + " in the prompt, " + std::to_string(*params.max_tokens) +
                                " for the answer). Shorten one of them.",
                     "context_length_exceeded");
  }
  int64_t max_tokens = limit - prompt;
  if (params.max_tokens) {
    max_tokens = std::min<int64_t>(max_tokens, *params.max_tokens);
  } else if (const auto& wanted = model.text->sampling.max_new_tokens; wanted && *wanted >= 1) {
    max_tokens = std::min<int64_t>(max_tokens, *wanted);
  }
  if (params.min_tokens > max_tokens) {
    return bad_field("min_tokens", "min_tokens is more than the " + std::to_string(max_tokens) +
                                       " tokens the answer may have");
  }
  return static_cast<int32_t>(max_tokens);
}

ApiExpected<GenerationPlan> make_plan(const ServedModel& model, const GenerationParams& params, ApiDialect dialect,
                                      std::vector<std::vector<TokenId>> prompts,
                                      std::shared_ptr<const TokenConstraint> constraint, SeedSource& seeds,
                                      const std::vector<std::shared_ptr<const EchoedPrompt>>& echo = {}) {
  const bool chat = dialect == ApiDialect::kChat;
  GenerationPlan plan;
  plan.stream = params.stream;
  plan.choices_per_prompt = params.n;
  plan.stops = params.stop;
  plan.silent = params.max_tokens == 0;
  plan.position = chat ? TextPosition::kBegin : TextPosition::kContinuation;
  plan.tokenizer = model.text->tokenizer;
  SamplingParams sampling = resolve_sampling(params, model.text->sampling, model.vocab_size);
  const std::vector<TokenId> stop_token_ids = stop_ids(params, *model.text);
  for (auto& prompt : prompts) {
    const auto max_tokens = resolve_max_tokens(model, params, prompt.size(), chat ? "messages" : "prompt");
    if (!max_tokens) return api_fail(max_tokens.error());
    // A given seed draws for each prompt as if it were alone; without one, equal prompts get answers of their own.
    sampling.seed = params.seed ? *params.seed : seeds.next();
    for (int32_t choice = 0; choice < params.n; ++choice) {
      auto request = std::make_shared<Request>();
      request->id = next_request_id();
      request->prompt_ids = prompt;
      request->max_tokens = std::max(*max_tokens, 1);  // a sequence that says nothing is none
      request->min_tokens = params.min_tokens;
      request->stop_token_ids = stop_token_ids;
      request->sampling = sampling;
      request->sampling.choice_index = static_cast<uint32_t>(choice);
      request->cache_salt = params.cache_salt;
      request->constraint = constraint;
      plan.requests.push_back(std::move(request));
    }
  }
  plan.id = random_id(chat ? "chatcmpl-" : "cmpl-");
  std::vector<std::shared_ptr<const EchoedPrompt>> begins;
  for (const auto& prompt : echo) begins.insert(begins.end(), static_cast<size_t>(params.n), prompt);
  plan.writer = make_openai_writer(
      {.head = {dialect, plan.id, model.name, unix_seconds()},
       .num_choices = plan.requests.size(),
       .num_top_logprobs = params.num_top_logprobs,
       .echo = std::move(begins),
       .include_usage = params.include_usage,
       .tokenizer = plan.tokenizer});
  return plan;
}

ApiError with_param(const Status& status, const char* param) {
  ApiError error = from_status(status);
  error.param = param;
  return error;
}

tl::unexpected<ApiError> too_long(const Status& status, const char* param) {
  return api_fail({400, status.message(), param, "context_length_exceeded"});
}

// What `echo` gives back: a text as it was sent, ids as the text that they spell.
std::vector<std::shared_ptr<const EchoedPrompt>> echoed_prompts(const ServedModel& model,
                                                                const CompletionRequest& request,
                                                                const std::vector<std::vector<TokenId>>& prompts) {
  const Tokenizer& tokenizer = *model.text->tokenizer;
  std::vector<std::shared_ptr<const EchoedPrompt>> out;
  for (size_t i = 0; request.echo && i < prompts.size(); ++i) {
    const auto* text = std::get_if<std::string>(&request.prompts[i]);
    EchoedPrompt echo{.text = text != nullptr ? *text : tokenizer.decode(prompts[i], /*skip_special=*/false)};
    if (request.lists_prompts()) {
      echo.first = prompts[i].front();
      echo.offsets = token_offsets(tokenizer, echo.text, prompts[i]);
    }
    out.push_back(std::make_shared<const EchoedPrompt>(std::move(echo)));
  }
  return out;
}

// What finds the log probabilities of the prompts' own tokens.
std::vector<PromptScorer> prompt_scorers(const CompletionRequest& request,
                                         const std::vector<std::vector<TokenId>>& prompts) {
  std::vector<PromptScorer> out;
  for (size_t i = 0; request.lists_prompts() && i < prompts.size(); ++i) {
    auto scorer = prompt_scorer(prompts[i], request.params.num_top_logprobs, request.params.cache_salt);
    if (scorer) out.push_back({std::move(scorer), i});
  }
  return out;
}

Status check_listed_tokens(const CompletionRequest& request, const std::vector<std::vector<TokenId>>& prompts) {
  int64_t listed = 0;
  for (const auto& prompt : prompts) listed += static_cast<int64_t>(prompt.size()) * request.params.n;
  if (!request.lists_prompts() || listed <= kMaxListedPromptTokens) return Status();
  return invalid("echo with logprobs lists at most " + std::to_string(kMaxListedPromptTokens) +
                 " tokens of prompts, each once for every choice; here are " + std::to_string(listed) + ".");
}

}  // namespace

// Tokenizing costs time in proportion to the text: what cannot fit by a wide margin is refused without it.
Status check_text_bytes(const ServedModel& model, size_t bytes) {
  constexpr size_t kNormalizerMargin = 4;  // a normalizer may shorten text
  const size_t most = static_cast<size_t>(model.context_length) * model.max_token_bytes * kNormalizerMargin;
  if (model.max_token_bytes == 0 || bytes <= most) return Status();
  return invalid("This model's maximum context length is " + std::to_string(model.context_length) +
                 " tokens, and " + std::to_string(bytes) + " bytes of text cannot fit them.");
}

size_t measure_tokens(const Tokenizer& tokenizer) {
  size_t longest = 0;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) longest = std::max(longest, tokenizer.token_bytes(id).size());
  return longest;
}

RequestBounds bounds_of(const ServedModel& model, int32_t max_queued_requests) {
  return {std::min(model.vocab_size, std::max(model.text->tokenizer->vocab_size(), 1)),
          std::min(model.max_running_requests, max_queued_requests), max_queued_requests};
}

Status check_model_name(const ServedModel& model, const std::string& name) {
  if (name.empty() || name == model.name) return Status();
  return Status(StatusCode::kNotFound,
                "The model `" + name + "` does not exist; this server serves `" + model.name + "`.");
}

ApiExpected<std::vector<TokenId>> text_prompt_ids(const ServedModel& model, const std::string& text,
                                                  bool add_special_tokens) {
  auto ids = model.text->tokenizer->encode(text, add_special_tokens, /*parse_special=*/true);
  if (!ids) return api_fail(with_param(ids.error(), "prompt"));
  return std::move(*ids);
}

ApiExpected<ChatPrompt> chat_prompt(const ServedModel& model, const ChatRequest& request) {
  if (Status status = check_model_name(model, request.params.model); !status.ok()) {
    return api_fail({404, status.message(), "model", "model_not_found"});
  }
  const size_t bytes = text_bytes(request.messages) + text_bytes(request.tools.offered);
  if (Status status = check_text_bytes(model, bytes); !status.ok()) return too_long(status, "messages");
  return render_chat(model, request);
}

ApiExpected<GenerationPlan> plan_chat(const ServedModel& model, const ChatRequest& request, SeedSource& seeds) {
  auto prompt = chat_prompt(model, request);
  if (!prompt) return api_fail(prompt.error());
  std::vector<std::vector<TokenId>> prompts;
  prompts.push_back(std::move(prompt->ids));
  auto constraint = chat_constraint(model, request, prompt->think_start);
  if (!constraint) return api_fail(constraint.error());
  if (request.thinking_budget) {
    auto bounded = bound_thinking(model, prompt->think_start, *request.thinking_budget, std::move(*constraint));
    if (!bounded) return api_fail(from_status(bounded.error()));
    *constraint = std::move(*bounded);
  }
  auto plan = make_plan(model, request.params, ApiDialect::kChat, std::move(prompts), std::move(*constraint), seeds);
  if (!plan) return plan;
  plan->grammar_field = grammar_field(request.params.form, request.tools);
  plan->output.format = model.output;
  plan->output.think_start = prompt->think_start;
  if (!request.tools.offered.empty()) {
    plan->output.tools = std::make_shared<const OfferedTools>(request.tools.offered);
    plan->output.parallel_calls = request.tools.parallel_calls;
    plan->output.call_seed = random_bits();
  }
  return plan;
}

ApiExpected<GenerationPlan> plan_completion(const ServedModel& model, const CompletionRequest& request,
                                            SeedSource& seeds) {
  if (Status status = check_model_name(model, request.params.model); !status.ok()) {
    return api_fail({404, status.message(), "model", "model_not_found"});
  }
  std::vector<std::vector<TokenId>> prompts;
  for (const auto& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      prompts.push_back(*ids);
      continue;
    }
    const auto& text = std::get<std::string>(prompt);
    if (Status status = check_text_bytes(model, text.size()); !status.ok()) return too_long(status, "prompt");
    auto ids = text_prompt_ids(model, text, /*add_special_tokens=*/true);
    if (!ids) return api_fail(ids.error());
    prompts.push_back(std::move(*ids));
  }
  auto constraint = completion_constraint(model, request);
  if (!constraint) return api_fail(constraint.error());
  for (const auto& prompt : prompts) {
    if (prompt.empty()) return bad_field("prompt", "prompt has no tokens");
  }
  if (Status status = check_listed_tokens(request, prompts); !status.ok()) return api_fail(with_param(status, "echo"));
  auto scorers = prompt_scorers(request, prompts);
  const auto echo = echoed_prompts(model, request, prompts);
  auto plan = make_plan(model, request.params, ApiDialect::kCompletion, std::move(prompts), std::move(*constraint),
                        seeds, echo);
  if (!plan) return plan;
  plan->grammar_field = grammar_field(request.params.form);
  plan->scorers = std::move(scorers);
  return plan;
}

}  // namespace tailrace
