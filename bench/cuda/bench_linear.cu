// Projections of few tokens: correctness against float64 on fresh random inputs, then us, GB/s and share of the read ceiling.
//   bench_linear [check|bench|all]
#include <cuda_fp16.h>

#include <cstring>
#include <memory>
#include <string>

#include "kernels/cuda/gpu_workbench.h"
#include "kernels/cuda/linear_decode.h"

using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

constexpr int kSms = 132;
const char* form_name(WeightForm form) {
  const char* names[] = {"bf16", "f16", "fp8", "int4", "int8"};
  return names[static_cast<int>(form)];
}

size_t row_value_bytes(WeightForm form, int cols) { return value_row_bytes(form, cols); }
size_t row_scale_bytes(WeightForm form, int cols) { return scale_row_bytes(form, cols); }

float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 128 ? -value : value;
}

// A random matrix in its stored form and as floats.
struct TestMatrix {
  Buffer<uint8_t> values, scales;
  Buffer<float> row_scale, block_scale, bias;
  std::vector<float> dense;
  Matrix matrix;

  TestMatrix(WeightForm form, bool blocks, int rows, int cols, std::mt19937& random)
      : values(rows * row_value_bytes(form, cols)), scales(rows * row_scale_bytes(form, cols)), row_scale(rows), block_scale(rows * ((cols + kScaleBlock - 1) / kScaleBlock)), bias(rows),
        dense(size_t(rows) * cols) {
    std::normal_distribution<float> normal;
    const int num_blocks = (cols + kScaleBlock - 1) / kScaleBlock;
    for (float& v : block_scale.host) v = 0.5f + std::abs(normal(random));
    for (int r = 0; r < rows; ++r) {
      bias.host[r] = normal(random);
      row_scale.host[r] = 0.5f + std::abs(normal(random));
      uint8_t* v = values.host.data() + r * row_value_bytes(form, cols);
      auto* s = reinterpret_cast<__half*>(scales.host.data() + r * row_scale_bytes(form, cols));
      if (form == WeightForm::kInt4) std::memset(v, 0, cols / 2);
      for (int k = 0; k < cols; ++k) {
        float& w = dense[size_t(r) * cols + k];
        if (form == WeightForm::kBf16) {
          const __nv_bfloat16 b = __float2bfloat16(normal(random));
          std::memcpy(v + k * 2, &b, 2);
          w = __bfloat162float(b);
        } else if (form == WeightForm::kF16) {
          const __half h = __float2half(normal(random));
          std::memcpy(v + k * 2, &h, 2);
          w = __half2float(h);
        } else if (form == WeightForm::kFp8) {
          uint8_t& byte = v[k];
          do byte = random() & 255; while ((byte & 127) == 127 || std::abs(e4m3(byte)) > 4);
          w = e4m3(byte) * (blocks ? block_scale.host[r * num_blocks + k / kScaleBlock] : row_scale.host[r]);
        } else if (form == WeightForm::kInt4) {
          if (k % 32 == 0) s[k / 32 * 2] = __float2half(normal(random) * 0.1f), s[k / 32 * 2 + 1] = __float2half(normal(random) * 0.1f);
          const uint32_t q = random() & 15;
          uint32_t word;
          std::memcpy(&word, v + k / 8 * 4, 4);
          word |= q << int4_position(k % 8);
          std::memcpy(v + k / 8 * 4, &word, 4);
          w = q * __half2float(s[k / 32 * 2]) + __half2float(s[k / 32 * 2 + 1]);
        } else {
          if (k % 32 == 0) {
            for (int i = 0; i < 4; ++i) s[k / 32 * 4 + i] = __float2half(i == 3 ? 0 : normal(random) * 0.02f);
          }
          v[k] = random() & 255;
          w = static_cast<int8_t>(v[k]) * __half2float(s[k / 32 * 4 + k % 32 / 16]) + __half2float(s[k / 32 * 4 + 2]);
        }
      }
    }
    values.upload(), scales.upload(), row_scale.upload(), block_scale.upload(), bias.upload();
    matrix = {form, values.device, scales.device, form == WeightForm::kFp8 && !blocks ? row_scale.device : nullptr, blocks ? block_scale.device : nullptr, bias.device, rows, cols};
  }
};

double sum_row(const TestMatrix& w, const std::vector<float>& x, int row, int m, double factor) {
  const int cols = w.matrix.cols;
  double y = 0;
  for (int k = 0; k < cols; ++k) y += double(w.dense[size_t(row) * cols + k]) * x[size_t(m) * cols + k];
  return y * factor + w.bias.host[row];
}

struct Case {
  WeightForm form;
  int cols, tokens;
  std::vector<int> rows;
  LinearOut kind;
  bool blocks = false;
};

// Relative error (against the rows' root mean square) of one call.
double run_case(const Case& c, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<std::unique_ptr<TestMatrix>> w;
  int rows = 0;
  for (int r : c.rows) w.push_back(std::make_unique<TestMatrix>(c.form, c.blocks, r, c.cols, random)), rows += r;
  Buffer<__nv_bfloat16> x(size_t(c.tokens) * c.cols), next(size_t(c.tokens) * rows), gated(size_t(c.tokens) * c.rows[0]);
  std::vector<float> xf(x.count);
  for (size_t i = 0; i < x.count; ++i) x.host[i] = __float2bfloat16(normal(random)), xf[i] = __bfloat162float(x.host[i]);
  x.upload();
  constexpr int kParts = 3;
  Buffer<float> squares(kParts * kMaxLinearTokens), out(size_t(c.tokens) * rows), norm(rows), out_squares(kMaxSquareParts * kMaxLinearTokens);
  std::vector<double> factor(c.tokens);
  for (float& v : squares.host) v = std::abs(normal(random)) * c.cols;
  for (int m = 0; m < c.tokens; ++m) {
    double total = 0;
    for (int i = 0; i < kParts; ++i) total += squares.host[i * kMaxLinearTokens + m];
    factor[m] = 1 / std::sqrt(total / c.cols + 1e-5);
  }
  for (float& v : norm.host) v = 1 + 0.1f * normal(random);
  for (float& v : out.host) v = normal(random);
  const std::vector<float> before = out.host;
  squares.upload(), norm.upload();
  if (c.kind == LinearOut::kResidual) out.upload();
  LinearParams p{.num_matrices = int(c.rows.size()), .out_kind = c.kind, .x = x.device, .tokens = c.tokens, .squares = squares.device,
                 .num_squares = kParts, .eps = 1e-5f, .out = out.device, .out_stride = rows, .next_norm = norm.device,
                 .next = next.device, .out_squares = out_squares.device, .gated = gated.device};
  for (size_t i = 0; i < w.size(); ++i) p.matrix[i] = w[i]->matrix;
  GPU_CHECK(run_linear(p, kSms, nullptr));
  GPU_CHECK(cudaDeviceSynchronize());
  out.download(), next.download(), gated.download(), out_squares.download();
  double error = 0, size = 0, worst = 0;
  std::vector<std::pair<double, double>> outputs;
  const auto compare = [&](double want, double got) {
    error += (want - got) * (want - got), size += want * want;
    outputs.emplace_back(want, got);
  };
  for (int m = 0; m < c.tokens; ++m) {
    double total_squares = 0;
    if (c.kind == LinearOut::kGated) {
      for (int r = 0; r < c.rows[0]; ++r) {
        const double gate = sum_row(*w[0], xf, r, m, factor[m]), up = sum_row(*w[1], xf, r, m, factor[m]);
        compare(gate / (1 + std::exp(-gate)) * up, __bfloat162float(gated.host[size_t(m) * c.rows[0] + r]));
      }
      continue;
    }
    int column = 0;
    for (auto& matrix : w) {
      for (int r = 0; r < matrix->matrix.rows; ++r, ++column) {
        const size_t at = size_t(m) * rows + column;
        double want = sum_row(*matrix, xf, r, m, factor[m]);
        if (c.kind == LinearOut::kResidual) {
          want += before[at];
          compare(want * norm.host[column], __bfloat162float(next.host[at]));
          total_squares += double(out.host[at]) * out.host[at];
        }
        compare(want, out.host[at]);
      }
    }
    if (c.kind == LinearOut::kResidual) {
      double got = 0;
      for (int i = 0; i < linear_ctas(p, kSms); ++i) got += out_squares.host[i * kMaxLinearTokens + m];
      if (!(std::abs(got / total_squares - 1) < 1e-4)) worst = 2;
    }
  }
  const double usual = std::sqrt(size / outputs.size());
  for (const auto& [want, got] : outputs) {
    if (!(std::abs(want - got) < 0.15 * (usual + std::abs(want)))) worst = 1;  // NaN too
  }
  return worst > 0 ? 100 * worst : std::sqrt(error / size);
}

int run_checks() {
  std::mt19937 random(std::random_device{}());
  int failed = 0;
  for (WeightForm form : {WeightForm::kBf16, WeightForm::kF16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kInt8}) {
    for (int tokens : {1, 3, 5, 8, 9, 16}) {
      const std::vector<Case> cases = {{form, 576, tokens, {576, 192, 192}, LinearOut::kStore},
                                       {form, 1536, tokens, {520}, LinearOut::kResidual},
                                       {form, 64, tokens, {3000}, LinearOut::kStore},
                                       {form, 1056, tokens, {300, 300}, LinearOut::kGated}};
      double worst = 0;
      if (form == WeightForm::kFp8) worst = run_case({form, 1056, tokens, {300, 40}, LinearOut::kStore, true}, random);
      for (const Case& c : cases) worst = std::max(worst, run_case(c, random));
      if (!(worst < 1e-2)) failed++, std::printf("FAIL ");
      std::printf("check linear %-5s %2d tokens: relative error %.2e\n", form_name(form), tokens, worst);
    }
  }
  return failed;
}

struct Shape {
  const char* name;
  int rows, cols;
  LinearOut kind;
};

void run_bench() {
  const double ceiling = read_ceiling_gbs();
  std::printf("read ceiling %.0f GB/s\n%-20s %-5s %6s %9s %9s %6s\n", ceiling, "shape", "form", "tokens", "us", "GB/s", "%");
  const std::vector<Shape> shapes = {{"qkv 6144x4096", 6144, 4096, LinearOut::kStore}, {"o 4096x4096", 4096, 4096, LinearOut::kResidual},
                                     {"gate_up 28672x4096", 28672, 4096, LinearOut::kGated}, {"down 4096x14336", 4096, 14336, LinearOut::kResidual},
                                     {"head 128256x4096", 128256, 4096, LinearOut::kStore}, {"qkv 5120x2880", 5120, 2880, LinearOut::kStore}};
  for (WeightForm form : {WeightForm::kBf16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kInt8}) {
    for (int tokens : {1, 8, 16}) {
      std::vector<std::vector<LinearParams>> all;  // [shape][copy]
      std::vector<std::unique_ptr<Buffer<__nv_bfloat16>>> memory;
      Buffer<float> out(size_t(64) * 128256), norm(28672), squares(kMaxSquareParts * kMaxLinearTokens);
      Buffer<__nv_bfloat16> x(64 * 14336), next(64 * 28672), gated(64 * 14336);
      out.zero(), norm.zero(), squares.zero(), x.zero();
      fill_normal(x.device, x.count, 1);
      for (const Shape& s : shapes) {
        const size_t bytes = s.rows * (row_value_bytes(form, s.cols) + row_scale_bytes(form, s.cols));
        const int copies = std::clamp<int>((size_t{400} << 20) / bytes, 2, 16);
        all.emplace_back();
        for (int i = 0; i < copies; ++i) {
          memory.push_back(std::make_unique<Buffer<__nv_bfloat16>>(bytes / 2 + 64));
          fill_normal(memory.back()->device, bytes / 2, i + 1, 0.02f);
          const auto* base = reinterpret_cast<const uint8_t*>(memory.back()->device);
          LinearParams p{.out_kind = s.kind, .x = x.device, .tokens = tokens, .squares = squares.device, .num_squares = kSms, .eps = 1,
                         .out = out.device, .out_stride = s.rows, .next_norm = norm.device, .next = next.device,
                         .out_squares = squares.device, .gated = gated.device};
          const int parts = s.kind == LinearOut::kGated ? 2 : 1, rows = s.rows / parts;
          p.num_matrices = parts;
          for (int part = 0; part < parts; ++part) {
            p.matrix[part] = {form, base + part * rows * row_value_bytes(form, s.cols),
                              base + s.rows * row_value_bytes(form, s.cols) + part * rows * row_scale_bytes(form, s.cols), nullptr, nullptr, nullptr,
                              rows, s.cols};
          }
          all.back().push_back(p);
        }
        const double us = time_us(copies * 2, [&](int i, cudaStream_t stream) {
          GPU_CHECK(run_linear(all.back()[i % copies], kSms, stream));
        });
        const double gbs = bytes / us / 1000;
        std::printf("%-20s %-5s %6d %9.1f %9.0f %5.0f%%\n", s.name, form_name(form), tokens, us, gbs, 100 * gbs / ceiling);
      }
      double bytes = 0;  // a layer: the first four in turn
      for (int i = 0; i < 4; ++i) bytes += double(shapes[i].rows) * (row_value_bytes(form, shapes[i].cols) + row_scale_bytes(form, shapes[i].cols));
      const double us = 4 * time_us(32, [&](int i, cudaStream_t stream) {
        GPU_CHECK(run_linear(all[i % 4][i / 4 % all[i % 4].size()], kSms, stream));
      });
      std::printf("%-20s %-5s %6d %9.1f %9.0f %5.0f%%\n", "layer of the four", form_name(form), tokens, us, bytes / us / 1000, 100 * bytes / us / 1000 / ceiling);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "all";
  int failed = 0;
  GPU_CHECK(prepare_linear());
  if (mode != "bench") failed = run_checks();
  if (mode != "check") run_bench();
  if (failed > 0) std::printf("%d checks failed\n", failed);
  return failed > 0;
}
