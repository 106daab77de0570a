#include "server/http_listener.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "server/http_connection.h"

namespace tailrace {
namespace {

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

asio::awaitable<void> refuse_connection(tcp::socket socket) {
  const std::string text = format_response(too_many_connections(), WireForm());
  co_await asio::async_write(socket, asio::buffer(text), kAwait);
}

// Ends a coroutine: what it threw is our bug or memory running out, and concerns this connection alone.
auto reporter(const std::shared_ptr<ListenerShared>& shared) {
  return [shared](std::exception_ptr exception) {
    if (!exception || !shared->on_fault) return;
    try {
      std::rethrow_exception(exception);
    } catch (const boost::system::system_error& error) {
      if (error.code() != asio::error::operation_aborted) shared->on_fault(error.what());
    } catch (const std::exception& error) {
      shared->on_fault(error.what());
    }
  };
}

asio::awaitable<void> accept_loop(tcp::acceptor& acceptor, asio::io_context& io, std::shared_ptr<ListenerShared> shared) {
  for (;;) {
    auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(io), kAwait);
    if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (error) {  // out of descriptors: connections that end will free some
      asio::steady_timer pause(io, std::chrono::milliseconds(50));
      co_await pause.async_wait(kAwait);
      continue;
    }
    auto executor = socket.get_executor();
    const bool full = shared->open.load() >= shared->max_connections;
    const bool reserved = full && !HttpConnection::evict(*shared, false);
    if (reserved && shared->open_reserved.load() >= kReservedConnections && !HttpConnection::evict(*shared, true)) {
      asio::co_spawn(executor, refuse_connection(std::move(socket)), reporter(shared));
      continue;
    }
    auto connection = std::make_shared<HttpConnection>(std::move(socket), shared, reserved);
    connection->enlist();
    asio::co_spawn(executor, [connection]() { return connection->run(); },
                   [connection, report = reporter(shared)](std::exception_ptr exception) {
                     connection->finish();
                     report(std::move(exception));
                   });
  }
}

}  // namespace

struct HttpListener::Impl {
  Impl(const HttpOptions& options, std::function<void()> on_large_end)
      : shared(std::make_shared<ListenerShared>(options, std::move(on_large_end))) {}

  std::shared_ptr<ListenerShared> shared;
  asio::io_context io;
  tcp::acceptor acceptor{io};
  std::vector<std::thread> threads;

  // A process may have 1024 files open, unless it asks for more.
  static rlim_t allow_files(rlim_t count) {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return count;
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = std::min(count, limit.rlim_max);
    if (before >= count || setrlimit(RLIMIT_NOFILE, &limit) != 0) return before;
    return limit.rlim_cur;
  }

  Status bind() {
    const HttpOptions& options = shared->options;
    constexpr rlim_t kOtherFiles = 256 + kReservedConnections;
    const rlim_t files = allow_files(static_cast<rlim_t>(options.max_connections) + kOtherFiles);
    if (files <= kOtherFiles) {
      return invalid("only " + std::to_string(files) + " files may be open at a time, which leaves none for " +
                     "connections: raise that limit (ulimit -n) to " + std::to_string(kOtherFiles) +
                     " and --max-connections");
    }
    shared->max_connections = static_cast<int>(std::min<rlim_t>(options.max_connections, files - kOtherFiles));
    error_code error;
    const auto address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
    if (error) return invalid("--host " + options.host + ": not an IP address");
    const tcp::endpoint endpoint(address, options.port);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return invalid("cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " + error.message() +
                     " (choose another --port or --host)");
    }
    return Status();
  }

  // After the threads have ended: clients see the end of their connections.
  void close_sockets() {
    std::lock_guard lock(shared->mutex);
    for (HttpConnection* connection : shared->connections) connection->close_now();
  }

  void close_connections(bool only_idle) {
    // Kept past the lock: the last reference's destructor takes the same mutex.
    std::vector<std::shared_ptr<HttpConnection>> alive;
    std::lock_guard lock(shared->mutex);
    for (HttpConnection* connection : shared->connections) {
      if (auto held = connection->weak_from_this().lock()) alive.push_back(std::move(held));
    }
    for (const auto& connection : alive) connection->close(only_idle);
  }
};

HttpListener::HttpListener(const HttpOptions& options, Handler handler, HttpHeadRules rules,
                           std::function<void()> on_large_end, std::function<void(const char*)> on_fault)
    : impl_(std::make_unique<Impl>(options, std::move(on_large_end))) {
  impl_->shared->on_fault = std::move(on_fault);
  impl_->shared->handler = std::move(handler);
  impl_->shared->rules = std::move(rules);
}

HttpListener::~HttpListener() { stop(); }

Expected<uint16_t> HttpListener::start() {
  if (Status status = impl_->bind(); !status.ok()) return fail(status);
  asio::co_spawn(impl_->io, accept_loop(impl_->acceptor, impl_->io, impl_->shared), reporter(impl_->shared));
  for (int i = 0; i < impl_->shared->options.io_threads; ++i) {
    impl_->threads.emplace_back([this] { impl_->io.run(); });
  }
  return impl_->acceptor.local_endpoint().port();
}

void HttpListener::set_draining() {
  impl_->shared->draining = true;
  impl_->close_connections(true);
}

void HttpListener::stop() {
  if (impl_->threads.empty()) return;
  impl_->io.stop();
  for (auto& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  error_code ignored;
  impl_->acceptor.close(ignored);  // from now on connections are refused, not left waiting
  impl_->close_sockets();
}

int HttpListener::num_connections() const { return impl_->shared->open.load() + impl_->shared->open_reserved.load(); }

int HttpListener::max_connections() const { return impl_->shared->max_connections; }

int HttpListener::num_busy() const { return impl_->shared->busy.load(); }

int64_t HttpListener::body_bytes_held() const { return impl_->shared->bodies->held_bytes(); }

}  // namespace tailrace
