// A file mapped for its headers (or bytes in memory that stand for one, in tests), whose large parts are read apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace tailrace {

class MappedFile {
 public:
  // Maps a regular file. Errors name the file: kNotFound, kInvalidArgument (a directory, a device), kDataLoss (empty).
  static Expected<std::shared_ptr<MappedFile>> open(const std::string& path);
  // Stands for a file called `name`; `bytes` must outlive the object.
  static std::shared_ptr<MappedFile> from_memory(std::span<const std::byte> bytes, const std::string& name);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& name() const { return name_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  bool contains(const std::byte* data) const {
    return data >= bytes_.data() && data < bytes_.data() + bytes_.size();
  }

  // Reads [data, data + size) of the mapping into `out` by system calls: no page faults, and no page of the mapping
  // becomes resident. kDataLoss when the file on disk is now shorter than what was mapped. (An access to the mapping
  // that meets a truncation ends the process with exit code 2 and one line that names the file: see mapped_file.cpp.)
  Status read(const std::byte* data, size_t size, std::byte* out) const;

 private:
  MappedFile() = default;
  Status not_read(int error) const;

  std::string name_;
  std::span<const std::byte> bytes_;
  int fd_ = -1;    // -1: bytes in memory
  int guard_ = -1; // slot in the table of the SIGBUS handler, or -1
};

}  // namespace tailrace
