#include "http/server_fixture.h"

#include "output/answer_grammar.h"

#include <cstdlib>

namespace tailrace::test {
namespace {

void grow(Answer& answer, size_t index) {
  if (answer.text.size() > index) return;
  answer.text.resize(index + 1);
  answer.reasoning.resize(index + 1);
  answer.calls.resize(index + 1);
  answer.deltas.resize(index + 1);
  answer.finish.resize(index + 1);
  answer.logprobs.resize(index + 1, Json::array());
}

// Collects calls as clients do: the first piece of each has id and name, later ones only arguments.
void take_calls(Answer& answer, size_t choice, const Json& calls, bool streamed) {
  for (const Json& call : calls) {
    auto& known = answer.calls[choice];
    const size_t index = streamed ? call.at("index").get<size_t>() : known.size();
    const Json& function = call.at("function");
    if (index > known.size() || (index < known.size() && call.contains("id"))) answer.fault = "a call out of order";
    if (index == known.size()) {
      if (!call.contains("id") || call.value("type", "") != "function") answer.fault = "a call without id or type";
      known.push_back({call.value("id", ""), function.value("name", ""), ""});
    }
    const std::string arguments = function.at("arguments");
    known[index].arguments += arguments;
    known[index].num_pieces += arguments.empty() ? 0 : 1;
  }
}

void take_choice(Answer& answer, const Json& choice, const char* part) {
  const auto index = choice.at("index").get<size_t>();
  grow(answer, index);
  std::string text;
  if (choice.contains("text")) {
    text = choice["text"];
  } else if (choice.at(part).contains("content") && choice[part]["content"].is_string()) {
    text = choice[part]["content"];
  }
  answer.text[index] += text;
  if (choice.contains(part)) {
    answer.reasoning[index] += choice[part].value("reasoning_content", "");
    take_calls(answer, index, choice[part].value("tool_calls", Json::array()), std::string(part) == "delta");
  }
  if (!text.empty()) answer.deltas[index].push_back(text);
  if (choice["logprobs"].is_object() && choice["logprobs"].contains("content")) {
    for (const auto& entry : choice["logprobs"]["content"]) answer.logprobs[index].push_back(entry);
  }
  if (choice["finish_reason"].is_null()) return;
  if (!answer.finish[index].empty()) answer.fault = "two finish reasons";
  answer.finish[index] = choice["finish_reason"];
}

void take_chunk(Answer& answer, const Json& chunk) {
  if (chunk.contains("error")) {
    answer.error = chunk["error"];
    return;
  }
  for (const auto& choice : chunk.at("choices")) take_choice(answer, choice, "delta");
  if (chunk.contains("usage") && !chunk["usage"].is_null()) {
    if (!chunk["choices"].empty() || !answer.usage.is_null()) answer.fault = "usage beside choices, or twice";
    answer.usage = chunk["usage"];
  }
  if (chunk.contains("timings")) answer.timings = chunk["timings"];
}

}  // namespace

ServerFixture::ServerFixture(FixtureOptions options)
    : text(make_scripted_text(options.scripts)),
      queue(static_cast<size_t>(options.config.limits.max_queued_requests)),
      engine(text, queue, status, options.slots),
      options_(std::move(options)) {
  ServeConfig config = options_.config;
  config.http.port = 0;
  config.model.served_name = "m";
  server = std::make_unique<HttpServer>(config, queue, status);
  server->set_page(options_.page);
  auto started = server->start();
  EXPECT_TRUE(started.has_value());
  port_ = started.value_or(0);
  if (options_.model_ready) load();
}

ServerFixture::~ServerFixture() {
  server->stop();
  engine.stop();
  server.reset();
}

void ServerFixture::load() {
  ServedModel model;
  model.name = "m";
  model.text = text.text;
  const auto& names = options_.config.model;
  model.output = settle_output_format(names.tool_call_parser, names.reasoning_parser, *text.text).value();
  const TextModel& served = *text.text;
  const auto control = control_ids(model.output, *served.tokenizer);
  model.grammars = Grammars::create(served.tokenizer, served.eos_ids, control).value();
  model.context_length = options_.context_length;
  model.vocab_size = text.vocab_size;
  model.max_running_requests = options_.slots;
  server->set_flush_cache([this] {
    num_flushes.fetch_add(1);
    return flush_answer;
  });
  server->set_step_log(&steps);
  server->set_model(std::move(model));
  engine.start();
}

Answer ServerFixture::ask(const Json& body, const std::string& path) const {
  const HttpReply reply = post(path, body);
  Answer answer;
  answer.status = reply.status;
  if (!reply.complete) answer.fault = "incomplete response";
  if (reply.status != 200) {
    answer.error = Json::parse(reply.body, nullptr, false)["error"];
    return answer;
  }
  if (!body.value("stream", false)) {
    const Json json = Json::parse(reply.body);
    for (const auto& choice : json["choices"]) take_choice(answer, choice, "message");
    answer.usage = json["usage"];
    answer.timings = json["timings"];
    return answer;
  }
  for (const auto& data : sse_data(reply.body)) {
    if (answer.done) answer.fault = "an event after [DONE]";
    if (data == "[DONE]") {
      answer.done = true;
    } else {
      take_chunk(answer, Json::parse(data));
    }
  }
  return answer;
}

Answer ServerFixture::ask_both(Json body, const std::string& path) const {
  body["stream"] = false;
  const Answer whole = ask(body, path);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const Answer streamed = ask(body, path);
  EXPECT_EQ(whole.status, streamed.status) << body.dump();
  EXPECT_EQ(whole.fault, "");
  EXPECT_EQ(streamed.fault, "");
  EXPECT_EQ(whole.text, streamed.text) << body.dump();
  EXPECT_EQ(whole.reasoning, streamed.reasoning) << body.dump();
  EXPECT_EQ(whole.calls.size(), streamed.calls.size()) << body.dump();
  for (size_t i = 0; i < std::min(whole.calls.size(), streamed.calls.size()); ++i) {
    EXPECT_EQ(shown(whole.calls[i]), shown(streamed.calls[i])) << body.dump();
  }
  EXPECT_EQ(whole.finish, streamed.finish) << body.dump();
  EXPECT_EQ(whole.usage, streamed.usage) << body.dump();
  EXPECT_EQ(whole.logprobs, streamed.logprobs) << body.dump();
  EXPECT_EQ(streamed.done, streamed.status == 200);
  return streamed;
}

double ServerFixture::metric(const std::string& name, const std::string& label) const {
  const HttpReply reply = http_get(port_, "/metrics");
  double sum = 0;
  for (size_t at = 0; at < reply.body.size();) {
    const size_t end = std::min(reply.body.find('\n', at), reply.body.size());
    const std::string line = reply.body.substr(at, end - at);
    const bool named = line.rfind(name + "{", 0) == 0 || line.rfind(name + " ", 0) == 0;
    if (named && line.find(label) != std::string::npos) sum += std::atof(line.c_str() + line.rfind(' '));
    at = end + 1;
  }
  return sum;
}

std::string shown(const std::vector<AnswerCall>& calls) {
  std::string out;
  for (const auto& call : calls) out += (out.empty() ? "" : " ") + call.name + call.arguments;
  return out;
}

Json chat_body(const std::string& content, const Json& more) {
  Json body = {{"messages", Json::array({{{"role", "user"}, {"content", content}}})}, {"temperature", 0}};
  for (const auto& [key, value] : more.items()) body[key] = value;
  return body;
}

}  // namespace tailrace::test
