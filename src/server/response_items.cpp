#include "server/response_items.h"

#include <utility>

#include "server/openai_response.h"
#include "server/reasoning_seal.h"

namespace tailrace {
namespace {

using Kind = AnswerPiece::Kind;

std::string item_id(Kind kind, const std::string& token, size_t index) {
  const char* prefix = kind == Kind::kReasoning ? "rs_" : kind == Kind::kContent ? "msg_" : "fc_";
  return prefix + token + std::to_string(index);
}

// In events there are no bytes.
Json without_bytes(const Json& logprobs) {
  Json out = Json::array();
  for (const Json& entry : logprobs) {
    Json tops = Json::array();
    for (const Json& top : entry["top_logprobs"])
      tops.push_back({{"token", top["token"]}, {"logprob", top["logprob"]}});
    out.push_back({{"token", entry["token"]}, {"logprob", entry["logprob"]}, {"top_logprobs", std::move(tops)}});
  }
  return out;
}

}  // namespace

void ResponseItems::tell(const char* type, Json members) {
  if (!listener_) return;
  Json out = Json::object();
  if (!members.contains("item")) out["item_id"] = item_["id"];
  out["output_index"] = output_.size();
  out.update(members);
  listener_(type, std::move(out));
}

// The one part of a message or of reasoning, as it is now.
Json ResponseItems::part_json() const {
  if (open_.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
  return {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}, {"logprobs", logprobs_}};
}

void ResponseItems::tell_part(const char* type) {
  if (listener_) tell(type, {{"content_index", 0}, {"part", part_json()}});
}

void ResponseItems::begin(const AnswerPiece& piece) {
  open_ = {.kind = piece.kind, .call = piece.call};
  text_.clear();
  logprobs_ = Json::array();
  ++run_;
  item_ = {{"id", item_id(piece.kind, rules_.token, output_.size())}};
  switch (piece.kind) {
    case Kind::kReasoning:
      item_.update(
          {{"type", "reasoning"}, {"status", "in_progress"}, {"summary", Json::array()}, {"content", Json::array()}});
      if (rules_.encrypted_reasoning) item_["encrypted_content"] = "";
      break;
    case Kind::kContent:
      item_.update({{"type", "message"}, {"status", "in_progress"}, {"role", "assistant"}, {"content", Json::array()}});
      break;
    case Kind::kCall:
      item_.update({{"type", "function_call"},
                    {"status", "in_progress"},
                    {"call_id", piece.call_id},
                    {"name", piece.name},
                    {"arguments", ""}});
      if (const auto found = rules_.namespaced.find(piece.name); found != rules_.namespaced.end())
        item_.update({{"name", found->second.name}, {"namespace", found->second.space}});
  }
  tell("response.output_item.added", {{"item", item_}});
  if (piece.kind != Kind::kCall) tell_part("response.content_part.added");
}

void ResponseItems::grow(const std::string& text) {
  text_ += text;
  if (open_.kind == Kind::kContent) {
    Json due = take_logprobs();
    if (!listener_ || (text.empty() && due.empty())) return;
    return tell("response.output_text.delta",
                {{"content_index", 0}, {"delta", text}, {"logprobs", without_bytes(due)}});
  }
  if (!listener_ || text.empty()) return;
  if (open_.kind == Kind::kCall) return tell("response.function_call_arguments.delta", {{"delta", text}});
  tell("response.reasoning_text.delta", {{"content_index", 0}, {"delta", text}});
}

// Of the open message's tokens those that have come; adds them to logprobs_.
Json ResponseItems::take_logprobs() {
  Json due = Json::array();
  for (; !tokens_.empty() && tokens_.front().run <= run_; tokens_.pop_front()) {
    due.push_back(token_json(tokens_.front().event, *rules_.tokenizer));
  }
  for (const Json& entry : due) logprobs_.push_back(entry);
  return due;
}

void ResponseItems::add(ChoiceDelta delta) {
  for (auto& token : delta.logprobs) {
    if (token.content) tokens_.push_back(std::move(token));
  }
  for (const AnswerPiece& piece : delta.pieces) {
    if (item_.is_null() || !open_.goes_on(piece)) {
      if (!item_.is_null()) close("completed");
      begin(piece);
    }
    open_.complete |= piece.complete;
    grow(piece.text);
  }
}

void ResponseItems::close(const char* status) {
  if (open_.kind == Kind::kContent) take_logprobs();
  switch (open_.kind) {
    case Kind::kReasoning:
      tell("response.reasoning_text.done", {{"content_index", 0}, {"text", text_}});
      if (rules_.encrypted_reasoning) item_["encrypted_content"] = seal_reasoning(text_);
      break;
    case Kind::kContent:
      tell("response.output_text.done",
           {{"content_index", 0}, {"text", text_}, {"logprobs", without_bytes(logprobs_)}});
      break;
    case Kind::kCall:
      tell("response.function_call_arguments.done", {{"name", item_["name"]}, {"arguments", text_}});
      item_["arguments"] = text_;
      status = open_.complete ? "completed" : "incomplete";
  }
  item_["status"] = status;
  if (open_.kind != Kind::kCall) {
    tell_part("response.content_part.done");
    item_["content"].push_back(part_json());
  }
  tell("response.output_item.done", {{"item", item_}});
  output_.push_back(std::exchange(item_, nullptr));
}

void ResponseItems::finish(bool cut) {
  if (!item_.is_null()) close(cut ? "incomplete" : "completed");
}

}  // namespace tailrace
