#include "server/chat_client.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>

#include "server/child_server.h"
#include "server/model_list.h"

namespace tailrace {
namespace {

std::atomic<bool> g_interrupted{false};  // set by SIGINT: a signal handler can reach nothing else

void on_interrupt(int) { g_interrupted.store(true); }

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a blocked read returns
  sigaction(SIGINT, &action, nullptr);
}

int converse(const ChatConfig& config, const ServerAddress& address, const std::string& model) {
  const bool terminal = isatty(0) != 0 && isatty(1) != 0;
  ChatSession session(config, address, model, [] { return g_interrupted.load(); }, std::cout);
  if (terminal) std::cout << "Chatting with " << model << ". /help lists commands; Ctrl-C stops an answer.\n";
  int exit_code = 0;
  for (std::string line;;) {
    g_interrupted = false;
    if (terminal) std::cout << "> " << std::flush;
    if (!std::getline(std::cin, line)) break;
    const auto outcome = session.handle_line(line);
    if (outcome == ChatSession::Outcome::kExit) break;
    if (outcome == ChatSession::Outcome::kFailed && !terminal) exit_code = 1;
    if (terminal && outcome == ChatSession::Outcome::kAnswered && !session.last_timing().empty()) {
      std::cout << "\x1b[2m[" << session.last_timing() << "]\x1b[0m\n";
    }
  }
  if (terminal) std::cout << "\n";
  return exit_code;
}

// A member's text; "" when it has none.
std::string text_of(const Json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

}  // namespace

ChatSession::ChatSession(const ChatConfig& config, const ServerAddress& address, std::string model,
                         std::function<bool()> stop, std::ostream& out)
    : config_(config), model_(std::move(model)), connection_(address, std::move(stop)), out_(out) {
  if (!config.system_prompt.empty()) messages_.push_back({{"role", "system"}, {"content", config.system_prompt}});
}

ChatSession::Outcome ChatSession::handle_line(const std::string& line) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return Outcome::kCommand;
  if (line == "/exit" || line == "/quit") return Outcome::kExit;
  if (line == "/help") {
    out_ << "/reset  forget the conversation\n/exit   leave\nCtrl-C  stop an answer\n";
    return Outcome::kCommand;
  }
  if (line == "/reset") {
    const bool has_system = !config_.system_prompt.empty();
    messages_.erase(messages_.begin() + (has_system ? 1 : 0), messages_.end());
    return Outcome::kCommand;
  }
  return ask(line);
}

ChatSession::Outcome ChatSession::ask(const std::string& text) {
  messages_.push_back({{"role", "user"}, {"content", text}});
  Json body = {{"model", model_}, {"messages", messages_}, {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (config_.max_tokens > 0) body["max_tokens"] = config_.max_tokens;
  if (config_.temperature >= 0) body["temperature"] = config_.temperature;
  last_timing_.clear();
  thinking_ = false;
  std::string answer, error;
  const auto reply = connection_.post("/v1/chat/completions", dump_json(body),
                                      [&](std::string_view data) { on_event(data, answer, error); });
  const bool stopped = !reply && reply.error().code() == StatusCode::kCancelled;
  if (!reply && !stopped) error = reply.error().message();
  if (reply && reply->status != 200) {
    const auto json = parse_json(reply->body);
    const bool known = json && json->is_object() && json->contains("error") && (*json)["error"].contains("message");
    error = known ? (*json)["error"]["message"].get<std::string>() : "status " + std::to_string(reply->status);
  }
  if (!answer.empty()) out_ << "\n";
  if (!error.empty()) {
    out_ << "error: " << error << std::endl;
    messages_.erase(messages_.size() - 1);
    return Outcome::kFailed;
  }
  messages_.push_back({{"role", "assistant"}, {"content", answer}});
  return stopped ? Outcome::kStopped : Outcome::kAnswered;
}

void ChatSession::on_event(std::string_view data, std::string& answer, std::string& error) {
  if (data == "[DONE]") return;
  const auto json = parse_json(data);
  if (!json || !json->is_object()) {
    error = "the server sent an event that is not JSON";
    return;
  }
  if (json->contains("error")) {
    const Json& body = (*json)["error"];
    error = body.is_object() && body.contains("message") && body["message"].is_string() ? body["message"].get<std::string>() : "unknown error";
    return;
  }
  if (!json->contains("choices") || !(*json)["choices"].is_array()) return;
  for (const Json& choice : (*json)["choices"]) {
    if (!choice.is_object() || !choice.contains("delta")) continue;
    const Json& delta = choice["delta"];
    if (!delta.is_object()) continue;
    const std::string thought = text_of(delta, "reasoning_content"), text = text_of(delta, "content");
    if (!thought.empty()) thinking_ = true;
    if (!text.empty() && std::exchange(thinking_, false)) out_ << "\n\n";
    answer += text;
    out_ << thought << text << std::flush;
  }
  if (json->contains("timings") && (*json)["timings"].is_object()) {
    char text[64];
    std::snprintf(text, sizeof text, "%d tokens, %.1f tokens/s", (*json)["timings"].value("predicted_n", 0),
                  (*json)["timings"].value("predicted_per_second", 0.0));
    last_timing_ = text;
  }
}

int run_chat(const ChatConfig& config) {
  catch_interrupts();
  const auto complain = [](const Status& status, int code) {
    std::fprintf(stderr, "tailrace chat: %s\n", status.message().c_str());
    return code;
  };
  std::optional<ChildServer> child;
  ServerAddress address;
  if (config.base_url.empty()) {
    std::vector<std::string> args = config.server_args;
    if (!config.api_key.empty()) args.insert(args.end(), {"--api-key", config.api_key});
    auto started = ChildServer::start(config.model, args);
    if (!started) return complain(started.error(), 1);
    child.emplace(std::move(*started));
    address = child->address();
    if (isatty(1) != 0) std::fprintf(stderr, "loading %s ...\n", config.model.c_str());
    if (Status ready = child->wait_ready([] { return g_interrupted.load(); }); !ready.ok()) return complain(ready, 1);
  } else {
    auto found = parse_url(config.base_url).and_then([](const Url& url) {
      return address_of(url, ServerAddress().port);
    });
    if (!found) {
      const std::string what = "--base-url " + config.base_url + ": " + found.error().message();
      return complain(Status(found.error().code(), what), 2);
    }
    address = std::move(*found);
  }
  address.api_key = config.api_key;
  std::string model = config.base_url.empty() ? "" : config.model;
  if (model.empty()) {
    const auto models = list_models(address, [] { return g_interrupted.load(); });
    if (!models) return complain(models.error(), 1);
    model = models->front().name;
  }
  return converse(config, address, model);
}

}  // namespace tailrace
