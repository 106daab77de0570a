// HttpConnection: one accepted socket: reads requests, runs the handler, writes answers, watches the peer. Only this and
// http_listener.cpp see Asio and Beast.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>

#include "server/body_budget.h"
#include "server/http_answer.h"
#include "server/http_listener.h"

namespace tailrace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

class HttpConnection;

// Beyond --max-connections so many are accepted for what HttpHeadRules::always_answered says, one short request each.
inline constexpr int kReservedConnections = 16;
HttpResponse too_many_connections();

// What all connections of a listener share.
struct ListenerShared {
  ListenerShared(const HttpOptions& http_options, std::function<void()> on_large_end)
      : options(http_options),
        max_connections(http_options.max_connections),
        bodies(std::make_shared<BodyBudget>(http_options.max_total_body_bytes, std::move(on_large_end))) {}

  const HttpOptions options;
  int max_connections;                       // fewer than asked for where the open files' limit is low; set before use
  const std::shared_ptr<BodyBudget> bodies;  // a request may outlive the listener
  HttpListener::Handler handler;
  HttpHeadRules rules;
  std::function<void(const char*)> on_fault;  // may be null
  std::atomic<bool> draining{false};
  std::atomic<int> open{0}, open_reserved{0}, busy{0};
  std::mutex mutex;
  std::unordered_set<HttpConnection*> connections;  // guarded by mutex
  // Of them, those of whom the head of a request is awaited, the longest first; reserved ones apart. The same.
  std::list<HttpConnection*> waiting, waiting_reserved;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(tcp::socket socket, std::shared_ptr<ListenerShared> shared, bool reserved);
  // Joins the listener's list. Not in the constructor: a drain on another thread may ask a listed connection for a reference, and
  // there is none before make_shared has returned.
  void enlist();
  ~HttpConnection();

  // Closes the one whose request's head has been awaited longest: its place is another's from now on. False where none is
  // awaited: all are at work.
  static bool evict(ListenerShared& shared, bool reserved);

  asio::any_io_executor executor() { return socket_.get_executor(); }

  asio::awaitable<void> run();

  // The coroutine has ended, however it did.
  void finish();

  // Only when no executor runs.
  void close_now();

  // From any thread: closes the connection if it waits for a request, or whatever it does.
  void close(bool only_idle);

 private:
  enum class ReadResult { kRequest, kClosed, kRefused };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  static constexpr size_t kHeaderLimit = 16 << 10;

  void set_socket_options();

  // From await_head() on it may be evicted, until head_came(). Both false when it has been.
  bool await_head();
  bool head_came();
  std::list<HttpConnection*>& waiting_list() { return reserved_ ? shared_->waiting_reserved : shared_->waiting; }
  void leave_waiting_list();  // under the mutex

  // Whether a part of a request is here whose answer is not yet written.
  void set_busy(bool busy);

  // How long a part of a request may take to arrive, `seconds` unless the connection is reserved.
  int patience(int seconds) const;
  // Operations on the socket are cancelled once `seconds` have passed, and those begun later, until another arm() or disarm().
  void arm(int seconds);
  void await_deadline();
  void disarm() { deadline_.expires_at(std::chrono::steady_clock::time_point::max()); }

  asio::awaitable<ReadResult> read_request(HttpRequest& out, bool first);
  // Takes the head apart; the answer to one that is no request.
  std::optional<HttpResponse> take_head(const Parser& parser, HttpRequest& out);
  void prepare(HttpRequest& head);
  asio::awaitable<ReadResult> read_body(Parser& parser, HttpRequest& out);

  // Why a request could not be read; nothing where nobody listens any more.
  std::optional<HttpResponse> error_answer(error_code error) const;
  asio::awaitable<ReadResult> refuse(std::optional<HttpResponse> response);

  // Closing with unread input would reset the connection and lose the refusal: reads and drops for a while.
  asio::awaitable<void> linger();

  // Runs the handler and writes its answer; false when the connection is to be closed.
  asio::awaitable<bool> answer(HttpRequest request);

  // True when the whole answer was written.
  asio::awaitable<bool> write_answer();

  // Returns when the peer has gone.
  bool peer_closed();
  asio::awaitable<void> watch_peer();

  tcp::socket socket_;
  asio::steady_timer deadline_, wake_;
  boost::beast::flat_buffer buffer_{kHeaderLimit + (1 << 16)};
  std::shared_ptr<ListenerShared> shared_;
  const bool reserved_;
  std::optional<std::list<HttpConnection*>::iterator> waiting_;  // guarded by the listener's mutex
  bool evicted_ = false;                                         // the same
  std::shared_ptr<HttpAnswer> answer_;
  std::atomic<bool> keep_alive_{true};  // also read by whoever formats a head
  bool busy_ = false, timed_out_ = false, http_1_0_ = false;
  bool prepared_ = false, head_only_ = false;
  HttpHeaders headers_;  // of every answer to this request, once prepared
  std::string request_id_;        // of the same
  bool anthropics_form_ = false;  // of its answer, known once its path is
};

}  // namespace tailrace
