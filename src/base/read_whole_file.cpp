#include "base/read_whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tailrace {
namespace {

constexpr size_t kPiece = size_t{1} << 16;

tl::unexpected<Status> failed(const std::string& path) {
  const StatusCode code = errno == ENOENT ? StatusCode::kNotFound : StatusCode::kDataLoss;
  return fail(code, path + ": " + std::strerror(errno));
}

Expected<std::string> read_to_end(int fd, const std::string& path, size_t max_bytes) {
  std::string out;
  for (;;) {
    const size_t size = out.size();
    out.resize(size + kPiece);
    const ssize_t count = ::read(fd, out.data() + size, kPiece);
    out.resize(size + static_cast<size_t>(count > 0 ? count : 0));
    if (count < 0 && errno != EINTR) return failed(path);
    if (count == 0) return out;
    if (out.size() > max_bytes) {
      return fail(StatusCode::kTooLarge,
                  path + ": holds more than " + std::to_string(max_bytes) + " bytes");
    }
  }
}

}  // namespace

Expected<std::string> read_whole_file(const std::string& path, size_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failed(path);
  auto out = read_to_end(fd, path, max_bytes);
  ::close(fd);
  return out;
}

}  // namespace tailrace
