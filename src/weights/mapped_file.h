// A file mapped for reading (or bytes in memory that stand for one, in tests), whose pages can be given back.
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

  // kDataLoss when the file on disk is now shorter than what was mapped. A read that meets a truncation between this
  // check and the access ends the process with exit code 2 and one line that names the file: see mapped_file.cpp.
  Status check_size() const;
  // Asks the kernel to read [data, data + size) ahead, in large sequential reads instead of page faults.
  void read_ahead(const std::byte* data, size_t size) const;
  // Gives the pages of [data, data + size) back; a later access reads them again.
  void release(const std::byte* data, size_t size) const;

 private:
  MappedFile() = default;

  std::string name_;
  std::span<const std::byte> bytes_;
  int fd_ = -1;    // -1: bytes in memory
  int guard_ = -1; // slot in the table of the SIGBUS handler, or -1
};

}  // namespace tailrace
