#include "server/user_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/read_whole_file.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr mode_t kOwners = S_IRUSR | S_IWUSR;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr int kMostCopies = 1000;

Status failed(const std::string& doing) { return invalid(doing + ": " + std::strerror(errno)); }

// A file that did not exist, under the owner of `like`.
Status write_new(const std::string& path, std::string_view text, const UserFile& like, mode_t mode) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOwners);
  if (fd < 0) return failed("cannot write " + path);
  bool written = true;
  while (written && !text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    written = count >= 0 || errno == EINTR;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
  const bool foreign = like.exists && (like.owner != ::geteuid() || like.group != ::getegid());
  written = written && (!foreign || ::fchown(fd, like.owner, like.group) == 0);
  written = written && ::fchmod(fd, mode) == 0 && ::fsync(fd) == 0;
  const Status status = written ? Status() : failed("cannot write " + path);
  ::close(fd);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

Expected<std::string> keep_copy(const UserFile& file, mode_t mode) {
  for (int i = 1; i <= kMostCopies; ++i) {
    std::string copy = file.real + ".bak" + (i > 1 ? std::to_string(i) : "");
    if (std::error_code error; fs::exists(fs::symlink_status(copy, error))) continue;
    if (Status status = write_new(copy, file.text, file, mode); !status.ok()) return fail(status);
    return copy;
  }
  return fail(invalid("there are too many copies of " + file.path + " already"));
}

// What is in a folder, as it is now, survives a crash of the machine.
void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

Expected<UserFile> look_at_user_file(const std::string& path) {
  UserFile out{.path = path, .real = path, .text = {}};
  std::error_code error, none;
  out.exists = fs::exists(path, error);
  if (!error && !out.exists && fs::is_symlink(path, none)) return fail(invalid(path + " is a link to nothing"));
  if (!error && out.exists) out.real = fs::canonical(path, error);
  if (error) return fail(invalid("cannot reach " + path + ": " + error.message()));
  if (!out.exists) return out;
  struct stat info {};
  if (::stat(out.real.c_str(), &info) != 0) return fail(failed("cannot read " + path));
  out.mode = info.st_mode & 07777;
  out.owner = info.st_uid;
  out.group = info.st_gid;
  auto text = read_whole_file(out.real, kMaxFileBytes);
  if (!text) return fail(invalid("cannot read " + text.error().message()));
  out.text = std::move(*text);
  return out;
}

Expected<Replacement> replace_user_file(const UserFile& file, std::string_view text, bool holds_key) {
  const fs::path folder = fs::path(file.real).parent_path();
  std::error_code error;
  if (!folder.empty()) fs::create_directories(folder, error);
  if (error) return fail(invalid("cannot make " + folder.string() + ": " + error.message()));
  Replacement out;
  out.tightened = file.exists && holds_key && (file.mode & kOthers) != 0;
  const mode_t mode = !file.exists ? kOwners : out.tightened ? file.mode & ~kOthers : file.mode;
  const std::string fresh = file.real + ".new-" + std::to_string(::getpid());
  if (Status status = write_new(fresh, text, file, mode); !status.ok()) return fail(status);
  Status status;
  if (file.exists) {
    auto copy = keep_copy(file, mode);
    if (copy) out.copy = std::move(*copy);
    else status = copy.error();
  }
  const auto now = look_at_user_file(file.path);
  const bool same = now && now->exists == file.exists && now->real == file.real && now->text == file.text;
  if (status.ok() && !same) status = invalid(file.path + " was changed meanwhile: nothing is written, try again");
  if (status.ok() && ::rename(fresh.c_str(), file.real.c_str()) != 0) status = failed("cannot replace " + file.path);
  if (!status.ok()) {
    ::unlink(fresh.c_str());
    if (!out.copy.empty()) ::unlink(out.copy.c_str());
    return fail(status);
  }
  sync_folder(folder.empty() ? "." : folder.string());
  return out;
}

}  // namespace tailrace
