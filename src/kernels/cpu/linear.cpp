// Dispatch of the linear layers to the kernels of this machine's instruction set.
#include "kernels/cpu/linear.h"

#include <atomic>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/linear_isa.h"

namespace tailrace::cpu {
namespace {

const LinearKernels* best_kernels() {
  if (const LinearKernels* kernels = avx512_kernels()) return kernels;
  if (const LinearKernels* kernels = avx2_kernels()) return kernels;
  return portable_kernels();
}

std::atomic<const LinearKernels*>& selected() {
  static std::atomic<const LinearKernels*> kernels{best_kernels()};
  return kernels;
}

const LinearKernels& kernels() { return *selected().load(std::memory_order_relaxed); }

size_t input_row_bytes(InputKind kind, int64_t k) {
  switch (kind) {
    case InputKind::kInt8: return int8_row_bytes(k);
    case InputKind::kF32: return f32_row_bytes(k);
  }
  return 0;
}

}  // namespace

InputKind input_kind(Format format) {
  return scheme(format).bits == 0 ? InputKind::kF32 : InputKind::kInt8;
}

size_t input_bytes(InputKind kind, int64_t m, int64_t k) { return static_cast<size_t>(m) * input_row_bytes(kind, k); }

void prepare_input(InputKind kind, const float* x, int64_t x_stride, int64_t row_begin, int64_t row_end, int64_t k,
                   void* input) {
  CHECK(kind != InputKind::kInt8 || k % kBlock == 0);
  const size_t row_bytes = input_row_bytes(kind, k);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* src = x + row * x_stride;
    uint8_t* dst = static_cast<uint8_t*>(input) + row_bytes * row;
    if (kind == InputKind::kInt8) {
      kernels().quantise_row(src, k, reinterpret_cast<InputBlock*>(dst));
    } else {
      std::memcpy(dst, src, sizeof(float) * k);
      std::memset(dst + sizeof(float) * k, 0, sizeof(float));
    }
  }
}

void linear(const Weight& weight, const void* input, int64_t m, int64_t tile_begin, int64_t tile_end, float* y,
            int64_t y_stride) {
  CHECK(tile_begin >= 0 && tile_end <= num_tiles(weight.rows));
  if (m <= 0 || tile_begin >= tile_end) return;
  const uint8_t* data = static_cast<const uint8_t*>(weight.data);
  CHECK(weight.format != Format::kF8E4M3 || weight.scale != nullptr);
  CHECK(weight.format == Format::kF8E4M3 || weight.scale == nullptr || weight.scale_cols == weight.cols);
  kernels().linear({weight.format, data, weight.rows, weight.cols, weight.bias, weight.scale, weight.scale_cols, input, m,
                    tile_begin, tile_end, y, y_stride});
}

const char* isa_name() { return kernels().name; }

bool set_isa_for_test(const char* name) {
  for (const LinearKernels* candidate : {avx512_kernels(), avx2_kernels(), portable_kernels()}) {
    if (candidate != nullptr && std::strcmp(candidate->name, name) == 0) {
      selected().store(candidate);
      return true;
    }
  }
  return false;
}

}  // namespace tailrace::cpu
