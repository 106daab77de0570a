#include "server/random_id.h"

#include <unistd.h>

#include "base/check.h"

namespace tailrace {

uint64_t random_bits() {
  uint64_t bits = 0;
  CHECK(getentropy(&bits, sizeof bits) == 0);
  return bits;
}

std::string random_id(std::string_view prefix) {
  constexpr std::string_view kSymbols = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr size_t kLength = 22;  // of base 62: the smallest that holds 128 bits
  unsigned __int128 bits = static_cast<unsigned __int128>(random_bits()) << 64 | random_bits();
  std::string out(prefix);
  for (size_t i = 0; i < kLength; ++i) {
    out += kSymbols[static_cast<size_t>(bits % kSymbols.size())];
    bits /= kSymbols.size();
  }
  return out;
}

}  // namespace tailrace
