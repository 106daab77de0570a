// Seeded random numbers that come out the same with every standard library.
#pragma once

#include <cstdint>

namespace tailrace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull) {}

  uint64_t next() {  // splitmix64
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  // Uniform in [low, high].
  int32_t between(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(next() % uint64_t(high - low + 1));
  }
  bool one_in(int32_t n) { return next() % uint64_t(n) == 0; }
  template <typename T, int n>
  const T& pick(const T (&values)[n]) {
    return values[next() % n];
  }

 private:
  uint64_t state_;
};

}  // namespace tailrace
