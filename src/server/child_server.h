// ChildServer: a `tailrace serve` process that `tailrace chat` starts and ends with itself.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "server/chat_connection.h"

namespace tailrace {

class ChildServer {
 public:
  // Starts this program's own binary with serve on a free port of 127.0.0.1; its output goes to a temporary file.
  static Expected<ChildServer> start(const std::string& model, const std::vector<std::string>& extra_args);
  ChildServer(ChildServer&& other) noexcept;
  ~ChildServer();  // SIGTERM, then waits

  const ServerAddress& address() const { return address_; }
  // Waits until /health says 200. The error holds the last line the process printed.
  Status wait_ready(const std::function<bool()>& stop);

 private:
  ChildServer() = default;

  pid_t pid_ = -1;
  std::string log_path_;
  ServerAddress address_;
};

}  // namespace tailrace
