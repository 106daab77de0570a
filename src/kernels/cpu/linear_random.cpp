// Random weights in packed form, for --load-format dummy: drawing and packing them value by value took minutes for 20
// billion.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_layout.h"
#include "weights/dequantize.h"
#include "weights/mxfp4.h"
#include "weights/nvfp4.h"

namespace tailrace::cpu {
namespace {

constexpr int kQuantileBits = 12;
constexpr int kQuantiles = 1 << kQuantileBits;

// SplitMix64 (Steele, Lea, Flood 2014).
struct RandomBits {
  uint64_t state;
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

// The normal distribution as equally likely values: the middle of each 1 / kQuantiles of its mass.
const std::vector<float>& normal_quantiles() {
  static const std::vector<float> values = [] {
    std::vector<float> out(kQuantiles);
    for (int i = 0; i < kQuantiles / 2; ++i) {
      const double wanted = (i + 0.5) / kQuantiles;
      double low = -6, high = 0;
      for (int step = 0; step < 40; ++step) {
        const double middle = (low + high) / 2;
        (std::erfc(-middle * M_SQRT1_2) / 2 < wanted ? low : high) = middle;
      }
      out[i] = static_cast<float>(low);
      out[kQuantiles - 1 - i] = -out[i];
    }
    return out;
  }();
  return values;
}

// `count` elements at `out`, each one of `table`.
template <typename Element>
void fill_from(const Element (&table)[kQuantiles], int64_t count, RandomBits& random, uint8_t* out) {
  constexpr int kDraws = 64 / kQuantileBits;
  for (int64_t i = 0; i < count; i += kDraws) {
    uint64_t bits = random();
    Element drawn[kDraws];
    for (Element& element : drawn) {
      element = table[bits % kQuantiles];
      bits >>= kQuantileBits;
    }
    std::memcpy(out + i * sizeof(Element), drawn, sizeof(Element) * std::min<int64_t>(kDraws, count - i));
  }
}

template <typename Element, typename F>
void fill_normal(size_t bytes, uint64_t seed, float deviation, const F& stored, void* dst) {
  Element table[kQuantiles];
  const std::vector<float>& quantiles = normal_quantiles();
  for (int i = 0; i < kQuantiles; ++i) table[i] = stored(quantiles[i] * deviation);
  RandomBits random{seed};
  fill_from(table, static_cast<int64_t>(bytes / sizeof(Element)), random, static_cast<uint8_t*>(dst));
}

// Tiles of codes that are all alike and of one scale: groups, then what a tile is padded with.
void fill_e2m1(Format format, int64_t rows, int64_t cols, uint64_t seed, uint8_t scale, void* dst) {
  const int64_t blocks = cols / kBlock;
  const size_t stride = tile_bytes(format, cols);
  RandomBits random{seed};
  auto* tile = static_cast<uint8_t*>(dst);
  for (int64_t t = 0; t < num_tiles(rows); ++t, tile += stride) {
    uint8_t* out = tile;
    for (int64_t group = 0; group * kGroupBlocks < blocks; ++group) {
      const int count = blocks_of_group(blocks, group);
      const size_t codes = code_bytes(4) * static_cast<size_t>(count);
      const size_t scales = scale_bytes(scheme(format).scales, count);
      for (size_t at = 0; at < codes; at += 8) {
        const uint64_t bits = random();
        std::memcpy(out + at, &bits, 8);
      }
      std::memset(out + codes, scale, scales);
      out += codes + scales;
    }
    std::memset(out, 0, static_cast<size_t>(tile + stride - out));
  }
}

}  // namespace

Expected<bool> pack_random(const TensorView& shape, uint64_t seed, float deviation, void* dst) {
  const auto bytes = packed_bytes(shape);
  if (!bytes) return fail(bytes.error());
  switch (shape.format) {
    case Format::kBF16:
      fill_normal<uint16_t>(*bytes, seed, deviation, bf16_round, dst);
      return true;
    case Format::kF8E4M3:
      fill_normal<uint8_t>(*bytes, seed, deviation, float_to_e4m3, dst);
      return true;
    case Format::kMXFP4:
      fill_e2m1(shape.format, shape.shape[0], shape.shape[1], seed, mxfp4_scale_of(deviation), dst);
      return true;
    case Format::kNVFP4:
      fill_e2m1(shape.format, shape.shape[0], shape.shape[1], seed, nvfp4_scale_of(deviation), dst);
      return true;
    default:
      return false;
  }
}

}  // namespace tailrace::cpu
