#include "server/chat_connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tailrace {
namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

int connect_to(const ServerAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found) != 0) return -1;
  int fd = -1;
  for (addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next) {
    fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen) != 0) {
      ::close(fd);
      fd = -1;
    }
  }
  freeaddrinfo(found);
  return fd;
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Takes a response apart while it arrives.
class ResponseReader {
 public:
  explicit ResponseReader(const std::function<void(std::string_view)>& on_event) : on_event_(on_event) {}

  void feed(std::string_view bytes) {
    raw_.append(bytes);
    while (!done_ && step()) {
    }
  }
  void end() {
    if (head_done_ && !chunked_ && length_ < 0) done_ = true;
  }
  bool done() const { return done_; }
  PlainReply take() { return {status_, std::move(body_)}; }

 private:
  bool step() {
    if (!head_done_) return read_head();
    if (!chunked_) return read_plain();
    const size_t line = raw_.find("\r\n");
    if (line == std::string::npos) return false;
    const size_t size = std::strtoul(raw_.c_str(), nullptr, 16);
    if (raw_.size() < line + 2 + size + 2) return false;
    take_body(std::string_view(raw_).substr(line + 2, size));
    raw_.erase(0, line + 2 + size + 2);
    done_ = size == 0;
    return true;
  }

  bool read_head() {
    const size_t end = raw_.find("\r\n\r\n");
    if (end == std::string::npos) return false;
    std::string head = raw_.substr(0, end + 2);
    raw_.erase(0, end + 4);
    std::transform(head.begin(), head.end(), head.begin(), [](unsigned char c) { return std::tolower(c); });
    status_ = std::atoi(head.c_str() + std::min(head.size(), head.find(' ') + 1));
    if (status_ < 200) return true;  // an interim response
    head_done_ = true;
    chunked_ = head.find("\r\ntransfer-encoding: chunked\r\n") != std::string::npos;
    events_ = status_ == 200 && head.find("\r\ncontent-type: text/event-stream") != std::string::npos;
    const size_t length = head.find("\r\ncontent-length: ");
    if (length != std::string::npos) length_ = std::atoll(head.c_str() + length + 18);
    return true;
  }

  bool read_plain() {
    take_body(raw_);
    raw_.clear();
    if (length_ >= 0 && static_cast<int64_t>(body_.size()) >= length_) done_ = true;
    return false;
  }

  void take_body(std::string_view bytes) {
    body_.append(bytes);
    if (!events_) return;
    for (size_t end; (end = body_.find('\n')) != std::string::npos; body_.erase(0, end + 1)) {
      constexpr std::string_view kData = "data: ";
      const std::string_view line = std::string_view(body_).substr(0, end);
      if (line.substr(0, kData.size()) == kData && on_event_) on_event_(line.substr(kData.size()));
    }
  }

  const std::function<void(std::string_view)>& on_event_;
  std::string raw_, body_;
  int status_ = 0;
  int64_t length_ = -1;
  bool head_done_ = false, chunked_ = false, events_ = false, done_ = false;
};

}  // namespace

Expected<ServerAddress> address_of(const Url& url, const std::string& default_port) {
  if (url.secure) return fail(StatusCode::kUnsupported, "https is not spoken here");
  return ServerAddress{url.host, url.port.empty() ? default_port : url.port, url.path, ""};
}

std::string ChatConnection::headers() const {
  std::string out = " HTTP/1.1\r\nHost: " + authority_of(address_.host, address_.port) + "\r\nConnection: close\r\n";
  if (!address_.api_key.empty()) out += "Authorization: Bearer " + address_.api_key + "\r\n";
  return out;
}

Expected<PlainReply> ChatConnection::get(const std::string& path) {
  return exchange("GET " + address_.path + path + headers() + "\r\n", nullptr);
}

Expected<PlainReply> ChatConnection::post(const std::string& path, const std::string& body,
                                          const std::function<void(std::string_view)>& on_event) {
  return exchange("POST " + address_.path + path + headers() + "Content-Type: application/json\r\nContent-Length: " +
                      std::to_string(body.size()) + "\r\n\r\n" + body,
                  on_event);
}

Expected<PlainReply> ChatConnection::exchange(const std::string& request,
                                              const std::function<void(std::string_view)>& on_event) {
  const std::string where = authority_of(address_.host, address_.port);
  const Socket socket(connect_to(address_));
  if (socket.fd() < 0) return fail(StatusCode::kUnavailable, "cannot connect to " + where);
  if (!send_all(socket.fd(), request)) return fail(StatusCode::kUnavailable, where + " closed the connection");
  ResponseReader reader(on_event);
  char buffer[1 << 14];
  while (!reader.done()) {
    if (stop_()) return fail(StatusCode::kCancelled, "stopped");
    pollfd poller{socket.fd(), POLLIN, 0};
    if (poll(&poller, 1, 100) <= 0) continue;
    const ssize_t n = recv(socket.fd(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) {
      reader.feed(std::string_view(buffer, static_cast<size_t>(n)));
      continue;
    }
    reader.end();
    if (!reader.done()) return fail(StatusCode::kUnavailable, where + " ended the answer early");
  }
  return reader.take();
}

}  // namespace tailrace
