#include "server/child_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <utility>

namespace tailrace {
namespace {

// A port that was free a moment ago; serve fails clearly should somebody take it in between.
int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  ::close(fd);
  return bound ? ntohs(address.sin_port) : -1;
}

std::string last_line(const std::string& path) {
  std::ifstream in(path);
  std::string line, last;
  while (std::getline(in, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

// The child's side between fork and exec: async-signal-safe calls only.
[[noreturn]] void exec_child(const char* binary, char* const* argv, int log_fd) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  setpgid(0, 0);  // Ctrl-C in the terminal is for the chat
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(log_fd, 1);
  dup2(log_fd, 2);
  execv(binary, argv);
  _exit(127);
}

}  // namespace

Expected<ChildServer> ChildServer::start(const std::string& model, const std::vector<std::string>& extra_args) {
  const int port = free_port();
  char log_path[] = "/tmp/tailrace-chat-XXXXXX";
  const int log_fd = mkstemp(log_path);
  if (port < 0 || log_fd < 0) return fail(StatusCode::kInternal, "cannot get a free port or a temporary file");
  std::vector<std::string> args = {"tailrace", "serve", "--model", model, "--port", std::to_string(port)};
  args.insert(args.end(), extra_args.begin(), extra_args.end());
  std::vector<char*> argv;
  for (auto& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  char binary[4096];
  const ssize_t length = readlink("/proc/self/exe", binary, sizeof binary - 1);
  if (length <= 0) return fail(StatusCode::kInternal, "cannot find this program's own file");
  binary[length] = '\0';
  ChildServer child;
  child.log_path_ = log_path;
  child.address_.port = std::to_string(port);
  child.pid_ = fork();
  if (child.pid_ == 0) exec_child(binary, argv.data(), log_fd);
  ::close(log_fd);
  if (child.pid_ < 0) return fail(StatusCode::kInternal, "cannot start a process");
  return child;
}

ChildServer::ChildServer(ChildServer&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      log_path_(std::exchange(other.log_path_, "")),
      address_(std::move(other.address_)) {}

ChildServer::~ChildServer() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  if (!log_path_.empty()) unlink(log_path_.c_str());
}

Status ChildServer::wait_ready(const std::function<bool()>& stop) {
  ChatConnection connection(address_, stop);
  for (;;) {
    if (stop()) return Status(StatusCode::kCancelled, "stopped");
    const auto reply = connection.get("/health");
    if (reply && reply->status == 200) return Status();
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return Status(StatusCode::kUnavailable, "the server did not start: " + last_line(log_path_));
    }
    usleep(50'000);
  }
}

}  // namespace tailrace
