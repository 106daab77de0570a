// Claims: which allocation of GPU memory a claim is cut from, so that what is taken stays close to what is claimed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tailrace::cuda {

inline constexpr size_t kClaimAlign = 256;
inline constexpr size_t kChunkBytes = size_t{1} << 30;         // shared by small claims
inline constexpr size_t kOwnChunkBytes = size_t{64} << 20;     // a claim of so much is an allocation of its own

struct Chunk {
  std::byte* base = nullptr;
  size_t bytes = 0, used = 0;

  std::byte* take(size_t claim) {
    std::byte* at = base + used;
    used += claim;
    return at;
  }
};

constexpr size_t rounded_claim(size_t bytes) {
  return std::max<size_t>((bytes + kClaimAlign - 1) / kClaimAlign, 1) * kClaimAlign;
}

// The chunk that `claim` bytes are to be taken from, or null where there is no memory for them. Ends that a larger claim left
// are filled before memory is taken. allocate(bytes): a chunk, or one of no bytes.
template <typename Allocate>
Chunk* chunk_for(std::vector<Chunk>& chunks, size_t claim, const Allocate& allocate) {
  const auto room = [claim](const Chunk& chunk) { return chunk.bytes - chunk.used >= claim; };
  const auto at = std::find_if(chunks.begin(), chunks.end(), room);
  if (at != chunks.end()) return &*at;
  Chunk made = allocate(claim >= kOwnChunkBytes ? claim : kChunkBytes);
  if (made.bytes == 0) made = allocate(claim);  // the last of the memory: no room for a chunk, but perhaps for the claim
  return made.bytes == 0 ? nullptr : &chunks.emplace_back(made);
}

}  // namespace tailrace::cuda
