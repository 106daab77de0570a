// ListenerFixture: a listener on a free port whose exchanges the test answers itself.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/http_listener.h"
#include "support/http_client.h"

namespace tailrace::test {

struct ListenerFixture {
  explicit ListenerFixture(HttpOptions options = {}) {
    options.port = 0;
    const auto handler = [this](std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
      if (request.path == "/echo") {
        HttpResponse response;
        response.body = request.body;
        return exchange->respond(std::move(response));
      }
      exchange->on_disconnect([this] { left.fetch_add(1); });
      std::lock_guard lock(mutex);
      held.push_back(std::move(exchange));
      bodies.push_back(std::move(request));
    };
    const auto refuse = [](const HttpRequest& head) -> std::optional<HttpResponse> {
      if (head.path != "/refused") return std::nullopt;
      return HttpResponse{.status = 401};
    };
    const auto always = [](const HttpRequest& head) { return head.path == "/echo" || head.path == "/kept"; };
    listener = std::make_unique<HttpListener>(options, handler, HttpHeadRules{.refuse = refuse, .always_answered = always});
    auto started = listener->start();
    EXPECT_TRUE(started.has_value());
    port = *started;
  }

  ~ListenerFixture() {
    listener->stop();
    held.clear();
    bodies.clear();
  }
  void drop_bodies() {
    std::lock_guard lock(mutex);
    bodies.clear();
  }

  std::shared_ptr<HttpExchange> wait_held(size_t count = 1) {
    for (;;) {
      {
        std::lock_guard lock(mutex);
        if (held.size() >= count) return held[count - 1];
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool wait_body_bytes(int64_t bytes) const {
    for (int i = 0; i < 10000 && listener->body_bytes_held() != bytes; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return listener->body_bytes_held() == bytes;
  }
  bool wait_left(int count) {
    for (int i = 0; i < 5000 && left.load() < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return left.load() == count;
  }

  std::atomic<int> left{0};
  std::mutex mutex;
  std::vector<std::shared_ptr<HttpExchange>> held;
  std::vector<HttpRequest> bodies;  // of the held exchanges
  std::unique_ptr<HttpListener> listener;
  uint16_t port = 0;
};

}  // namespace tailrace::test
