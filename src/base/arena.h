// ArenaCursor: cuts aligned arrays from one claimed range of memory; over a null base it only counts the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tailrace {

class ArenaCursor {
 public:
  explicit ArenaCursor(void* base) : base_(static_cast<std::byte*>(base)) {}

  // Array of `count` elements, aligned to 64 bytes if the base is; null while counting.
  template <typename T>
  T* take(int64_t count) {
    T* at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return at;
  }

  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

}  // namespace tailrace
