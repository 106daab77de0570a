#include "server/http_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <vector>

#include "base/clock.h"
#include "server/anthropic_error.h"

namespace tailrace {
namespace {

namespace http = boost::beast::http;
using namespace asio::experimental::awaitable_operators;  // NOLINT: operator|| on awaitables

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr int kWriteStallSeconds = 60;            // a response's reader that takes nothing for this long is gone
constexpr size_t kLingerBytes = size_t{1} << 28;  // of a refused body are read and dropped, so that the client sees why
constexpr int kLingerSeconds = 2;
constexpr auto kCancelAgain = std::chrono::milliseconds(100);
constexpr int kReservedSeconds = 2;               // a reserved connection's request is here at once, or others want its place

// "user@host:80" and "[::1]:80" have one, "", ":80" and "user@" do not.
bool has_host(std::string_view authority) {
  authority.remove_prefix(authority.find_last_of('@') + 1);  // npos + 1 is 0
  return !authority.empty() && authority.front() != ':';
}

// Path and query of a request target in origin-form, or a proxy's absolute-form (RFC 9112, 3.2.2); false for an http URI
// without a host, which RFC 9110, 4.2.1 calls invalid.
bool split_target(std::string_view target, HttpRequest& out) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!boost::beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    if (!has_host(target.substr(0, end))) return false;
    target.remove_prefix(end);
    break;
  }
  const size_t mark = target.find('?');
  out.path = target.substr(0, mark);
  if (out.path.empty()) out.path = "/";
  if (mark != std::string_view::npos) out.query = target.substr(mark + 1);
  return true;
}

// RFC 9112, 3.2: one Host in every request of HTTP/1.1, none or one before.
template <typename Head>
bool says_its_host(const Head& head) {
  const auto count = head.count(http::field::host);
  return count == 1 || (count == 0 && head.version() < 11);
}

// GCC 12 destroys the parts of a braced ApiError twice within a co_await: refusals are made by functions.

HttpResponse encoded_body(std::string_view encoding) {
  return to_response({415, "Content-Encoding " + std::string(encoding.substr(0, 64)) + ": bodies are taken as they are, send it without",
                      "", "unsupported_encoding"});
}

HttpResponse refusal(const Status& status) { return to_response(from_status(status)); }

}  // namespace

HttpResponse too_many_connections() {
  return to_response({503, "too many connections (--max-connections)", "", "overloaded"});
}

HttpConnection::HttpConnection(tcp::socket socket, std::shared_ptr<ListenerShared> shared, bool reserved)
    : socket_(std::move(socket)), deadline_(socket_.get_executor()), wake_(socket_.get_executor()),
      shared_(std::move(shared)), reserved_(reserved) {
  (reserved_ ? shared_->open_reserved : shared_->open).fetch_add(1);
}

void HttpConnection::enlist() {
  std::lock_guard lock(shared_->mutex);
  shared_->connections.insert(this);
  waiting_ = waiting_list().insert(waiting_list().end(), this);
}

HttpConnection::~HttpConnection() {
  set_busy(false);
  std::lock_guard lock(shared_->mutex);
  shared_->connections.erase(this);
  leave_waiting_list();
  if (!evicted_) (reserved_ ? shared_->open_reserved : shared_->open).fetch_sub(1);
}

void HttpConnection::leave_waiting_list() {
  if (waiting_) waiting_list().erase(*waiting_);
  waiting_.reset();
}

bool HttpConnection::await_head() {
  std::lock_guard lock(shared_->mutex);
  if (!waiting_ && !evicted_) waiting_ = waiting_list().insert(waiting_list().end(), this);
  return !evicted_;
}

bool HttpConnection::head_came() {
  std::lock_guard lock(shared_->mutex);
  leave_waiting_list();
  return !evicted_;
}

bool HttpConnection::evict(ListenerShared& shared, bool reserved) {
  std::shared_ptr<HttpConnection> alive;  // kept past the lock: the last reference's destructor takes the same mutex
  {
    std::lock_guard lock(shared.mutex);
    const auto& waiting = reserved ? shared.waiting_reserved : shared.waiting;
    if (waiting.empty()) return false;
    HttpConnection& longest = *waiting.front();
    alive = longest.weak_from_this().lock();  // null where its destructor waits for the mutex
    longest.leave_waiting_list();
    longest.evicted_ = true;
    (reserved ? shared.open_reserved : shared.open).fetch_sub(1);
  }
  if (alive) alive->close(false);
  return true;
}

asio::awaitable<void> HttpConnection::run() {
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

void HttpConnection::finish() {
  if (answer_) answer_->client_left();
}

void HttpConnection::close_now() {
  error_code ignored;
  socket_.close(ignored);
}

void HttpConnection::close(bool only_idle) {
  asio::post(executor(), [self = shared_from_this(), only_idle] {
    if (only_idle && self->busy_) return;
    if (self->answer_) self->answer_->client_left();
    error_code ignored;
    self->socket_.close(ignored);
    self->wake_.cancel();
    self->deadline_.cancel();
  });
}

void HttpConnection::set_socket_options() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  const int fd = socket_.native_handle();
  const int idle = 30, interval = 10, count = 3;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

int HttpConnection::patience(int seconds) const { return reserved_ ? std::min(kReservedSeconds, seconds) : seconds; }

void HttpConnection::arm(int seconds) {
  timed_out_ = false;
  deadline_.expires_after(std::chrono::seconds(seconds));
  await_deadline();
}

void HttpConnection::await_deadline() {
  deadline_.async_wait([weak = weak_from_this()](error_code error) {
    auto self = weak.lock();
    if (error || !self || self->deadline_.expiry() > std::chrono::steady_clock::now()) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
    // What completed a moment ago is not cancelled, and its coroutine may wait for more of the same: until it says that it does not.
    self->deadline_.expires_after(kCancelAgain);
    self->await_deadline();
  });
}

void HttpConnection::set_busy(bool busy) {
  if (busy_ == busy) return;
  busy_ = busy;
  shared_->busy.fetch_add(busy ? 1 : -1);
}

asio::awaitable<HttpConnection::ReadResult> HttpConnection::read_request(HttpRequest& out, bool first) {
  const HttpOptions& options = shared_->options;
  const int header_timeout_s = patience(options.header_timeout_s);
  if (!await_head()) co_return ReadResult::kClosed;
  if (buffer_.size() == 0) {
    set_busy(false);
    if (shared_->draining && !first) co_return ReadResult::kClosed;
    arm(first ? header_timeout_s : options.keep_alive_s);
    auto [error] = co_await socket_.async_wait(tcp::socket::wait_read, kAwait);
    if (error) co_return ReadResult::kClosed;
  }
  set_busy(true);
  prepared_ = head_only_ = false;
  anthropics_form_ = false;
  Parser parser;
  parser.header_limit(kHeaderLimit);
  parser.body_limit(static_cast<uint64_t>(options.max_body_bytes));
  arm(header_timeout_s);
  auto [error, bytes] = co_await http::async_read_header(socket_, buffer_, parser, kAwait);
  if (error == http::error::body_limit) take_head(parser, out);  // all of it has been read
  if (error) co_return co_await refuse(error_answer(error));
  if (auto wrong = take_head(parser, out)) co_return co_await refuse(std::move(wrong));
  if (!head_came()) co_return ReadResult::kClosed;
  const auto& head = parser.get();
  if (reserved_ && !shared_->rules.always_answered(out)) co_return co_await refuse(too_many_connections());
  const std::string_view encoding = head[http::field::content_encoding];
  if (!encoding.empty() && !boost::beast::iequals(encoding, "identity")) co_return co_await refuse(encoded_body(encoding));
  if (!parser.is_done()) {
    if (auto refusal = shared_->rules.refuse(out)) co_return co_await refuse(std::move(refusal));
    if (const ReadResult result = co_await read_body(parser, out); result != ReadResult::kRequest) co_return result;
  }
  disarm();
  if (!out.body_share) out.body_share = std::make_shared<BodyShare>(shared_->bodies);
  out.received_ns = now_ns();
  co_return ReadResult::kRequest;
}

std::optional<HttpResponse> HttpConnection::take_head(const Parser& parser, HttpRequest& out) {
  const auto& head = parser.get();
  keep_alive_ = parser.keep_alive() && !reserved_;
  http_1_0_ = head.version() < 11;
  out.method = std::string(head.method_string());
  head_only_ = out.method == "HEAD";
  out.authorization = std::string(head[http::field::authorization]);
  out.x_api_key = std::string(head["X-Api-Key"]);
  out.content_type = std::string(head[http::field::content_type]);
  out.accept_encoding = std::string(head[http::field::accept_encoding]);
  out.x_request_id = std::string(head["X-Request-Id"]);
  out.origin = std::string(head[http::field::origin]);
  out.host = std::string(head[http::field::host]);
  out.fetch_site = std::string(head["Sec-Fetch-Site"]);
  out.requested_method = std::string(head[http::field::access_control_request_method]);
  out.requested_headers = std::string(head[http::field::access_control_request_headers]);
  prepare(out);
  if (!split_target(head.target(), out)) {
    return to_response({400, "the request target is a URI without a host", "", "bad_request"});
  }
  out.by_anthropics_client = head.count("anthropic-version") > 0;
  anthropics_form_ = in_anthropics_form(out);
  // A body whose end this server would not see could be read as the next request (RFC 9112, 6.1).
  const std::string_view transfer = head[http::field::transfer_encoding];
  if (head.count(http::field::transfer_encoding) > 1 || (!transfer.empty() && !boost::beast::iequals(transfer, "chunked"))) {
    keep_alive_ = false;
    return to_response({501, "of transfer encodings only chunked is taken", "", "unsupported_encoding"});
  }
  if (says_its_host(head)) return std::nullopt;
  return to_response({400, "a request of HTTP/1.1 has one Host header", "", "bad_request"});
}

void HttpConnection::prepare(HttpRequest& head) {
  headers_ = shared_->rules.prepare(head);
  request_id_ = head.request_id;
  prepared_ = true;
}

asio::awaitable<HttpConnection::ReadResult> HttpConnection::read_body(Parser& parser, HttpRequest& out) {
  const auto length = parser.content_length();
  if (length && !shared_->bodies->has_room(*length)) {
    const Status full = too_many_bodies();
    co_return co_await refuse(refusal(full));
  }
  if (parser.get()[http::field::expect] == "100-continue") {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    auto [error, bytes] = co_await asio::async_write(socket_, asio::buffer(kContinue), kAwait);
    if (error) co_return ReadResult::kClosed;
  }
  arm(patience(shared_->options.body_timeout_s));
  auto share = std::make_shared<BodyShare>(shared_->bodies);
  parser.eager(true);
  while (!parser.is_done()) {
    auto [error, bytes] = co_await http::async_read_some(socket_, buffer_, parser, kAwait);
    if (error) co_return co_await refuse(error_answer(error));
    // Counted as it arrives: a client that only promises a large body takes nothing from others.
    const Status room = share->grow_to(static_cast<int64_t>(parser.get().body().size()));
    if (!room.ok()) co_return co_await refuse(refusal(room));
  }
  out.body = std::move(parser.get().body());
  out.body_share = std::move(share);
  co_return ReadResult::kRequest;
}

std::optional<HttpResponse> HttpConnection::error_answer(error_code error) const {
  if (timed_out_) return to_response({408, "the request did not arrive in time", "", "timeout"});
  if (error == http::error::body_limit) {
    return to_response({413, "the body is larger than --max-body-bytes (" +
                                 std::to_string(shared_->options.max_body_bytes) + ")", "", "too_large"});
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return to_response({431, "the headers are larger than 16 KiB", "", "too_large"});
  }
  if (error == http::error::partial_message) {
    return to_response({400, "the connection ended before the whole request had arrived", "", "bad_request"});
  }
  if (error.category() == make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream) {
    return to_response({400, "not an HTTP/1.1 request: " + error.message(), "", "bad_request"});
  }
  return std::nullopt;
}

asio::awaitable<HttpConnection::ReadResult> HttpConnection::refuse(std::optional<HttpResponse> response) {
  if (!response) co_return ReadResult::kClosed;
  HttpRequest unread;
  if (!prepared_) prepare(unread);
  if (anthropics_form_) word_as_anthropic(request_id_, *response);
  arm(kLingerSeconds);
  const std::string text = format_response(*response, {.head_only = head_only_, .headers = headers_});
  auto [error, bytes] = co_await asio::async_write(socket_, asio::buffer(text), kAwait);
  co_return error ? ReadResult::kClosed : ReadResult::kRefused;
}

asio::awaitable<void> HttpConnection::linger() {
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

asio::awaitable<bool> HttpConnection::answer(HttpRequest request) {
  auto self = shared_from_this();
  HttpAnswer::Wiring wiring;
  wiring.max_unsent_bytes = static_cast<size_t>(shared_->options.max_unsent_bytes);
  wiring.http_1_0 = http_1_0_;
  wiring.head_only = head_only_;
  wiring.headers = headers_;
  if (anthropics_form_) {
    wiring.reword = [id = request_id_](HttpResponse& response) { word_as_anthropic(id, response); };
  }
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

asio::awaitable<bool> HttpConnection::write_answer() {
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

// True when the peer has closed its side, whatever bytes it sent before that are still unread. A half-close behind a pipelined
// request counts too: its sender cannot be told from one that left.
bool HttpConnection::peer_closed() {
  pollfd poll_fd{.fd = socket_.native_handle(), .events = POLLRDHUP};
  return ::poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

asio::awaitable<void> HttpConnection::watch_peer() {
  for (;;) {
    auto [error] = co_await socket_.async_wait(tcp::socket::wait_read, kAwait);
    if (error) co_return;
    char byte;
    const ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n < 0) co_return;
    if (n > 0) {  // the next request is here already and hides a FIN behind it: only the peer's state tells
      if (peer_closed()) co_return;
      asio::steady_timer pause(executor(), std::chrono::seconds(1));
      co_await pause.async_wait(kAwait);
      continue;
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

}  // namespace tailrace
