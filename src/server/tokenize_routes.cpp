#include "server/tokenize_routes.h"

#include <utility>
#include <variant>
#include <vector>

#include "server/chat_prompt.h"
#include "server/generation_plan.h"
#include "server/openai_request.h"

namespace tailrace {

ApiExpected<Json> answer_tokenize(const ServedModel& served, const HttpRequest& request,
                                  const JsonLimits& limits) {
  auto parsed = parse_tokenize_request(request.body, limits);
  if (!parsed) return api_fail(parsed.error());
  if (Status status = check_text_bytes(served, request.body.size()); !status.ok()) {
    return api_fail({413, status.message(), "prompt", "context_length_exceeded"});
  }
  const auto* chat = std::get_if<ChatRequest>(&parsed->source);
  if (Status found = check_model_name(served, chat != nullptr ? chat->params.model : parsed->model);
      !found.ok()) {
    return api_fail({404, found.message(), "model", "model_not_found"});
  }
  ApiExpected<std::vector<TokenId>> ids;
  if (chat != nullptr) {
    auto prompt = render_chat(served, *chat);
    if (!prompt) return api_fail(prompt.error());
    ids = std::move(prompt->ids);
  } else {
    ids =
        text_prompt_ids(served, std::get<std::string>(parsed->source), parsed->add_special_tokens);
    if (!ids) return api_fail(ids.error());
  }
  return Json{{"count", ids->size()},
              {"max_model_len", served.context_length},
              {"tokens", std::move(*ids)}};
}

ApiExpected<Json> answer_detokenize(const ServedModel& served, const HttpRequest& request,
                                    const JsonLimits& limits) {
  auto parsed =
      parse_detokenize_request(request.body, served.text->tokenizer->vocab_size(), limits);
  if (!parsed) return api_fail(parsed.error());
  if (Status found = check_model_name(served, parsed->model); !found.ok()) {
    return api_fail({404, found.message(), "model", "model_not_found"});
  }
  return Json{{"prompt", served.text->tokenizer->decode(parsed->tokens, /*skip_special=*/false)}};
}

}  // namespace tailrace
