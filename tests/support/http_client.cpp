#include "support/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace tailrace::test {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

void parse_head(const std::string& head, HttpReply& reply) {
  reply.status = std::atoi(head.c_str() + std::min(head.size(), head.find(' ') + 1));
  for (size_t at = head.find("\r\n"); at != std::string::npos && at + 2 < head.size();) {
    const size_t end = std::min(head.find("\r\n", at + 2), head.size());
    const std::string line = head.substr(at + 2, end - at - 2);
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) reply.headers[lower(line.substr(0, colon))] = line.substr(colon + 2);
    at = end == head.size() ? std::string::npos : end;
  }
}

}  // namespace

HttpConnection::HttpConnection(uint16_t port, int timeout_ms) : timeout_ms_(timeout_ms) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) close();
}

HttpConnection::~HttpConnection() { close(); }

void HttpConnection::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpConnection::shutdown_write() { ::shutdown(fd_, SHUT_WR); }

void HttpConnection::set_receive_buffer(int bytes) { setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes); }

bool HttpConnection::send_raw(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool HttpConnection::send_request(const std::string& method, const std::string& path, std::string_view body,
                                  const std::string& extra_headers) {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + extra_headers;
  if (method == "POST" || !body.empty()) {
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  text += "\r\n";
  return send_raw(text.append(body));
}

bool HttpConnection::fill() {
  pollfd poller{fd_, POLLIN, 0};
  if (fd_ < 0 || poll(&poller, 1, timeout_ms_) <= 0) return false;
  char buffer[1 << 16];
  const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
  if (n <= 0) return false;
  raw_.append(buffer, static_cast<size_t>(n));
  return true;
}

bool HttpConnection::read_until(const std::string& text) {
  while (raw_.find(text) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

bool HttpConnection::wait_closed() {
  pollfd poller{fd_, POLLIN, 0};
  char buffer[1 << 16];
  for (;;) {
    if (poll(&poller, 1, timeout_ms_) <= 0) return false;
    if (recv(fd_, buffer, sizeof buffer, 0) <= 0) return true;
  }
}

HttpReply HttpConnection::read_reply() {
  HttpReply reply;
  for (;;) {
    if (!read_until("\r\n\r\n")) return reply;
    const size_t end = raw_.find("\r\n\r\n");
    const std::string head = raw_.substr(0, end + 2);
    raw_.erase(0, end + 4);
    parse_head(head, reply);
    if (reply.status >= 200) break;
    reply.interim.push_back(head.substr(0, head.find("\r\n")));
    reply.headers.clear();
  }
  if (reply.headers["transfer-encoding"] == "chunked") {
    for (;;) {
      if (!read_until("\r\n")) return reply;
      const size_t line = raw_.find("\r\n");
      const size_t size = std::strtoul(raw_.c_str(), nullptr, 16);
      while (raw_.size() < line + 2 + size + 2) {
        if (!fill()) return reply;
      }
      reply.body.append(raw_, line + 2, size);
      raw_.erase(0, line + 2 + size + 2);
      if (size == 0) break;
    }
    reply.complete = true;
  } else if (reply.status == 204) {  // never a body
    reply.complete = true;
  } else if (reply.headers.count("content-length") != 0) {
    const size_t size = std::strtoul(reply.headers["content-length"].c_str(), nullptr, 10);
    while (raw_.size() < size) {
      if (!fill()) return reply;
    }
    reply.body = raw_.substr(0, size);
    raw_.erase(0, size);
    reply.complete = true;
  } else {
    while (fill()) {
    }
    reply.body = std::exchange(raw_, "");
    reply.complete = true;
  }
  return reply;
}

HttpReply http_get(uint16_t port, const std::string& path, const std::string& extra_headers) {
  HttpConnection connection(port);
  connection.send_request("GET", path, "", extra_headers);
  return connection.read_reply();
}

HttpReply http_post(uint16_t port, const std::string& path, std::string_view body, const std::string& extra_headers) {
  HttpConnection connection(port);
  connection.send_request("POST", path, body, extra_headers);
  return connection.read_reply();
}

std::vector<std::string> sse_data(const std::string& body) {
  std::vector<std::string> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = std::min(body.find('\n', at), body.size());
    if (body.compare(at, 6, "data: ") == 0) out.push_back(body.substr(at + 6, end - at - 6));
    at = end + 1;
  }
  return out;
}

}  // namespace tailrace::test
