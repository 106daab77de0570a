// Philox4x32-10 (Salmon et al. 2011): a random number is a pure function of its key and counter, so a draw depends on the
// request's seed, choice and position alone, never on its neighbours or its slot.
#pragma once

#include <array>
#include <cstdint>

// CUDA compiles the same lines for the device.
#ifdef __CUDACC__
#define TAILRACE_HD __host__ __device__
#else
#define TAILRACE_HD
#endif

namespace tailrace {

// Encrypts counter[0..3] in place under key (k0, k1).
TAILRACE_HD inline void philox_rounds(uint32_t* counter, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * counter[0];
    const uint64_t b = 0xCD9E8D57ull * counter[2];
    counter[0] = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ k0;
    counter[1] = static_cast<uint32_t>(b);
    counter[2] = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ k1;
    counter[3] = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  philox_rounds(counter.data(), key[0], key[1]);
  return counter;
}

// Uniform in [0, 1) with 53 bits, for the token at `position` of choice `choice_index` under `seed`.
TAILRACE_HD inline double uniform_draw(uint64_t seed, uint32_t choice_index, uint32_t position) {
  uint32_t bits[4] = {position, choice_index, 0, 0};
  philox_rounds(bits, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint64_t word = (static_cast<uint64_t>(bits[1]) << 32) | bits[0];
  return static_cast<double>(word >> 11) * 0x1.0p-53;
}

}  // namespace tailrace
