// SeedSource: a stream of random numbers for sampling seeds; and what is as short as ids of tool calls must be.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tailrace {

// SplitMix64 (Steele, Lea, Flood 2014). Thread-safe.
class SeedSource {
 public:
  explicit SeedSource(uint64_t start) : state_(start) {}
  uint64_t next() {
    uint64_t z = state_.fetch_add(0x9E3779B97F4A7C15ull) + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

 private:
  std::atomic<uint64_t> state_;
};

// `length` of the 62 letters and digits, drawn from `seed`; at most 10 are independent.
inline std::string letters_and_digits(uint64_t seed, size_t length) {
  constexpr std::string_view kSymbols = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  uint64_t bits = SeedSource(seed).next();
  std::string out;
  for (; out.size() < length; bits /= kSymbols.size()) out += kSymbols[bits % kSymbols.size()];
  return out;
}

}  // namespace tailrace
