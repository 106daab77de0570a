#include "weights/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

// A page of a mapping that lies beyond the end of its file (the file was cut after it was mapped) raises SIGBUS when it
// is touched. Tensors come by read(), which meets it as an ordinary Status; for headers and descriptions a handler
// writes one line with the file's name and ends the process with exit code 2. A SIGBUS outside our mappings goes to
// whoever handled it before.

namespace tailrace {
namespace {

constexpr int kMaxGuards = 1024;

// Written under g_guard_mutex, read by the signal handler without it: begin is published last and cleared first.
struct Guard {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  char message[512];
};

Guard g_guards[kMaxGuards];
std::mutex g_guard_mutex;
struct sigaction g_previous_action;

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Guard& guard : g_guards) {
    const uintptr_t begin = guard.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= guard.end.load(std::memory_order_relaxed)) continue;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, guard.message, strlen(guard.message));
    _exit(2);
  }
  sigaction(signal, &g_previous_action, nullptr);  // the faulting access runs again and meets that one
}

// Returns the slot, or -1 when all are taken (the mapping then works without the handler's message).
int add_guard(std::span<const std::byte> bytes, const std::string& name) {
  std::lock_guard lock(g_guard_mutex);
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, &g_previous_action) == 0;
  }();
  if (!installed) return -1;
  for (int i = 0; i < kMaxGuards; ++i) {
    Guard& guard = g_guards[i];
    if (guard.begin.load(std::memory_order_relaxed) != 0) continue;
    const std::string message =
        "tailrace: " + name.substr(0, 400) + ": the file was truncated, or its disk failed, while it was being read\n";
    strncpy(guard.message, message.c_str(), sizeof guard.message - 1);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data());
    guard.end.store(begin + bytes.size(), std::memory_order_relaxed);
    guard.begin.store(begin, std::memory_order_release);
    return i;
  }
  return -1;
}

void remove_guard(int slot) {
  std::lock_guard lock(g_guard_mutex);
  g_guards[slot].begin.store(0, std::memory_order_release);
}

std::string errno_text() { return std::strerror(errno); }

}  // namespace

Expected<std::shared_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->name_ = path;
  file->fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd_ < 0) {
    return fail(errno == ENOENT ? StatusCode::kNotFound : StatusCode::kInvalidArgument, path + ": " + errno_text());
  }
  struct stat info;
  if (fstat(file->fd_, &info) != 0) return fail(StatusCode::kInternal, path + ": " + errno_text());
  if (!S_ISREG(info.st_mode)) return fail(StatusCode::kInvalidArgument, path + ": not a regular file");
  if (info.st_size == 0) return fail(StatusCode::kDataLoss, path + ": the file is empty");
  void* data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file->fd_, 0);
  if (data == MAP_FAILED) return fail(StatusCode::kInternal, path + ": cannot be mapped: " + errno_text());
  file->bytes_ = {static_cast<const std::byte*>(data), static_cast<size_t>(info.st_size)};
  file->guard_ = add_guard(file->bytes_, path);
  return file;
}

std::shared_ptr<MappedFile> MappedFile::from_memory(std::span<const std::byte> bytes, const std::string& name) {
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->name_ = name;
  file->bytes_ = bytes;
  return file;
}

MappedFile::~MappedFile() {
  if (guard_ >= 0) remove_guard(guard_);
  if (fd_ < 0) return;
  if (bytes_.data()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  ::close(fd_);
}

// error: errno, or 0 where the file ended.
Status MappedFile::not_read(int error) const {
  struct stat info;
  if (error != 0) return Status(StatusCode::kDataLoss, name_ + ": cannot be read: " + std::strerror(error));
  if (fstat(fd_, &info) != 0) return Status(StatusCode::kInternal, name_ + ": " + errno_text());
  return Status(StatusCode::kDataLoss, name_ + ": the file was truncated after it was opened, from " +
                                           std::to_string(bytes_.size()) + " to " + std::to_string(info.st_size) +
                                           " bytes");
}

Status MappedFile::read(const std::byte* data, size_t size, std::byte* out) const {
  if (fd_ < 0) {
    std::copy_n(data, size, out);
    return Status();
  }
  auto at = static_cast<off_t>(data - bytes_.data());
  // All of it is asked for at once: what the system reads ahead by itself is too little for a fast disk.
  posix_fadvise(fd_, at, static_cast<off_t>(size), POSIX_FADV_WILLNEED);
  while (size > 0) {
    const ssize_t got = pread(fd_, out, size, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return not_read(got < 0 ? errno : 0);
    out += got, at += got, size -= static_cast<size_t>(got);
  }
  return Status();
}

}  // namespace tailrace
