#include "output/output_fixture.h"

#include <algorithm>
#include <random>

#include "base/check.h"
#include "server/json.h"
#include "support/small_tokenizers.h"

namespace tailrace::test {
namespace {

// Joins events and checks their order.
class Collector {
 public:
  void take(OutputSink& sink) {
    for (const OutputEvent& event : sink.take()) take(event);
  }
  Found finish() {
    if (open_) fault("a call is left open");
    return std::move(found_);
  }

 private:
  void take(const OutputEvent& event) {
    switch (event.kind) {
      case OutputEvent::Kind::kContent: found_.content += event.text; break;
      case OutputEvent::Kind::kReasoning: found_.reasoning += event.text; break;
      case OutputEvent::Kind::kCallBegin:
        if (std::exchange(open_, true)) fault("a call begins in a call");
        found_.calls.push_back({event.text});
        break;
      case OutputEvent::Kind::kCallArguments:
        if (!open_) return fault("arguments outside of a call");
        found_.calls.back().arguments += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        if (!std::exchange(open_, false)) return fault("an end without a call");
        found_.calls.back().complete = event.complete;
        check(found_.calls.back());
    }
    if (event.text.empty() && event.kind != OutputEvent::Kind::kCallEnd) fault("an empty piece");
  }

  void check(const FoundCall& call) {
    const auto json = parse_json(call.arguments);
    if (!json || !json->is_object()) fault("arguments are not an object that requests may hold: " + call.arguments);
  }

  void fault(std::string what) {
    if (found_.fault.empty()) found_.fault = std::move(what);
  }

  Found found_;
  bool open_ = false;
};

// Cuts text between characters.
std::vector<std::string> cut_text(const std::string& text, const Cut& cut, std::mt19937& random) {
  std::vector<std::string> out;
  for (const char c : text) {
    const bool continues = (c & 0xC0) == 0x80;
    const bool wanted = cut.kind == Cut::Kind::kCharacters || random() % 4 == 0;
    if (out.empty() || (!continues && wanted)) out.emplace_back();
    out.back() += c;
  }
  return out;
}

}  // namespace

std::string shown(const Found& found) {
  std::string out = "content '" + found.content + "' reasoning '" + found.reasoning + "'";
  for (const auto& call : found.calls) out += " call " + call.name + call.arguments + (call.complete ? "" : " cut");
  return out + (found.fault.empty() ? "" : " FAULT " + found.fault);
}

nlohmann::ordered_json offered_tools() {
  return nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object",
      "properties": {"tz": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "run", "parameters": {"type": "object",
      "properties": {"cmd": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object",
      "properties": {"path": {"type": "string"}, "content": {"type": ["string", "null"]}, "n": {"type": "integer"},
                     "options": {"type": "object"}, "flag": {"type": "boolean"}}}}}])");
}

FamilyRunner::FamilyRunner(Family family) : family_(std::move(family)) {
  GgufTokenizer spec = small_byte_level();
  for (const std::string& token : family_.specials) {
    spec.tokens.push_back(token);
    spec.types.push_back(3);
  }
  tokenizer_ = Tokenizer::from_gguf(spec).value();
  tools_ = std::make_shared<const OfferedTools>(offered_tools());
}

bool FamilyRunner::is_special(const std::string& token) const {
  return std::find(family_.specials.begin(), family_.specials.end(), token) != family_.specials.end();
}

Found FamilyRunner::run(const std::vector<std::string>& tokens, Cut cut) const {
  const auto parser = make_output_parser(family_.format, family_.start, tools_, *tokenizer_);
  CHECK(parser != nullptr);
  std::mt19937 random(cut.seed);
  OutputSink sink;
  Collector collector;
  std::string merged;
  const auto flush = [&] {
    if (!merged.empty()) parser->text(std::exchange(merged, {}), sink);
    collector.take(sink);
  };
  for (const std::string& token : tokens) {
    if (is_special(token)) {
      flush();
      const TokenId id = *tokenizer_->token_to_id(token);
      if (parser->is_control(id)) parser->control(id, sink);
    } else if (cut.kind == Cut::Kind::kMerged) {
      merged += token;
    } else if (cut.kind == Cut::Kind::kTokens) {
      parser->text(token, sink);
    } else {
      for (const auto& piece : cut_text(token, cut, random)) parser->text(piece, sink), collector.take(sink);
    }
    collector.take(sink);
  }
  flush();
  parser->finish(sink);
  collector.take(sink);
  return collector.finish();
}

}  // namespace tailrace::test
