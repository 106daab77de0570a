#include "server/http_listener.h"

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "server/http_answer.h"

namespace tailrace {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using namespace asio::experimental::awaitable_operators;  // NOLINT: operator|| on awaitables

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr size_t kHeaderLimit = 16 << 10;
constexpr int kWriteStallSeconds = 60;           // a response's reader that takes nothing for this long is gone
constexpr size_t kLingerBytes = size_t{1} << 28; // of a refused body are read and dropped, so that the client sees why
constexpr int kLingerSeconds = 2;

enum class ReadResult { kRequest, kClosed, kRefused };

class Connection;

// What all connections of a listener share.
struct Shared {
  HttpOptions options;
  HttpListener::Handler handler;
  std::atomic<bool> draining{false};
  std::atomic<int> open{0};
  std::mutex mutex;
  std::unordered_set<Connection*> connections;  // guarded by mutex
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::shared_ptr<Shared> shared)
      : socket_(std::move(socket)), deadline_(socket_.get_executor()), wake_(socket_.get_executor()),
        shared_(std::move(shared)) {
    std::lock_guard lock(shared_->mutex);
    shared_->connections.insert(this);
    shared_->open.fetch_add(1);
  }
  ~Connection() {
    std::lock_guard lock(shared_->mutex);
    shared_->connections.erase(this);
    shared_->open.fetch_sub(1);
  }

  asio::any_io_executor executor() { return socket_.get_executor(); }

  asio::awaitable<void> run() {
    set_socket_options();
    for (bool first = true;; first = false) {
      HttpRequest request;
      const ReadResult result = co_await read_request(request, first);
      if (result == ReadResult::kClosed) break;
      if (result == ReadResult::kRefused) {
        co_await linger();
        break;
      }
      if (!co_await answer(std::move(request))) break;
    }
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  // The coroutine has ended, however it did.
  void finish() {
    if (answer_) answer_->client_left();
  }

  // Only when no executor runs.
  void close_now() {
    error_code ignored;
    socket_.close(ignored);
  }

  // From any thread: closes the connection if it waits for a request, or whatever it does.
  void close(bool only_idle) {
    asio::post(executor(), [self = shared_from_this(), only_idle] {
      if (only_idle && !self->idle_) return;
      if (self->answer_) self->answer_->client_left();
      error_code ignored;
      self->socket_.close(ignored);
      self->wake_.cancel();
      self->deadline_.cancel();
    });
  }

 private:
  void set_socket_options() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
    const int fd = socket_.native_handle();
    const int idle = 30, interval = 10, count = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  }

  // Pending operations on the socket are cancelled when `seconds` have passed without another arm() or disarm().
  void arm(int seconds) {
    deadline_.expires_after(std::chrono::seconds(seconds));
    deadline_.async_wait([weak = weak_from_this()](error_code error) {
      auto self = weak.lock();
      if (error || !self || self->deadline_.expiry() > std::chrono::steady_clock::now()) return;
      self->timed_out_ = true;
      error_code ignored;
      self->socket_.cancel(ignored);
    });
    timed_out_ = false;
  }
  void disarm() { deadline_.expires_at(std::chrono::steady_clock::time_point::max()); }

  asio::awaitable<ReadResult> read_request(HttpRequest& out, bool first) {
    const HttpOptions& options = shared_->options;
    if (buffer_.size() == 0) {
      idle_ = true;
      if (shared_->draining && !first) co_return ReadResult::kClosed;
      arm(first ? options.header_timeout_s : options.keep_alive_s);
      auto [error] = co_await socket_.async_wait(tcp::socket::wait_read, kAwait);
      idle_ = false;
      if (error) co_return ReadResult::kClosed;
    }
    http::request_parser<http::string_body> parser;
    parser.header_limit(kHeaderLimit);
    parser.body_limit(static_cast<uint64_t>(options.max_body_bytes));
    arm(options.header_timeout_s);
    auto [header_error, header_bytes] = co_await http::async_read_header(socket_, buffer_, parser, kAwait);
    if (header_error) co_return co_await refuse(header_error);
    const auto& head = parser.get();
    if (head[http::field::expect] == "100-continue" && !parser.is_done()) {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      auto [error, bytes] = co_await asio::async_write(socket_, asio::buffer(kContinue), kAwait);
      if (error) co_return ReadResult::kClosed;
    }
    arm(options.body_timeout_s);
    auto [body_error, body_bytes] = co_await http::async_read(socket_, buffer_, parser, kAwait);
    if (body_error) co_return co_await refuse(body_error);
    disarm();
    keep_alive_ = parser.keep_alive();
    http_1_0_ = head.version() < 11;
    auto message = parser.release();
    out.method = std::string(message.method_string());
    out.path = std::string(message.target().substr(0, message.target().find('?')));
    out.authorization = std::string(message[http::field::authorization]);
    out.content_type = std::string(message[http::field::content_type]);
    out.body = std::move(message.body());
    out.received_ns = now_ns();
    co_return ReadResult::kRequest;
  }

  // A request that could not be read: says why where somebody may still listen.
  asio::awaitable<ReadResult> refuse(error_code error) {
    HttpResponse response;
    if (timed_out_) {
      response = error_response(408, "the request did not arrive in time", "timeout");
    } else if (error == http::error::body_limit) {
      response = error_response(413, "the body is larger than --max-body-bytes (" +
                                         std::to_string(shared_->options.max_body_bytes) + ")", "too_large");
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      response = error_response(431, "the headers are larger than 16 KiB", "too_large");
    } else if (error == http::error::partial_message) {
      response = error_response(400, "the connection ended before the whole request had arrived", "bad_request");
    } else if (error.category() == make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream) {
      response = error_response(400, "not an HTTP/1.1 request: " + error.message(), "bad_request");
    } else {
      co_return ReadResult::kClosed;
    }
    response.close = true;
    arm(kLingerSeconds);
    const std::string text = format_response(response, false);
    auto [write_error, bytes] = co_await asio::async_write(socket_, asio::buffer(text), kAwait);
    co_return write_error ? ReadResult::kClosed : ReadResult::kRefused;
  }

  // Closing with unread input would reset the connection and lose the refusal: reads and drops for a while.
  asio::awaitable<void> linger() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    arm(kLingerSeconds);
    std::vector<char> sink(1 << 16);
    for (size_t dropped = 0; dropped < kLingerBytes;) {
      auto [error, bytes] = co_await socket_.async_read_some(asio::buffer(sink), kAwait);
      if (error) break;
      dropped += bytes;
    }
  }

  // Runs the handler and writes its answer; false when the connection is to be closed.
  asio::awaitable<bool> answer(HttpRequest request) {
    auto self = shared_from_this();
    HttpAnswer::Wiring wiring;
    wiring.max_unsent_bytes = static_cast<size_t>(shared_->options.max_unsent_bytes);
    wiring.http_1_0 = http_1_0_;
    wiring.keep_alive = [this] { return keep_alive_ && !shared_->draining; };
    wiring.post = [executor = executor()](std::function<void()> task) { asio::post(executor, std::move(task)); };
    wiring.wake = [weak = weak_from_this()] {
      auto connection = weak.lock();
      if (!connection) return;
      connection->wake_.cancel();
      error_code ignored;
      if (connection->answer_ && connection->answer_->cut_off()) connection->socket_.close(ignored);
    };
    answer_ = std::make_shared<HttpAnswer>(std::move(wiring));
    shared_->handler(answer_, std::move(request));
    auto finished = co_await (write_answer() || watch_peer());
    const bool complete = finished.index() == 0 && std::get<0>(finished);
    disarm();
    if (!complete) answer_->client_left();
    const bool keep = complete && keep_alive_ && !answer_->close_after();
    answer_.reset();
    co_return keep;
  }

  // True when the whole answer was written.
  asio::awaitable<bool> write_answer() {
    for (;;) {
      const std::string chunk = answer_->take_unsent();
      if (answer_->cut_off()) co_return false;
      if (chunk.empty()) {
        if (answer_->ended()) co_return true;
        wake_.expires_at(std::chrono::steady_clock::time_point::max());
        co_await wake_.async_wait(kAwait);
        if (!socket_.is_open()) co_return false;
        continue;
      }
      for (size_t sent = 0; sent < chunk.size();) {
        arm(kWriteStallSeconds);
        auto [error, bytes] = co_await socket_.async_write_some(
            asio::buffer(chunk.data() + sent, chunk.size() - sent), kAwait);
        if (error || answer_->cut_off()) co_return false;
        sent += bytes;
        answer_->sent(bytes);
      }
      disarm();
    }
  }

  // Returns when the peer has gone.
  asio::awaitable<void> watch_peer() {
    for (;;) {
      auto [error] = co_await socket_.async_wait(tcp::socket::wait_read, kAwait);
      if (error) co_return;
      char byte;
      const ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n < 0) co_return;
      if (n > 0) {  // the next request is here already: as good as a live peer until a write fails
        co_await socket_.async_wait(tcp::socket::wait_error, kAwait);
        co_return;
      }
      keep_alive_ = false;
      if (!answer_->probe()) co_return;
      break;
    }
    for (;;) {  // only a reset tells now that the peer has gone; asked for every second
      asio::steady_timer pause(executor(), std::chrono::seconds(1));
      auto first = co_await (socket_.async_wait(tcp::socket::wait_error, kAwait) || pause.async_wait(kAwait));
      if (first.index() == 0 || !answer_->probe()) co_return;
    }
  }

  tcp::socket socket_;
  asio::steady_timer deadline_, wake_;
  boost::beast::flat_buffer buffer_{kHeaderLimit + (1 << 16)};
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<HttpAnswer> answer_;
  std::atomic<bool> keep_alive_{true};  // also read by whoever formats a head
  bool idle_ = false, timed_out_ = false, http_1_0_ = false;
};

asio::awaitable<void> refuse_connection(tcp::socket socket) {
  HttpResponse response = error_response(503, "too many connections (--max-connections)", "overloaded");
  response.close = true;
  const std::string text = format_response(response, false);
  co_await asio::async_write(socket, asio::buffer(text), kAwait);
}

// Ends a coroutine: what it threw is our bug or memory running out, and concerns this connection alone.
void report_exception(std::exception_ptr exception) {
  if (!exception) return;
  try {
    std::rethrow_exception(exception);
  } catch (const boost::system::system_error& error) {
    if (error.code() == asio::error::operation_aborted) return;
    std::fprintf(stderr, "connection failed: %s\n", error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "connection failed: %s\n", error.what());
  }
}

asio::awaitable<void> accept_loop(tcp::acceptor& acceptor, asio::io_context& io, std::shared_ptr<Shared> shared) {
  for (;;) {
    auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(io), kAwait);
    if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (error) {  // out of descriptors: connections that end will free some
      asio::steady_timer pause(io, std::chrono::milliseconds(50));
      co_await pause.async_wait(kAwait);
      continue;
    }
    auto executor = socket.get_executor();
    if (shared->open.load() >= shared->options.max_connections) {
      asio::co_spawn(executor, refuse_connection(std::move(socket)), report_exception);
      continue;
    }
    auto connection = std::make_shared<Connection>(std::move(socket), shared);
    asio::co_spawn(executor, [connection]() { return connection->run(); },
                   [connection](std::exception_ptr exception) {
                     connection->finish();
                     report_exception(std::move(exception));
                   });
  }
}

}  // namespace

struct HttpListener::Impl {
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  asio::io_context io;
  tcp::acceptor acceptor{io};
  std::vector<std::thread> threads;

  Status bind() {
    const HttpOptions& options = shared->options;
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
    for (Connection* connection : shared->connections) connection->close_now();
  }

  void close_connections(bool only_idle) {
    // Kept past the lock: the last reference's destructor takes the same mutex.
    std::vector<std::shared_ptr<Connection>> alive;
    std::lock_guard lock(shared->mutex);
    for (Connection* connection : shared->connections) {
      if (auto held = connection->weak_from_this().lock()) alive.push_back(std::move(held));
    }
    for (const auto& connection : alive) connection->close(only_idle);
  }
};

HttpListener::HttpListener(const HttpOptions& options, Handler handler) : impl_(std::make_unique<Impl>()) {
  impl_->shared->options = options;
  impl_->shared->handler = std::move(handler);
}

HttpListener::~HttpListener() { stop(); }

Expected<uint16_t> HttpListener::start() {
  if (Status status = impl_->bind(); !status.ok()) return fail(status);
  asio::co_spawn(impl_->io, accept_loop(impl_->acceptor, impl_->io, impl_->shared), report_exception);
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

int HttpListener::num_connections() const { return impl_->shared->open.load(); }

}  // namespace tailrace
