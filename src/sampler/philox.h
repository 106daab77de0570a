// Philox4x32-10 (Salmon et al. 2011): a random number is a pure function of its key and counter, so a draw depends on the
// request's seed, choice and position alone, never on its neighbours or its slot.
#pragma once

#include <array>
#include <cstdint>

namespace tailrace {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * counter[0];
    const uint64_t b = 0xCD9E8D57ull * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits, for the token at `position` of choice `choice_index` under `seed`.
inline double uniform_draw(uint64_t seed, uint32_t choice_index, uint32_t position) {
  const auto bits = philox4x32({position, choice_index, 0, 0},
                               {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t word = (static_cast<uint64_t>(bits[1]) << 32) | bits[0];
  return static_cast<double>(word >> 11) * 0x1.0p-53;
}

}  // namespace tailrace
