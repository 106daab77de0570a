// TrackedExchange: an exchange that notes in its request's entry how the answer went, and when it
// ended.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "server/http_exchange.h"
#include "server/request_log.h"

namespace tailrace {

// `on_end` runs once: just before the end of the answer is queued (who has read an answer finds its request ended), when the
// client has left, or nobody is left who would answer.
class TrackedExchange : public HttpExchange {
 public:
  // The status that stands in entries of clients that left before an answer (nginx's).
  static constexpr int kClientLeft = 499;
  using OnEnd = std::function<void(const std::shared_ptr<RequestEntry>&)>;

  TrackedExchange(std::shared_ptr<HttpExchange> inner, std::shared_ptr<RequestEntry> entry,
                  OnEnd on_end)
      : inner_(std::move(inner)),
        state_(std::make_shared<State>(std::move(entry), std::move(on_end))) {}
  ~TrackedExchange() override { state_->end(kClientLeft); }

  void respond(HttpResponse response) override {
    state_->note(response);
    state_->end(0);
    inner_->respond(std::move(response));
  }
  void begin_stream(HttpResponse head) override {
    state_->note(head);
    inner_->begin_stream(std::move(head));
  }
  void write(std::string_view bytes) override { inner_->write(bytes); }
  void end_stream() override {
    state_->end(0);
    inner_->end_stream();
  }
  void post(std::function<void()> task) override { inner_->post(std::move(task)); }
  void on_disconnect(std::function<void()> callback) override {
    inner_->on_disconnect([state = state_, callback = std::move(callback)] {
      callback();
      state->end(kClientLeft);
    });
  }
  bool disconnected() const override { return inner_->disconnected(); }

 private:
  struct State {
    State(std::shared_ptr<RequestEntry> request_entry, OnEnd end_callback)
        : entry(std::move(request_entry)), on_end(std::move(end_callback)) {}
    void note(const HttpResponse& response) {
      answered = true;
      entry->set_status(response.status, response.error ? response.error->code : "");
    }
    void end(int status_without_answer) {
      if (ended.exchange(true)) return;
      if (!answered && status_without_answer > 0)
        entry->set_status(status_without_answer, "client_left");
      entry->end();
      on_end(entry);
    }
    const std::shared_ptr<RequestEntry> entry;
    const OnEnd on_end;
    std::atomic<bool> answered{false}, ended{false};
  };

  const std::shared_ptr<HttpExchange> inner_;
  const std::shared_ptr<State> state_;
};

}  // namespace tailrace
