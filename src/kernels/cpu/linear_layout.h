// The packed layout of a weight and of the activations it multiplies: shared by packer and kernels of every ISA.
// A weight is a sequence of tiles of 16 rows, row r of a tile being lane r. A quantised tile is a sequence of groups of up
// to 8 blocks of 32 k: the codes of the group's blocks, then their scales, so that a tile is one ascending stream. Codes
// are unsigned (value = d * (code - offset), or d * code + m) and lie so that one 64-byte vector is 16 rows x 4
// consecutive k. All names have internal linkage: each ISA compiles its own copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/format.h"

namespace tailrace::cpu {

// 32 activations: codes q = x / d, and what the algebra of each format needs besides. One cache line.
struct alignas(64) InputBlock {
  int8_t q[32];
  float d;        // max |x| / 127
  float d_sum;    // d * sum(q)
  int32_t minus_8, minus_16, minus_128;  // -offset * sum(q): where the integer sums start
  int32_t minus_32[2];                   // the same for each half of the block (Q6_K; NVFP4 takes 3 / 8 of them)
  int32_t minus_12;                      // MXFP4
};
static_assert(sizeof(InputBlock) == 64);

namespace {

constexpr int kTile = 16;        // rows
constexpr int kBlock = 32;       // k of one InputBlock
constexpr int kQuads = 8;        // 4 consecutive k each, in a block
constexpr int kVector = 64;      // bytes of 16 rows x 4 k
constexpr int kGroupBlocks = 8;  // blocks of a group; a K-quant's super-block is one group

// The scales of a group.
enum class Scales : uint8_t {
  kD,         // per block: half d[16]
  kDM,        // per block: half d[16], m[16]
  kSuperDM,   // half d[16], dmin[16], then 8 x (uint8 scale[16], min[16]); m = -dmin * min
  kSuperD16,  // half d[16], then 16 x int8 scale[16], one per 16 k, then 32 bytes of padding
  kE8M0,      // per block: byte e[16], d = 2^(e - 128); e = 0 counts as d = 0, which no fp32 sum tells apart
  kE4M3,      // per block: e4m3 d[16] of the first 16 k, then d[16] of the others
  kNone,
};

struct Scheme {
  int bits;       // of a code; 0 for dense formats
  Scales scales;
  int offset;     // value = d * (code - offset); 0 where a minimum takes its part
  bool e2m1 = false;  // codes are nibbles of E2M1, to be looked up: (code - offset) is twice the value
};

// Nibbles of E2M1 as unsigned codes: twice the value, plus 12.
alignas(16) constexpr uint8_t kE2M1Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

constexpr Scheme scheme(Format format) {
  switch (format) {
    case Format::kQ4_0: return {4, Scales::kD, 8};
    case Format::kQ4_1: return {4, Scales::kDM, 0};
    case Format::kQ5_0: return {5, Scales::kD, 16};
    case Format::kQ5_1: return {5, Scales::kDM, 0};
    case Format::kQ8_0: return {8, Scales::kD, 128};
    case Format::kQ4_K: return {4, Scales::kSuperDM, 0};
    case Format::kQ5_K: return {5, Scales::kSuperDM, 0};
    case Format::kQ6_K: return {6, Scales::kSuperD16, 32};
    case Format::kMXFP4: return {4, Scales::kE8M0, 12, true};
    case Format::kNVFP4: return {4, Scales::kE4M3, 12, true};
    default: return {0, Scales::kNone, 0};
  }
}

constexpr size_t round_up_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Bytes of the codes of one block of a tile. 8 bits: vector q holds quad q, k 4q..4q+3. Fewer: vector j < 4 holds the low
// four bits of quad j in its low and of quad j + 4 in its high nibbles; 5 bits: then a vector whose bit q is quad q's
// fifth bit; 6 bits: then two vectors whose bits 2q, 2q+1 are the top bits of quad q and q + 4.
constexpr size_t code_bytes(int bits) { return static_cast<size_t>(kVector) * bits; }

constexpr size_t scale_bytes(Scales scales, int64_t blocks) {
  switch (scales) {
    case Scales::kD: return static_cast<size_t>(blocks) * 2 * kTile;
    case Scales::kDM: return static_cast<size_t>(blocks) * 4 * kTile;
    case Scales::kSuperDM:
    case Scales::kSuperD16: return (4 + 2 * kGroupBlocks) * kTile;
    case Scales::kE8M0: return static_cast<size_t>(blocks) * kTile;
    case Scales::kE4M3: return static_cast<size_t>(blocks) * 2 * kTile;
    case Scales::kNone: return 0;
  }
  return 0;
}

// Bytes of a group of `blocks` blocks.
constexpr size_t group_bytes(Format format, int64_t blocks) {
  const Scheme s = scheme(format);
  return code_bytes(s.bits) * static_cast<size_t>(blocks) + scale_bytes(s.scales, blocks);
}

constexpr int blocks_of_group(int64_t blocks, int64_t group) {
  const int64_t left = blocks - group * kGroupBlocks;
  return left < kGroupBlocks ? static_cast<int>(left) : kGroupBlocks;
}

// Dense tiles: F32, F16, F8_E4M3 [k][16 rows]; BF16 [k / 2][16 rows][2], an odd last k padded with zero.
constexpr size_t tile_bytes(Format format, int64_t cols) {
  const size_t k = static_cast<size_t>(cols);
  if (format == Format::kF32) return k * 4 * kTile;
  if (format == Format::kF16) return round_up_64(k * 2 * kTile);
  if (format == Format::kBF16) return (k + 1) / 2 * 4 * kTile;
  if (format == Format::kF8E4M3) return round_up_64(k * kTile);
  const int64_t groups = cols / kBlock / kGroupBlocks, rest = cols / kBlock % kGroupBlocks;
  return group_bytes(format, kGroupBlocks) * static_cast<size_t>(groups) +
         (rest > 0 ? round_up_64(group_bytes(format, rest)) : 0);
}

constexpr int64_t num_tiles(int64_t rows) { return (rows + kTile - 1) / kTile; }

// Bytes from one row of prepared activations to the next.
// An odd number of cache lines, so that the rows of a register block do not fall on the same cache sets.
constexpr int64_t input_row_blocks(int64_t k) { return (k / kBlock) | 1; }
constexpr size_t int8_row_bytes(int64_t k) { return static_cast<size_t>(input_row_blocks(k)) * sizeof(InputBlock); }
constexpr size_t f32_row_bytes(int64_t k) { return round_up_64(static_cast<size_t>(k) * 4 + 4); }  // and a pad for BF16

}  // namespace
}  // namespace tailrace::cpu
