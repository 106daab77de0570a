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
  // 2^(e - 128), 0 for e = 0.
  static V load_half_e8m0(const uint8_t* p) {
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes_16(p)), 23);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5f));
  }
  static W look_up(const uint8_t* table, W nibbles) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes_16(table)), nibbles);
  }
  // Exponent and mantissa at a float's place are 2^-120 of the value, subnormals included. NaN reads as 480.
  static V load_e4m3(const uint8_t* p) {
    const __m512i bytes = _mm512_cvtepu8_epi32(bytes_16(p));
    const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(bytes, _mm512_set1_epi32(0x7f)), 20);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(bytes, _mm512_set1_epi32(0x80)), 24);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(magnitude, sign)), _mm512_set1_ps(0x1p120f));
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
    if constexpr (Bits > 4) add_top_bits<Bits, 0>(codes, w);
  }
  // w[q] |= the bits above the nibble, from Quad on; by recursion, since the shifts take constants only.
  template <int Bits, int Quad>
  static void add_top_bits(const uint8_t* codes, W (&w)[kQuads]) {
    constexpr int left = Bits == 5 ? 4 - Quad : 4 - 2 * (Quad % 4);
    const __m512i top = load_codes(codes + (Bits == 6 ? 4 + Quad / 4 : 4) * kVector);
    const __m512i mask = _mm512_set1_epi8(Bits == 5 ? 0x10 : 0x30);
    __m512i bits;
    if constexpr (left >= 0) {
      bits = _mm512_slli_epi16(top, left);
    } else {
      bits = _mm512_srli_epi16(top, -left);
    }
    w[Quad] = _mm512_ternarylogic_epi32(w[Quad], bits, mask, 0xf8);  // w | (bits & mask)
    if constexpr (Quad + 1 < kQuads) add_top_bits<Bits, Quad + 1>(codes, w);
  }
  static W load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static void store_codes(uint8_t* p, W w) { _mm512_storeu_si512(p, w); }
  static void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }
  static void prefetch_l2(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

  static void load_bf16_pairs(const uint8_t* p, V (&w)[2]) {
    const __m512i pairs = load_codes(p), odd = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, odd));
  }
};

// The largest |x| of a block in every lane, compared as integers, so that a NaN is the largest.
inline __m128i largest_magnitude(__m512 low, __m512 high) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i all = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                       _mm512_and_si512(_mm512_castps_si512(high), magnitude));
  const __m256i eight = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
}

// d and what follows from it and from the sums of the codes' halves, as one vector: finish_input_block in one store.
inline void store_sums(float d, __m256i codes, InputBlock* out) {
  // Sums of 8 codes each in the 64-bit lanes, of codes + 128.
  const __m256i eights = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
  const __m256i pairs = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0x4e));
  const __m256i halves = _mm256_sub_epi32(pairs, _mm256_set1_epi32(16 * 128));  // lanes 0-3 even: low, 4-7 even: high
  const __m256i low = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 0, 0, 0, 0, 0, 4, 0));
  const __m256i high = _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(4, 4, 4, 4, 4, 4, 4, 4));
  const __m256i sums = _mm256_add_epi32(low, _mm256_maskz_mov_epi32(0x9f, high));
  // In the order of InputBlock: d, d_sum, minus_8, minus_16, minus_128, minus_32[2], minus_12.
  const __m256i fields = _mm256_mullo_epi32(sums, _mm256_setr_epi32(0, 0, -8, -16, -128, -32, -32, -12));
  const __m256 scales = _mm256_blend_ps(_mm256_set1_ps(1.0f), _mm256_cvtepi32_ps(sums), 2);
  const __m256 floats = _mm256_mul_ps(scales, _mm256_set1_ps(d));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(&out->d),
                      _mm256_blend_epi32(fields, _mm256_castps_si256(floats), 3));
}

void quantise_row(const float* x, int64_t k, InputBlock* out) {
  static_assert(offsetof(InputBlock, d) == 32 && offsetof(InputBlock, minus_8) == 40 &&
                offsetof(InputBlock, minus_32) == 52 && offsetof(InputBlock, minus_12) == 60);
  for (int64_t b = 0; b < k / kBlock; ++b, x += kBlock, ++out) {
    const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
    const __m128i largest_bits = largest_magnitude(low, high);
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(largest_bits));
    const bool finite = static_cast<uint32_t>(_mm_cvtsi128_si32(largest_bits)) < 0x7f800000u;
    const float inverse = finite && largest >= kSmallestInput ? 127.0f / largest : 0.0f;
    __m256i codes = _mm256_set1_epi8(127);
    if (finite) {
      const __m512 scale = _mm512_set1_ps(inverse);
      codes = _mm256_inserti128_si256(
          _mm256_castsi128_si256(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, scale)))),
          _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, scale))), 1);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->q), codes);
    store_sums(inverse == 0.0f && finite ? 0.0f : largest * kOver127, codes, out);
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
