// Random weights: the values of every form against what was asked for (check), and how fast they are made (bench).
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>
#include <string>

#include "kernels/cuda/gpu_workbench.h"
#include "kernels/cuda/random_fill.h"

namespace tailrace::cuda {
namespace {

using workbench::Buffer;

constexpr WeightForm kForms[] = {WeightForm::kBf16, WeightForm::kF16, WeightForm::kFp8, WeightForm::kInt4,
                                 WeightForm::kNvfp4, WeightForm::kInt8};
constexpr const char* kNames[] = {"bf16", "f16", "fp8", "int4", "nvfp4", "int8"};

int64_t packed_size(WeightForm form, int64_t rows, int64_t cols) {
  return scales_offset(form, rows, cols) + rows * scale_row_bytes(form, cols);
}

float half_at(const uint8_t* p) {
  __half_raw raw;
  std::memcpy(&raw.x, p, 2);
  return __half2float(__half(raw));
}

float value_at(WeightForm form, const uint8_t* packed, int64_t rows, int64_t cols, int64_t row, int64_t col) {
  const uint8_t* values = packed + row * value_row_bytes(form, cols);
  const uint8_t* scales = packed + scales_offset(form, rows, cols) + row * scale_row_bytes(form, cols);
  if (form == WeightForm::kBf16) {
    const uint32_t bits = (values[2 * col] | values[2 * col + 1] << 8) * 65536u;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  if (form == WeightForm::kF16) return half_at(values + 2 * col);
  if (form == WeightForm::kFp8) {
    const uint8_t byte = values[col];
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
  }
  if (form == WeightForm::kNvfp4) {
    constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    uint32_t word;
    std::memcpy(&word, values + col / 8 * 4, 4);
    const uint32_t code = word >> int4_position(static_cast<int>(col % 8)) & 15;
    return (code > 7 ? -1 : 1) * kValues[code & 7] * half_at(scales + col / 16 * 2) / kNvfp4Scale;
  }
  if (form == WeightForm::kInt4) {
    uint32_t word;
    std::memcpy(&word, values + col / 8 * 4, 4);
    const float q = static_cast<float>(word >> int4_position(static_cast<int>(col % 8)) & 15);
    return half_at(scales + col / 32 * 4) * q + half_at(scales + col / 32 * 4 + 2);
  }
  const uint8_t* s = scales + col / 32 * 8;
  return half_at(s + col % 32 / 16 * 2) * static_cast<float>(static_cast<int8_t>(values[col])) + half_at(s + 4);
}

struct Moments {
  double mean = 0, deviation = 0, largest = 0, neighbours = 0, rows_apart = 0;  // the last two: correlations
  bool finite = true;
};

Moments moments(const std::vector<float>& v, int64_t cols, double unit) {
  Moments m;
  double sum = 0, squares = 0, next = 0, below = 0;
  const auto n = static_cast<int64_t>(v.size());
  for (int64_t i = 0; i < n; ++i) {
    const double x = v[i] / unit;
    m.finite = m.finite && std::isfinite(x);
    sum += x, squares += x * x, m.largest = std::max(m.largest, std::abs(x));
    if (i + 1 < n) next += x * v[i + 1] / unit;
    if (i + cols < n) below += x * v[i + cols] / unit;
  }
  m.mean = sum / n, m.deviation = std::sqrt(squares / n - m.mean * m.mean);
  m.neighbours = next / squares, m.rows_apart = below / squares;
  return m;
}

std::vector<uint8_t> filled(WeightForm form, int64_t rows, int64_t cols, uint64_t seed, float deviation,
                            bool* in_bounds) {
  const int64_t bytes = packed_size(form, rows, cols);
  Buffer<uint8_t> buffer(bytes + 256);
  GPU_CHECK(fill_random(form, rows, cols, seed, deviation, buffer.device, nullptr));
  GPU_CHECK(cudaDeviceSynchronize());
  buffer.download();
  *in_bounds = true;
  for (int64_t i = bytes; i < bytes + 256; ++i) *in_bounds = *in_bounds && buffer.host[i] == 0xff;
  buffer.host.resize(bytes);
  return buffer.host;
}

bool check_case(int f, int64_t rows, int64_t cols, float deviation) {
  const WeightForm form = kForms[f];
  bool inside, ignored;
  const auto packed = filled(form, rows, cols, 11, deviation, &inside);
  const bool same = packed == filled(form, rows, cols, 11, deviation, &ignored);
  const bool other = packed != filled(form, rows, cols, 12, deviation, &ignored);
  std::vector<float> values(rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) values[i] = value_at(form, packed.data(), rows, cols, i / cols, i % cols);
  const Moments m = moments(values, cols, deviation);
  // Five standard errors of each figure; E4M3's rounding adds less than one per cent to the deviation.
  const double error = 5 / std::sqrt(static_cast<double>(rows * cols));
  const bool good = inside && same && other && m.finite && std::abs(m.mean) < error + 0.004 &&
                    std::abs(m.deviation - 1) < error + 0.01 && m.largest < 7 && std::abs(m.neighbours) < error &&
                    std::abs(m.rows_apart) < error;
  std::printf("%-5s %6lld x %-6lld deviation %-8.4g mean %8.5f, deviation %.5f of it, largest %.2f, "
              "correlations %8.5f %8.5f%s%s%s%s  %s\n",
              kNames[f], static_cast<long long>(rows), static_cast<long long>(cols), deviation, m.mean, m.deviation,
              m.largest, m.neighbours, m.rows_apart, inside ? "" : ", OUT OF BOUNDS", same ? "" : ", NOT REPEATABLE",
              other ? "" : ", DEAF TO ITS SEED", m.finite ? "" : ", NOT FINITE", good ? "ok" : "FAILED");
  return good;
}

int check() {
  int failures = 0;
  for (int f = 0; f < 5; ++f) {
    const bool fp8 = kForms[f] == WeightForm::kFp8;
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 32}, {3, 96}, {7, 224}, {1000, 4096}, {333, 14336}}) {
      for (const float deviation : {fp8 ? 32.0f : 1.0f, fp8 ? 16.0f : 1.0f / 64}) {
        failures += !check_case(f, rows, cols, deviation);
      }
    }
  }
  const bool refuses = fill_random(WeightForm::kBf16, 4, 40, 1, 1.0f, nullptr, nullptr) == cudaErrorInvalidValue &&
                       fill_random(WeightForm::kBf16, 0, 64, 1, 1.0f, nullptr, nullptr) == cudaSuccess;
  std::printf("40 columns are refused, no rows are nothing to do  %s\n", refuses ? "ok" : "FAILED");
  failures += !refuses;
  std::printf("%d failures\n", failures);
  return failures != 0;
}

int bench() {
  const int64_t rows = 131072, cols = 8192;
  uint8_t* packed;
  GPU_CHECK(cudaMalloc(reinterpret_cast<void**>(&packed), packed_size(WeightForm::kBf16, rows, cols)));
  const double set_us = workbench::time_us(2, [&](int, cudaStream_t s) {
    GPU_CHECK(cudaMemsetAsync(packed, 1, rows * cols * 2, s));
  }, 5);
  std::printf("memset of 2 GiB: %.0f GB/s\n", rows * cols * 2 / set_us / 1000);
  for (int f = 0; f < 5; ++f) {
    const double us = workbench::time_us(2, [&](int i, cudaStream_t s) {
      GPU_CHECK(fill_random(kForms[f], rows, cols, i, 0.02f, packed, s));
    }, 5);
    const double bytes = static_cast<double>(packed_size(kForms[f], rows, cols));
    std::printf("%-5s %lld x %lld: %8.1f us, %6.0f GB/s, %.2f of memset\n", kNames[f], static_cast<long long>(rows),
                static_cast<long long>(cols), us, bytes / us / 1000, bytes / us / (rows * cols * 2 / set_us));
  }
  GPU_CHECK(cudaFree(packed));
  return 0;
}

}  // namespace
}  // namespace tailrace::cuda

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "check") return tailrace::cuda::check();
  if (mode == "bench") return tailrace::cuda::bench();
  std::fprintf(stderr, "usage: bench_fill check|bench\n");
  return 2;
}
