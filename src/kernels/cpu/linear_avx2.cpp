// The linear kernels on AVX2 (with FMA and F16C). A 64-byte vector is two registers of 8 rows.
#include "kernels/cpu/linear_dense.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <cpuid.h>
#include <immintrin.h>

namespace tailrace::cpu {
namespace {

struct Avx2 {
  static constexpr int kDirectRows = 2;
  static constexpr int kPanelRows = 3;  // x 2 registers: 6 integer sums of 16 registers; float sums may spill
  static constexpr int kPanelTiles = 1;
  static constexpr int kPrefetchBytes = 1024;

  struct V { __m256 a, b; };
  struct I { __m256i a, b; };
  using W = I;

  static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  // All ones in the lanes below n.
  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static V load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, first(n)), _mm256_maskload_ps(p + 8, first(n - 8))};
  }
  static V load_u8(const uint8_t* p) {
    return to_float({_mm256_cvtepu8_epi32(bytes_8(p)), _mm256_cvtepu8_epi32(bytes_8(p + 8))});
  }
  static V load_s8(const uint8_t* p) {
    return to_float({_mm256_cvtepi8_epi32(bytes_8(p)), _mm256_cvtepi8_epi32(bytes_8(p + 8))});
  }
  static V load_half(const uint8_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
  }
  // 2^(e - 128), 0 for e = 0.
  static __m256 half_e8m0_8(const uint8_t* p) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes_8(p)), 23);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0.5f));
  }
  static V load_half_e8m0(const uint8_t* p) { return {half_e8m0_8(p), half_e8m0_8(p + 8)}; }
  static W look_up(const uint8_t* table, W nibbles) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return {_mm256_shuffle_epi8(both, nibbles.a), _mm256_shuffle_epi8(both, nibbles.b)};
  }
  // Exponent and mantissa at a float's place are 2^-120 of the value, subnormals included. NaN reads as 480.
  static __m256 e4m3_8(const uint8_t* p) {
    const __m256i bytes = _mm256_cvtepu8_epi32(bytes_8(p));
    const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(0x7f)), 20);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(0x80)), 24);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(magnitude, sign)), _mm256_set1_ps(0x1p120f));
  }
  static V load_e4m3(const uint8_t* p) { return {e4m3_8(p), e4m3_8(p + 8)}; }
  static __m128i bytes_8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
  static void store(float* p, V x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static void store_n(float* p, V x, int n) {
    _mm256_maskstore_ps(p, first(n), x.a);
    _mm256_maskstore_ps(p + 8, first(n - 8), x.b);
  }
  static V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }

  static I set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static V to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
  // maddubs saturates at 16 bits: codes of up to 6 bits cannot reach that (2 * 63 * 127), 8 bits go as two nibbles.
  template <int Bits>
  static __m256i dot_8(__m256i acc, __m256i w, __m256i q) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (Bits < 8) return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, q), ones));
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i lows = _mm256_and_si256(w, low), highs = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
    const __m256i low_sums = _mm256_madd_epi16(_mm256_maddubs_epi16(lows, q), ones);
    const __m256i high_sums = _mm256_madd_epi16(_mm256_maddubs_epi16(highs, q), _mm256_set1_epi16(16));
    return _mm256_add_epi32(acc, _mm256_add_epi32(low_sums, high_sums));
  }
  template <int Bits>
  static I dot(I acc, W w, int32_t q) {
    const __m256i x = _mm256_set1_epi32(q);
    return {dot_8<Bits>(acc.a, w.a, x), dot_8<Bits>(acc.b, w.b, x)};
  }

  template <int Bits>
  static void unpack_8(const uint8_t* codes, int at, __m256i (&w)[kQuads]) {
    const auto load = [codes, at](int vector) {
      return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + vector * kVector + at));
    };
    const __m256i low = _mm256_set1_epi8(15);
    for (int g = 0; g < kQuads; ++g) {
      if constexpr (Bits == 8) {
        w[g] = load(g);
        continue;
      }
      const __m256i nibbles = load(g % 4);
      w[g] = _mm256_and_si256(g < 4 ? nibbles : _mm256_srli_epi16(nibbles, 4), low);
      if constexpr (Bits == 5 || Bits == 6) {
        const __m256i top = load(Bits == 6 ? 4 + g / 4 : 4);
        const int left = Bits == 5 ? 4 - g : 4 - 2 * (g % 4);
        const __m256i bits = left >= 0 ? _mm256_slli_epi16(top, left) : _mm256_srli_epi16(top, -left);
        w[g] = _mm256_or_si256(w[g], _mm256_and_si256(bits, _mm256_set1_epi8(Bits == 5 ? 0x10 : 0x30)));
      }
    }
  }
  template <int Bits>
  static void unpack(const uint8_t* codes, W (&w)[kQuads]) {
    __m256i a[kQuads], b[kQuads];
    unpack_8<Bits>(codes, 0, a);
    unpack_8<Bits>(codes, 32, b);
    TAILRACE_UNROLL
    for (int g = 0; g < kQuads; ++g) w[g] = {a[g], b[g]};
  }
  static W load_codes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  static void store_codes(uint8_t* p, W w) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), w.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), w.b);
  }
  static void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_l2(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

  static void load_bf16_pairs(const uint8_t* p, V (&w)[2]) {
    const W pairs = load_codes(p);
    const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    w[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(pairs.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(pairs.b, 16))};
    w[1] = {_mm256_castsi256_ps(_mm256_and_si256(pairs.a, odd)), _mm256_castsi256_ps(_mm256_and_si256(pairs.b, odd))};
  }
};

inline __m256i load_ints(const float* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

// The largest |x| of a block, compared as integers, so that a NaN is the largest.
inline uint32_t largest_magnitude(const float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < kBlock; i += 8) {
    largest = _mm256_max_epu32(largest, _mm256_and_si256(load_ints(x + i), magnitude));
  }
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1))));
}

inline int32_t sum_lanes(__m128i x) {
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

void quantise_row(const float* x, int64_t k, InputBlock* out) {
  for (int64_t b = 0; b < k / kBlock; ++b, x += kBlock, ++out) {
    const uint32_t largest_bits = largest_magnitude(x);
    float largest;
    __builtin_memcpy(&largest, &largest_bits, 4);
    const bool finite = largest_bits < 0x7f800000u;
    const float inverse = finite && largest >= kSmallestInput ? 127.0f / largest : 0.0f;
    __m128i sums[2];
    for (int h = 0; h < 2; ++h) {
      const __m256 scale = _mm256_set1_ps(inverse);
      const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * h), scale));
      const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * h + 8), scale));
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
      __m128i q = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
      if (!finite) q = _mm_set1_epi8(127);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q + 16 * h), q);
      sums[h] = _mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), q), _mm_set1_epi16(1));
    }
    finish_input_block(inverse == 0.0f && finite ? 0.0f : largest * kOver127, sum_lanes(sums[0]), sum_lanes(sums[1]),
                       *out);
  }
}

// clang 14's __builtin_cpu_supports does not know this one.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

const LinearKernels* avx2_kernels() {
  static const bool can_run = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  static constexpr LinearKernels kernels = {"avx2", isa_linear<Avx2>, quantise_row};
  return can_run ? &kernels : nullptr;
}

}  // namespace tailrace::cpu

#else

namespace tailrace::cpu {
const LinearKernels* avx2_kernels() { return nullptr; }
}  // namespace tailrace::cpu

#endif
