// The linear kernels on AVX-512 with VNNI: one instruction multiplies 16 rows x 4 k of codes with a broadcast of 4
// activations. BF16 weights go through fp32: two fused multiply-adds are twice as fast as one vdpbf16ps
// (Sapphire Rapids: 2 per cycle of 16 products against 1 per 2 cycles of 32), and exact in the activations.
#include "kernels/cpu/linear_dense.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include <immintrin.h>

namespace tailrace::cpu {
namespace {

struct Avx512 {
  static constexpr int kDirectRows = 8;  // 8 code vectors, 8 integer and 8 float sums
  static constexpr int kPanelRows = 6;  // x 2 tiles: 12 integer and 12 float sums of 32 registers
  static constexpr int kPanelTiles = 2;
  static constexpr int kPrefetchBytes = 2048;

  using V = __m512;
  using I = __m512i;
  using W = __m512i;

  static V zero() { return _mm512_setzero_ps(); }
  static V set1(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static V load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static V load_u8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes_16(p))); }
  static V load_s8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_16(p))); }
  static V load_half(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m128i bytes_16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x); }
  static void store_n(float* p, V x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static V add(V a, V b) { return _mm512_add_ps(a, b); }
  static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }

  static I set1_int(int32_t x) { return _mm512_set1_epi32(x); }
  static V to_float(I x) { return _mm512_cvtepi32_ps(x); }
  template <int Bits>
  static I dot(I acc, W w, int32_t q) {
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(q));
  }

  template <int Bits>
  static void unpack(const uint8_t* codes, W (&w)[kQuads]) {
    if constexpr (Bits == 8) {
      TAILRACE_UNROLL
      for (int g = 0; g < kQuads; ++g) w[g] = load_codes(codes + g * kVector);
      return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    TAILRACE_UNROLL
    for (int j = 0; j < kQuads / 2; ++j) {
      const __m512i nibbles = load_codes(codes + j * kVector);
      w[j] = _mm512_and_si512(nibbles, low);
      w[j + 4] = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low);
    }
    if constexpr (Bits > 4) {
      const __m512i mask = _mm512_set1_epi8(Bits == 5 ? 0x10 : 0x30);
      TAILRACE_UNROLL
      for (int g = 0; g < kQuads; ++g) {
        const __m512i top = load_codes(codes + (Bits == 6 ? 4 + g / 4 : 4) * kVector);
        const int left = Bits == 5 ? 4 - g : 4 - 2 * (g % 4);
        const __m512i bits = left >= 0 ? _mm512_slli_epi16(top, static_cast<unsigned>(left))
                                       : _mm512_srli_epi16(top, static_cast<unsigned>(-left));
        w[g] = _mm512_ternarylogic_epi32(w[g], bits, mask, 0xf8);  // w | (bits & mask)
      }
    }
  }
  static W load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store_codes(uint8_t* p, W w) { _mm512_storeu_si512(p, w); }
  static void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

  static void load_bf16_pairs(const uint8_t* p, V (&w)[2]) {
    const __m512i pairs = load_codes(p), odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, odd));
  }
};

inline int32_t sum_lanes(__m128i x) {
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

void quantise_row(const float* x, int64_t k, InputBlock* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t b = 0; b < k / kBlock; ++b, x += kBlock, ++out) {
    const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
    // Compared as integers, so that a NaN is the largest.
    const __m512i low_bits = _mm512_and_si512(_mm512_castps_si512(low), magnitude);
    const __m512i high_bits = _mm512_and_si512(_mm512_castps_si512(high), magnitude);
    const uint32_t largest_bits = _mm512_reduce_max_epu32(_mm512_max_epu32(low_bits, high_bits));
    float largest;
    __builtin_memcpy(&largest, &largest_bits, 4);
    const bool finite = largest_bits < 0x7f800000u;
    const float inverse = finite && largest >= kSmallestInput ? 127.0f / largest : 0.0f;
    __m128i q_low = _mm_set1_epi8(127), q_high = q_low;
    if (finite) {
      q_low = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, _mm512_set1_ps(inverse))));
      q_high = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, _mm512_set1_ps(inverse))));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q), q_low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q + 16), q_high);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(q_low), q_high, 1);
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
    finish_input_block(inverse == 0.0f && finite ? 0.0f : largest / 127.0f, sum_lanes(_mm256_castsi256_si128(sums)),
                       sum_lanes(_mm256_extracti128_si256(sums, 1)), *out);
  }
}

}  // namespace

const LinearKernels* avx512_kernels() {
  static const bool can_run = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  static constexpr LinearKernels kernels = {"avx512_vnni", isa_linear<Avx512>, quantise_row};
  return can_run ? &kernels : nullptr;
}

}  // namespace tailrace::cpu

#else

namespace tailrace::cpu {
const LinearKernels* avx512_kernels() { return nullptr; }
}  // namespace tailrace::cpu

#endif
