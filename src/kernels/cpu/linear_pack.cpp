// Packing a stored weight into tiles, and reading one row back.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/linear_layout.h"
#include "weights/dequantize.h"

namespace tailrace::cpu {
namespace {

Status shape_error(const TensorView& tensor, const std::string& what) {
  const std::string format = format_traits(tensor.format).name;
  return Status(StatusCode::kDataLoss, "tensor " + tensor.name + " (" + format + "): " + what);
}

Status check_shape(const TensorView& tensor) {
  if (tensor.shape.size() != 2) return shape_error(tensor, "a linear layer's weight has two dimensions");
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  if (rows <= 0 || cols <= 0) return shape_error(tensor, "its dimensions must be positive");
  if (tensor.format == Format::kU8) return shape_error(tensor, "bytes without a meaning cannot be multiplied");
  const int block = format_traits(tensor.format).block_elems;
  const int multiple = tensor.format == Format::kNVFP4 ? kBlock : block;  // activations come in blocks of 32
  if (cols % multiple != 0) {
    return shape_error(tensor,
                       "its width " + std::to_string(cols) + " is not a multiple of " + std::to_string(multiple));
  }
  const size_t row_bytes = stored_row_bytes(tensor.format, cols);
  if (tensor.bytes / row_bytes != static_cast<size_t>(rows) || tensor.bytes % row_bytes != 0) {
    return shape_error(tensor, "its size is not that of its shape");
  }
  if (tensor.rope_interleaved &&
      (tensor.head_dim <= 0 || tensor.head_dim % 2 != 0 || rows % tensor.head_dim != 0)) {
    return shape_error(tensor, "its rows are not whole heads of an even size, as interleaved RoPE needs");
  }
  return Status();
}

// The stored row that becomes packed row `row`: pair (i, i + half) of a head is stored as (2i, 2i + 1).
int64_t source_row(const TensorView& tensor, int64_t row) {
  if (!tensor.rope_interleaved) return row;
  const int64_t half = tensor.head_dim / 2;
  const int64_t in_head = row % tensor.head_dim;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

void put(uint8_t* dst, int lane, const uint8_t* half) { std::memcpy(dst + 2 * lane, half, 2); }

// The codes of 32-block `b` of a stored row, unsigned, in the order of k.
void read_codes(Format format, const uint8_t* row, int64_t b, uint8_t (&code)[kBlock]) {
  const uint8_t* block = row + b * format_traits(format).block_bytes;
  const uint8_t* super = row + b / kGroupBlocks * format_traits(format).block_bytes;
  const int sub = static_cast<int>(b % kGroupBlocks);
  const auto nibbles = [&code](const uint8_t* q) {
    for (int i = 0; i < kBlock / 2; ++i) {
      code[i] = q[i] & 15;
      code[i + kBlock / 2] = q[i] >> 4;
    }
  };
  const auto fifth_bits = [&code](const uint8_t* bits) {
    for (int i = 0; i < kBlock; ++i) code[i] |= (bits[i / 8] >> (i % 8) & 1) << 4;
  };
  const auto half_bytes = [&code](const uint8_t* q, bool high) {
    for (int i = 0; i < kBlock; ++i) code[i] = high ? q[i] >> 4 : q[i] & 15;
  };
  switch (format) {
    case Format::kMXFP4: nibbles(block + 1); break;
    case Format::kNVFP4:
      for (int i = 0; i < kBlock; ++i) {
        const uint8_t pair = row[(2 * b + i / 16) * format_traits(format).block_bytes + 1 + i % 16 / 2];
        code[i] = i % 2 == 0 ? pair & 15 : pair >> 4;
      }
      break;
    case Format::kQ4_0: nibbles(block + 2); break;
    case Format::kQ4_1: nibbles(block + 4); break;
    case Format::kQ5_0: nibbles(block + 6); fifth_bits(block + 2); break;
    case Format::kQ5_1: nibbles(block + 8); fifth_bits(block + 4); break;
    case Format::kQ8_0:
      for (int i = 0; i < kBlock; ++i) code[i] = block[2 + i] ^ 0x80;
      break;
    case Format::kQ4_K: half_bytes(super + 16 + sub / 2 * kBlock, sub % 2 != 0); break;
    case Format::kQ5_K:
      half_bytes(super + 48 + sub / 2 * kBlock, sub % 2 != 0);
      for (int i = 0; i < kBlock; ++i) code[i] |= (super[16 + i] >> sub & 1) << 4;
      break;
    case Format::kQ6_K:
      half_bytes(super + sub / 4 * 64 + sub % 2 * kBlock, sub % 4 >= 2);
      for (int i = 0; i < kBlock; ++i) code[i] |= (super[128 + sub / 4 * kBlock + i] >> 2 * (sub % 4) & 3) << 4;
      break;
    default: CHECK(false);
  }
}

// Writes a block's codes into one lane of its tile.
void place_codes(int bits, const uint8_t (&code)[kBlock], int lane, uint8_t* tile_block) {
  uint8_t packed[kBlock];
  const int nibble_vectors = bits == 8 ? kQuads : kQuads / 2;
  if (bits == 8) {
    std::memcpy(packed, code, kBlock);
  } else {
    for (int i = 0; i < kBlock / 2; ++i) {
      packed[i] = static_cast<uint8_t>((code[i] & 15) | code[i + kBlock / 2] << 4);
    }
  }
  for (int v = 0; v < nibble_vectors; ++v) std::memcpy(tile_block + v * kVector + 4 * lane, packed + 4 * v, 4);
  if (bits != 5 && bits != 6) return;
  uint8_t top[2][4] = {};
  for (int k = 0; k < kBlock; ++k) {
    const int g = k / 4;
    top[bits == 6 ? g / 4 : 0][k % 4] |= static_cast<uint8_t>(code[k] >> 4 << (bits == 6 ? 2 * (g % 4) : g));
  }
  for (int v = 0; v < bits - 4; ++v) std::memcpy(tile_block + (4 + v) * kVector + 4 * lane, top[v], 4);
}

// The 6-bit scale and minimum of sub-block `sub` of a Q4_K or Q5_K super-block's 12 bytes.
void read_scale_and_min(const uint8_t* q, int sub, uint8_t* scale, uint8_t* min) {
  if (sub < 4) {
    *scale = q[sub] & 63;
    *min = q[sub + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((q[sub + 4] & 15) | q[sub - 4] >> 6 << 4);
    *min = static_cast<uint8_t>(q[sub + 4] >> 4 | q[sub] >> 6 << 4);
  }
}

// One lane's scales of a group of `count` blocks, from the stored blocks (a K-quant's group is one stored block).
void place_scales(Format format, const uint8_t* stored, int count, int lane, uint8_t* scales) {
  const Scales kind = scheme(format).scales;
  if (kind == Scales::kSuperDM) {
    put(scales, lane, stored);
    put(scales + 2 * kTile, lane, stored + 2);
    for (int sub = 0; sub < kGroupBlocks; ++sub) {
      uint8_t* pair = scales + 4 * kTile + sub * 2 * kTile + lane;
      read_scale_and_min(stored + 4, sub, pair, pair + kTile);
    }
    return;
  }
  if (kind == Scales::kSuperD16) {
    put(scales, lane, stored + 208);
    for (int sub = 0; sub < 2 * kGroupBlocks; ++sub) scales[2 * kTile + sub * kTile + lane] = stored[192 + sub];
    return;
  }
  if (kind == Scales::kE8M0) {
    for (int i = 0; i < count; ++i) scales[i * kTile + lane] = stored[i * format_traits(format).block_bytes];
    return;
  }
  if (kind == Scales::kE4M3) {
    for (int i = 0; i < 2 * count; ++i) scales[i * kTile + lane] = stored[i * format_traits(format).block_bytes];
    return;
  }
  const int halves = kind == Scales::kDM ? 2 : 1;
  for (int i = 0; i < count; ++i, stored += format_traits(format).block_bytes) {
    for (int h = 0; h < halves; ++h) put(scales + (i * halves + h) * 2 * kTile, lane, stored + 2 * h);
  }
}

// `lanes` stored rows into a tile of [k / kPair][16][kPair] elements.
template <typename Element, int kPair>
void pack_dense(const uint8_t* const (&rows)[kTile], int lanes, int64_t cols, uint8_t* tile) {
  for (int64_t k = 0; k < cols; ++k) {
    uint8_t* out = tile + (k / kPair * kTile * kPair + k % kPair) * sizeof(Element);
    for (int lane = 0; lane < lanes; ++lane) {
      std::memcpy(out + lane * kPair * sizeof(Element), rows[lane] + k * sizeof(Element), sizeof(Element));
    }
  }
}

void pack_group(Format format, const uint8_t* row, int64_t group, int count, int lane, uint8_t* tile) {
  const int bits = scheme(format).bits;
  const int elems = format_traits(format).block_elems, bytes = format_traits(format).block_bytes;
  uint8_t* out = tile + group_bytes(format, kGroupBlocks) * group;
  uint8_t code[kBlock];
  for (int i = 0; i < count; ++i, out += code_bytes(bits)) {
    read_codes(format, row, group * kGroupBlocks + i, code);
    place_codes(bits, code, lane, out);
  }
  place_scales(format, row + group * (kGroupBlocks * kBlock / elems) * bytes, count, lane, out);
}

void pack_lane(Format format, const uint8_t* row, int64_t blocks, int lane, uint8_t* tile) {
  for (int64_t group = 0; group * kGroupBlocks < blocks; ++group) {
    pack_group(format, row, group, blocks_of_group(blocks, group), lane, tile);
  }
}

float read_half(const uint8_t* p, int lane) {
  uint16_t bits;
  std::memcpy(&bits, p + 2 * lane, 2);
  return half_to_float(bits);
}

// One lane's block: value(k) = d[k / 16] * (code - offset) + m, in the roundings of the stored format's definition.
struct LaneScales {
  float d[2];
  float m;
};

// Block i of a group.
LaneScales lane_scales(Scales kind, const uint8_t* scales, int i, int lane) {
  if (kind == Scales::kE8M0) {
    const float d = e8m0_to_float(scales[i * kTile + lane]) * 0.5f;
    return {{d, d}, 0.0f};
  }
  if (kind == Scales::kE4M3) {
    const uint8_t* pair = scales + i * 2 * kTile + lane;
    return {{e4m3_to_float(pair[0]) * 0.5f, e4m3_to_float(pair[kTile]) * 0.5f}, 0.0f};
  }
  if (kind == Scales::kD) {
    const float d = read_half(scales + i * 2 * kTile, lane);
    return {{d, d}, 0.0f};
  }
  if (kind == Scales::kDM) {
    const float d = read_half(scales + i * 4 * kTile, lane);
    return {{d, d}, read_half(scales + i * 4 * kTile + 2 * kTile, lane)};
  }
  if (kind == Scales::kSuperDM) {
    const uint8_t* pair = scales + 4 * kTile + i * 2 * kTile + lane;
    const float d = read_half(scales, lane) * pair[0];
    return {{d, d}, -(read_half(scales + 2 * kTile, lane) * pair[kTile])};
  }
  const uint8_t* pair = scales + 2 * kTile + i * 2 * kTile + lane;
  const float d = read_half(scales, lane);
  return {{d * static_cast<int8_t>(pair[0]), d * static_cast<int8_t>(pair[kTile])}, 0.0f};
}

int lane_code(int bits, const uint8_t* tile_block, int lane, int k) {
  const int g = k / 4;
  const int at = 4 * lane + k % 4;
  if (bits == 8) return tile_block[g * kVector + at];
  const int nibbles = tile_block[g % 4 * kVector + at];
  int code = g < 4 ? nibbles & 15 : nibbles >> 4;
  if (bits == 5) code |= (tile_block[4 * kVector + at] >> g & 1) << 4;
  if (bits == 6) code |= (tile_block[(4 + g / 4) * kVector + at] >> 2 * (g % 4) & 3) << 4;
  return code;
}

void lookup_dense(Format format, const uint8_t* tile, int64_t cols, int lane, float* out) {
  const size_t size = format_traits(format).block_bytes;
  const int64_t pair = format == Format::kBF16 ? 2 : 1;
  for (int64_t k = 0; k < cols; ++k) {
    const uint8_t* p = tile + ((k / pair * kTile + lane) * pair + k % pair) * size;
    uint16_t bits;
    if (format == Format::kF8E4M3) {
      out[k] = e4m3_to_float(*p);
      continue;
    }
    if (format == Format::kF32) {
      std::memcpy(out + k, p, 4);
      continue;
    }
    std::memcpy(&bits, p, 2);
    out[k] = format == Format::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
}

void scale_row(const Weight& weight, int64_t row, float* out) {
  if (weight.scale == nullptr) return;
  const float* scale = weight.scale + row * ((weight.cols + weight.scale_cols - 1) / weight.scale_cols);
  for (int64_t k = 0; k < weight.cols; ++k) out[k] *= scale[k / weight.scale_cols];
}

}  // namespace

Expected<size_t> packed_bytes(const TensorView& tensor) {
  if (Status status = check_shape(tensor); !status.ok()) return fail(status);
  return tile_bytes(tensor.format, tensor.shape[1]) * num_tiles(tensor.shape[0]);
}

Status pack(const TensorView& tensor, void* dst) {
  if (Status status = check_shape(tensor); !status.ok()) return status;
  const Format format = tensor.format;
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1], blocks = cols / kBlock;
  const size_t stride = tile_bytes(format, cols), row_bytes = stored_row_bytes(format, cols);
  uint8_t* tile = static_cast<uint8_t*>(dst);
  for (int64_t first = 0; first < rows; first += kTile, tile += stride) {
    const int lanes = static_cast<int>(std::min<int64_t>(kTile, rows - first));
    // Lanes past the last row, and the pad of an odd k, are zero.
    if (lanes < kTile || scheme(format).bits == 0) std::memset(tile, 0, stride);
    const uint8_t* lane_rows[kTile] = {};
    for (int lane = 0; lane < lanes; ++lane) {
      lane_rows[lane] =
          reinterpret_cast<const uint8_t*>(tensor.data) + row_bytes * source_row(tensor, first + lane);
    }
    if (format == Format::kF32) {
      pack_dense<uint32_t, 1>(lane_rows, lanes, cols, tile);
    } else if (format == Format::kF16) {
      pack_dense<uint16_t, 1>(lane_rows, lanes, cols, tile);
    } else if (format == Format::kBF16) {
      pack_dense<uint16_t, 2>(lane_rows, lanes, cols, tile);
    } else if (format == Format::kF8E4M3) {
      pack_dense<uint8_t, 1>(lane_rows, lanes, cols, tile);
    } else {
      for (int lane = 0; lane < lanes; ++lane) pack_lane(format, lane_rows[lane], blocks, lane, tile);
    }
  }
  return Status();
}

void lookup_row(const Weight& weight, int64_t row, float* out) {
  CHECK(row >= 0 && row < weight.rows);
  const Scheme s = scheme(weight.format);
  const int lane = static_cast<int>(row % kTile);
  float* const begin = out;
  const uint8_t* tile =
      static_cast<const uint8_t*>(weight.data) + tile_bytes(weight.format, weight.cols) * (row / kTile);
  if (s.bits == 0) {
    lookup_dense(weight.format, tile, weight.cols, lane, out);
    return scale_row(weight, row, out);
  }
  const bool has_min = s.scales == Scales::kDM || s.scales == Scales::kSuperDM;
  const int64_t blocks = weight.cols / kBlock;
  for (int64_t group = 0; group * kGroupBlocks < blocks; ++group) {
    const int count = blocks_of_group(blocks, group);
    const uint8_t* codes = tile + group_bytes(weight.format, kGroupBlocks) * group;
    const uint8_t* scales = codes + code_bytes(s.bits) * count;
    for (int i = 0; i < count; ++i, codes += code_bytes(s.bits), out += kBlock) {
      const LaneScales lane_scale = lane_scales(s.scales, scales, i, lane);
      for (int k = 0; k < kBlock; ++k) {
        const int stored = lane_code(s.bits, codes, lane, k), code = s.e2m1 ? kE2M1Codes[stored] : stored;
        const float product = lane_scale.d[k / 16] * static_cast<float>(code - s.offset);
        out[k] = has_min ? product + lane_scale.m : product;
      }
    }
  }
  scale_row(weight, row, begin);
}

}  // namespace tailrace::cpu
