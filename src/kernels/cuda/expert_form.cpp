#include "kernels/cuda/expert_form.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace tailrace::cuda {
namespace {

Status unsupported(const TensorView& tensor, const std::string& why) {
  return {StatusCode::kUnsupported, "tensor " + printable(tensor.name) + ": " + why};
}

// Rows 16 * group and on of a unit; null beyond the matrix's end.
constexpr int kGroupRows = 16;
struct Group {
  const std::byte* rows[kGroupRows] = {};
  int index = 0;
};

void pack_bf16(const Group& group, int64_t cols, std::byte* out) {
  for (int i = 0; i < kGroupRows && group.rows[i] != nullptr; ++i) {
    const int r = group.index * kGroupRows + i;
    for (int64_t col = 0; col < cols; col += 2) {
      const int k = static_cast<int>(col % kUnitCols);
      const int at = ((r / 16 * 4 + k / 16) * 32 + unit_lane(r, k)) * 16 + unit_register(r, k) * 4;
      std::memcpy(out + col / kUnitCols * expert_unit_bytes(ExpertForm::kBf16) + at, group.rows[i] + col * 2, 4);
    }
  }
}

// What a byte of two codes, the first in its low half, adds to the word of its lane: [register][byte].
struct PairTable {
  uint32_t word[4][256] = {};
  constexpr PairTable() {
    for (int reg = 0; reg < 4; ++reg) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        for (int half = 0; half < 2; ++half) {
          const uint32_t code = byte >> 4 * half & 15;
          word[reg][byte] |= (code & 7) << (e2m1_magnitude_at(reg) + 16 * half) | code >> 3 << (e2m1_sign_at(reg) + 16 * half);
        }
      }
    }
  }
};
constexpr PairTable kPairs;

// The codes of a group's rows, two a byte in the order of columns; zeros beyond its ends.
class Codes {
 public:
  explicit Codes(int64_t cols) : row_bytes_(expert_units(cols) * kUnitCols / 2), bytes_(kGroupRows * row_bytes_) {}
  uint8_t* row(int i) { return bytes_.data() + i * row_bytes_; }
  void clear(int first) { std::fill(bytes_.begin() + first * row_bytes_, bytes_.end(), uint8_t{0}); }

  void pack(int group, int unit_bytes, std::byte* out) const {
    const int64_t units = row_bytes_ / (kUnitCols / 2);
    for (int64_t u = 0; u < units; ++u, out += unit_bytes) {
      for (int lane = 0; lane < 32; ++lane) {
        const uint8_t* low = bytes_.data() + lane / 4 * row_bytes_ + u * (kUnitCols / 2) + lane % 4;
        const uint8_t* high = low + 8 * row_bytes_;
        uint32_t words[4];
        for (int step = 0; step < 4; ++step) {
          words[step] = kPairs.word[0][low[step * 8]] | kPairs.word[1][high[step * 8]] |
                        kPairs.word[2][low[step * 8 + 4]] | kPairs.word[3][high[step * 8 + 4]];
        }
        std::memcpy(out + (group * 32 + lane) * 16, words, 16);
      }
    }
  }

 private:
  const int64_t row_bytes_;
  std::vector<uint8_t> bytes_;
};

// Eight nibbles, each in the low half of a byte, in four bytes.
uint32_t pair_up(uint64_t nibbles) {
  nibbles = (nibbles | nibbles >> 4) & 0x00ff00ff00ff00ffu;
  nibbles = (nibbles | nibbles >> 8) & 0x0000ffff0000ffffu;
  return static_cast<uint32_t>(nibbles | nibbles >> 16);
}

// Blocks of 17 bytes: e, then 16 bytes of value i in the low and i + 16 in the high half. False: an e too large.
bool read_mxfp4_row(const std::byte* from, int r, int64_t cols, uint8_t* codes, std::byte* out) {
  constexpr uint64_t kNibbles = 0x0f0f0f0f0f0f0f0fu;
  for (int64_t block = 0; block < cols / 32; ++block, from += 17, codes += 16) {
    const int e = static_cast<int>(from[0]);
    if (e > kMxfp4MostScale) return false;
    out[block / 2 * expert_unit_bytes(ExpertForm::kMxfp4) + mxfp4_scale_at(r, static_cast<int>(block % 2) * 32)] =
        static_cast<std::byte>(e == 0 ? 0 : e + kMxfp4ScaleBias);
    uint64_t bytes[2];
    std::memcpy(bytes, from + 1, 16);
    const uint32_t pairs[4] = {pair_up(bytes[0] & kNibbles), pair_up(bytes[1] & kNibbles),
                               pair_up(bytes[0] >> 4 & kNibbles), pair_up(bytes[1] >> 4 & kNibbles)};
    std::memcpy(codes, pairs, 16);
  }
  return true;
}

// Of e4m3's magnitude, which is not zero.
std::byte nvfp4_scale_byte(uint32_t magnitude) {
  int exponent = static_cast<int>(magnitude >> 3), mantissa = static_cast<int>(magnitude & 7);
  if (exponent == 0) {  // mantissa * 2^-9
    exponent = 1;
    while ((mantissa & 8) == 0) mantissa *= 2, --exponent;
  }
  return static_cast<std::byte>((exponent - 7 + 9) * 8 + (mantissa & 7));
}

// Blocks of 9 bytes: e4m3, then 16 codes, even ones in low nibbles.
void read_nvfp4_row(const std::byte* from, int r, int64_t cols, uint8_t* codes, std::byte* out) {
  for (int64_t block = 0; block < cols / 16; ++block, from += 9, codes += 8) {
    const uint32_t scale = static_cast<uint32_t>(from[0]);
    uint64_t pairs = 0;
    if ((scale & 0x7f) != 0) {
      out[block / 4 * expert_unit_bytes(ExpertForm::kNvfp4) + nvfp4_scale_at(r, static_cast<int>(block % 4) * 16)] =
          nvfp4_scale_byte(scale & 0x7f);
      std::memcpy(&pairs, from + 1, 8);
      if (scale >> 7 != 0) pairs ^= 0x8888888888888888u;
    }
    std::memcpy(codes, &pairs, 8);
  }
}

// The row of the group that holds what the form does not, or -1.
int pack_four_bits(ExpertForm form, const Group& group, int64_t cols, Codes& codes, std::byte* out) {
  int i = 0;
  for (; i < kGroupRows && group.rows[i] != nullptr; ++i) {
    const int r = group.index * kGroupRows + i;
    if (form == ExpertForm::kNvfp4) {
      read_nvfp4_row(group.rows[i], r, cols, codes.row(i), out);
    } else if (!read_mxfp4_row(group.rows[i], r, cols, codes.row(i), out)) {
      return i;
    }
  }
  codes.clear(i);
  codes.pack(group.index, expert_unit_bytes(form), out);
  return -1;
}

// Two values of a row and of the row 8 further at a time: a word.
void pack_fp8(const Group& group, int64_t cols, std::byte* out) {
  const auto spread = [](const std::byte* row, int64_t col) {
    uint16_t pair = 0;
    if (row != nullptr) std::memcpy(&pair, row + col, 2);
    return (pair & 0xffu) | (pair & 0xff00u) << 8;
  };
  for (int i = 0; i < 8 && group.rows[i] != nullptr; ++i) {
    const int r = group.index * kGroupRows + i;
    for (int64_t col = 0; col < cols; col += 2) {
      const uint32_t word = spread(group.rows[i], col) << 8 | spread(group.rows[i + 8], col);
      std::byte* unit = out + col / kUnitCols * expert_unit_bytes(ExpertForm::kFp8);
      std::memcpy(unit + fp8_byte_at(r + 8, static_cast<int>(col % kUnitCols)), &word, 4);
    }
  }
}

// The row of the group that holds a value that the form does not, or -1.
int pack_group(ExpertForm form, const Group& group, int64_t cols, Codes& codes, std::byte* out) {
  switch (form) {
    case ExpertForm::kBf16: return pack_bf16(group, cols, out), -1;
    case ExpertForm::kMxfp4:
    case ExpertForm::kNvfp4: return pack_four_bits(form, group, cols, codes, out);
    case ExpertForm::kFp8:
    case ExpertForm::kFp8Block: return pack_fp8(group, cols, out), -1;
  }
  return -1;
}

}  // namespace

Expected<size_t> packed_expert_bytes(const TensorView& tensor) {
  const FormatTraits traits = format_traits(tensor.format);
  if (tensor.shape.size() != 2) return fail(unsupported(tensor, "an expert is a matrix"));
  const auto form = expert_form_of(tensor.format);
  if (!form) {
    return fail(unsupported(tensor, std::string("the CUDA backend computes experts in MXFP4, NVFP4, F8_E4M3 and BF16, not in ") +
                                        traits.name + "; use --device cpu"));
  }
  const int64_t cols = tensor.shape[1];
  if (cols % (*form == ExpertForm::kMxfp4 ? 32 : *form == ExpertForm::kNvfp4 ? 16 : 8) != 0) {
    return fail(unsupported(tensor, "rows of " + std::to_string(cols) + " " + traits.name + " values are not whole"));
  }
  return static_cast<size_t>(expert_matrix_bytes(*form, tensor.shape[0], cols));
}

Status pack_expert(const TensorView& tensor, std::byte* out) {
  const auto bytes = packed_expert_bytes(tensor);
  if (!bytes) return bytes.error();
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  const size_t stored = stored_row_bytes(tensor.format, cols);
  if (stored * static_cast<size_t>(rows) != tensor.bytes) {
    return {StatusCode::kDataLoss, tensor.name + ": size does not match its shape"};
  }
  const ExpertForm form = *expert_form_of(tensor.format);
  std::memset(out, 0, *bytes);
  Codes codes(cols);
  for (int64_t first = 0; first < rows; first += kGroupRows) {
    Group group{.index = static_cast<int>(first % kUnitRows / kGroupRows)};
    for (int64_t i = 0; i < std::min<int64_t>(kGroupRows, rows - first); ++i) {
      group.rows[i] = tensor.data + static_cast<size_t>(first + i) * stored;
    }
    std::byte* to = out + first / kUnitRows * expert_units(cols) * expert_unit_bytes(form);
    if (const int fault = pack_group(form, group, cols, codes, to); fault >= 0) {
      return unsupported(tensor,
                         "a block of row " + std::to_string(first + fault) +
                             " has a scale above 2, which the CUDA backend does not take; use --device cpu");
    }
  }
  return {};
}

}  // namespace tailrace::cuda
