// The linear kernels in plain C++: any machine, and whatever vector units the compiler finds.
#include <cmath>
#include <cstring>

#include "kernels/cpu/linear_dense.h"

namespace tailrace::cpu {
namespace {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Branch-free, so that it vectorises: the exponent is rebiased by an exact multiplication.
inline float half_bits_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const float finite = bits_to_float(magnitude << 13) * 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &finite, 4);
  if (magnitude >= 0x7c00u) bits = 0x7f800000u | (magnitude << 13);
  return bits_to_float(bits | static_cast<uint32_t>(half & 0x8000u) << 16);
}

struct Portable {
  static constexpr int kDirectRows = 1;
  static constexpr int kPanelRows = 2;
  static constexpr int kPanelTiles = 1;
  static constexpr int kPrefetchBytes = 0;

  typedef int16_t Shorts __attribute__((vector_size(16)));
  typedef uint16_t UnsignedShorts __attribute__((vector_size(16)));
  typedef int32_t Ints __attribute__((vector_size(16)));
  typedef uint32_t UnsignedInts __attribute__((vector_size(16)));

  struct V { float v[kTile]; };
  struct I { int32_t v[kTile]; };
  struct W { uint8_t v[kVector]; };

  template <class F>
  static V each(const F& f) {
    V out;
    for (int i = 0; i < kTile; ++i) out.v[i] = f(i);
    return out;
  }
  static V zero() { return each([](int) { return 0.0f; }); }
  static V set1(float x) { return each([x](int) { return x; }); }
  static V load(const float* p) { return each([p](int i) { return p[i]; }); }
  static V load_n(const float* p, int n) { return each([p, n](int i) { return i < n ? p[i] : 0.0f; }); }
  static V load_u8(const uint8_t* p) { return each([p](int i) { return static_cast<float>(p[i]); }); }
  static V load_s8(const uint8_t* p) {
    return each([p](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
  }
  static V load_half(const uint8_t* p) {
    uint16_t bits[kTile];
    std::memcpy(bits, p, sizeof(bits));
    return each([&bits](int i) { return half_bits_to_float(bits[i]); });
  }
  // 2^(e - 128), 0 for e = 0.
  static V load_half_e8m0(const uint8_t* p) {
    return each([p](int i) { return bits_to_float(static_cast<uint32_t>(p[i]) << 23) * 0.5f; });
  }
  static W look_up(const uint8_t* table, W nibbles) {
    for (uint8_t& code : nibbles.v) code = table[code];
    return nibbles;
  }
  // Exponent and mantissa at a float's place are 2^-120 of the value, subnormals included. NaN reads as 480.
  static V load_e4m3(const uint8_t* p) {
    return each([p](int i) {
      const uint32_t byte = p[i];
      return bits_to_float((byte & 0x7f) << 20 | (byte & 0x80) << 24) * 0x1p120f;
    });
  }
  static void store(float* p, const V& x) { std::memcpy(p, x.v, sizeof(x.v)); }
  static void store_n(float* p, const V& x, int n) { std::memcpy(p, x.v, sizeof(float) * n); }
  static V add(const V& a, const V& b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
  static V sub(const V& a, const V& b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
  static V mul(const V& a, const V& b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
  // Two roundings where the target has no fused instruction: a library call per lane would cost too much.
  static V fma(const V& a, const V& b, const V& c) {
#ifdef __FP_FAST_FMAF
    return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
    return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
#endif
  }

  static I set1_int(int32_t x) {
    I out;
    for (int i = 0; i < kTile; ++i) out.v[i] = x;
    return out;
  }
  static V to_float(const I& x) { return each([&x](int i) { return static_cast<float>(x.v[i]); }); }
  // In 16-bit lanes, two per row: codes of up to 6 bits leave room for the sum of two products, 8 bits for one.
  template <int Bits>
  static I dot(const I& acc, const W& w, int32_t q) {
    int8_t x[4];
    std::memcpy(x, &q, 4);
    Shorts even, odd;
    for (int i = 0; i < 8; ++i) {
      even[i] = x[i % 2 * 2];
      odd[i] = x[i % 2 * 2 + 1];
    }
    I out = acc;
    for (int part = 0; part < 4; ++part) {
      UnsignedShorts codes;
      Ints sums;
      std::memcpy(&codes, w.v + 16 * part, 16);
      std::memcpy(&sums, out.v + 4 * part, 16);
      const Shorts first = reinterpret_cast<Shorts>(codes & 255) * even;
      const Shorts second = reinterpret_cast<Shorts>(codes >> 8) * odd;
      if constexpr (Bits < 8) {
        sums += sum_pairs(first + second);
      } else {
        sums += sum_pairs(first) + sum_pairs(second);
      }
      std::memcpy(out.v + 4 * part, &sums, 16);
    }
    return out;
  }
  static Ints sum_pairs(Shorts x) {
    const Ints pairs = reinterpret_cast<Ints>(x);
    return (reinterpret_cast<Ints>(reinterpret_cast<UnsignedInts>(pairs) << 16) >> 16) + (pairs >> 16);
  }

  template <int Bits>
  static void unpack(const uint8_t* codes, W (&w)[kQuads]) {
    if constexpr (Bits == 8) {
      for (int g = 0; g < kQuads; ++g) std::memcpy(w[g].v, codes + g * kVector, kVector);
      return;
    }
    for (int g = 0; g < kQuads; ++g) {
      const uint8_t* nibbles = codes + g % 4 * kVector;
      const uint8_t* top = codes + (Bits == 6 ? 4 + g / 4 : 4) * kVector;
      for (int i = 0; i < kVector; ++i) {
        uint8_t code = g < 4 ? nibbles[i] & 15 : nibbles[i] >> 4;
        if constexpr (Bits == 5) code |= (top[i] >> g & 1) << 4;
        if constexpr (Bits == 6) code |= (top[i] >> 2 * (g % 4) & 3) << 4;
        w[g].v[i] = code;
      }
    }
  }
  static W load_codes(const uint8_t* p) {
    W w;
    std::memcpy(w.v, p, kVector);
    return w;
  }
  static void store_codes(uint8_t* p, const W& w) { std::memcpy(p, w.v, kVector); }
  static void prefetch_l2(const uint8_t*) {}

  static void load_bf16_pairs(const uint8_t* p, V (&w)[2]) {
    uint16_t bits[2 * kTile];
    std::memcpy(bits, p, sizeof(bits));
    for (int j = 0; j < 2; ++j) {
      w[j] = each([&bits, j](int i) { return bits_to_float(static_cast<uint32_t>(bits[2 * i + j]) << 16); });
    }
  }
};

void quantise_row(const float* x, int64_t k, InputBlock* out) {
  for (int64_t b = 0; b < k / kBlock; ++b, x += kBlock, ++out) {
    uint32_t largest_bits = 0;  // compared as integers, so that a NaN is the largest
    for (int i = 0; i < kBlock; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, 4);
      bits &= 0x7fffffffu;
      largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    const float largest = bits_to_float(largest_bits);
    const bool finite = largest_bits < 0x7f800000u;
    const float inverse = finite && largest >= kSmallestInput ? 127.0f / largest : 0.0f;
    for (int i = 0; i < kBlock; ++i) {
      out->q[i] = finite ? static_cast<int8_t>(static_cast<int>(nearbyintf(x[i] * inverse))) : 127;
    }
    int32_t half[2] = {0, 0};
    for (int i = 0; i < kBlock; ++i) half[i / (kBlock / 2)] += out->q[i];
    finish_input_block(inverse == 0.0f && finite ? 0.0f : largest * kOver127, half[0], half[1], *out);
  }
}

}  // namespace

const LinearKernels* portable_kernels() {
  static constexpr LinearKernels kernels = {"portable", isa_linear<Portable>, quantise_row};
  return &kernels;
}

}  // namespace tailrace::cpu
