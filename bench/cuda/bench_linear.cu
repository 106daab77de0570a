// Projections of few tokens and of more: correctness against float64 on fresh random inputs, then us, GB/s and share of
// the read ceiling; for more tokens TFLOP/s and cuBLASLt's time on the matrix as bf16 and f16, with what widening it
// costs.
//   bench_linear [check|bench|few|wide|all]
#include <cuda_fp16.h>

#include <cstring>
#include <memory>
#include <string>

#include "device/cuda/gpu_code.h"
#include "kernels/cuda/gemm_lt.h"
#include "kernels/cuda/gpu_workbench.h"
#include "kernels/cuda/linear_decode.h"
#include "kernels/cuda/linear_wide.h"
#include "kernels/cuda/token_ops.h"

using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

constexpr int kSms = 132;
const char* form_name(WeightForm form) {
  const char* names[] = {"bf16", "f16", "fp8", "int4", "nvfp4", "int8"};
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
      : values(rows * row_value_bytes(form, cols)),
        scales(rows * row_scale_bytes(form, cols)),
        row_scale(rows),
        block_scale(rows * ((cols + kScaleBlock - 1) / kScaleBlock)),
        bias(rows),
        dense(size_t(rows) * cols) {
    std::normal_distribution<float> normal;
    const int num_blocks = (cols + kScaleBlock - 1) / kScaleBlock;
    for (float& v : block_scale.host) v = 0.5f + std::abs(normal(random));
    for (int r = 0; r < rows; ++r) {
      bias.host[r] = normal(random);
      row_scale.host[r] = 0.5f + std::abs(normal(random));
      uint8_t* v = values.host.data() + r * row_value_bytes(form, cols);
      auto* s = reinterpret_cast<__half*>(scales.host.data() + r * row_scale_bytes(form, cols));
      if (four_bits(form)) std::memset(v, 0, cols / 2);
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
        } else if (form == WeightForm::kNvfp4) {
          constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
          if (k % 16 == 0) {
            uint8_t scale;
            do scale = random() & 255; while ((scale & 127) == 127 || std::abs(e4m3(scale)) > 8);
            s[k / 16] = __float2half(e4m3(scale) * kNvfp4Scale);
          }
          const uint32_t code = random() & 15;
          uint32_t word;
          std::memcpy(&word, v + k / 8 * 4, 4);
          word |= code << int4_position(k % 8);
          std::memcpy(v + k / 8 * 4, &word, 4);
          w = (code > 7 ? -1 : 1) * kValues[code & 7] * __half2float(s[k / 16]) / kNvfp4Scale * row_scale.host[r];
        } else if (form == WeightForm::kInt4) {
          if (k % 32 == 0) {
            for (int i = 0; i < 2; ++i) s[k / 32 * 2 + i] = __float2half(normal(random) * 0.1f);
          }
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
    matrix = {form,
              values.device,
              scales.device,
              (form == WeightForm::kFp8 && !blocks) || form == WeightForm::kNvfp4 ? row_scale.device : nullptr,
              blocks ? block_scale.device : nullptr,
              bias.device,
              rows,
              cols};
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
  bool wide() const { return tokens > kMaxLinearTokens; }
};

// Runs the kernel for the number of tokens; wide ones get x in their order.
void run_either(LinearParams p, Buffer<__nv_bfloat16>& ordered) {
  if (p.tokens <= kMaxLinearTokens) {
    GPU_CHECK(run_linear(p, kSms, nullptr));
    return;
  }
  const XOrder order = x_order(p.matrix[0].form);
  if (order != XOrder::kBf16) {
    GPU_CHECK(order_tokens(p.x, p.tokens, p.matrix[0].cols, order, ordered.device, nullptr));
    p.x = ordered.device;
  }
  GPU_CHECK(run_linear_wide(p, kSms, nullptr));
}

float value_in_order(const Buffer<__nv_bfloat16>& x, size_t row, XOrder order, int k) {
  const __nv_bfloat16 v = x.host[row + (order == XOrder::kBf16 ? k : x_position(order, k))];
  if (order == XOrder::kBf16) return __bfloat162float(v);
  __half h;
  std::memcpy(&h, &v, 2);
  return __half2float(h) * 16;
}

// Whether a repeat, and one with fewer tokens of the same tile, gives the same bits.
bool repeats(LinearParams p, Buffer<__nv_bfloat16>& ordered, Buffer<float>& out) {
  const std::vector<float> first = out.host;
  for (int tokens : {p.tokens, p.tokens - 1}) {
    out.poison();
    p.tokens = tokens;
    run_either(p, ordered);
    GPU_CHECK(cudaDeviceSynchronize());
    out.download();
    if (std::memcmp(first.data(), out.host.data(), size_t(tokens) * p.out_stride * 4) != 0) return false;
  }
  return true;
}

// Relative error (against the rows' root mean square) of one call.
double run_case(const Case& c, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<std::unique_ptr<TestMatrix>> w;
  int rows = 0;
  for (int r : c.rows) w.push_back(std::make_unique<TestMatrix>(c.form, c.blocks, r, c.cols, random)), rows += r;
  const size_t x_count = size_t(c.tokens) * c.cols;
  Buffer<__nv_bfloat16> x(x_count + 512), ordered(x_count + 512), next(size_t(c.tokens) * rows),
      gated(size_t(c.tokens) * c.rows[0]);
  std::vector<float> xf(x_count);
  for (__nv_bfloat16& v : x.host) v = __float2bfloat16(NAN);  // what lies behind the last row
  for (size_t i = 0; i < x_count; ++i) {
    x.host[i] = __float2bfloat16(normal(random)), xf[i] = __bfloat162float(x.host[i]);
  }
  x.upload();
  constexpr int kParts = 3;
  const int stride = c.wide() ? c.tokens + 3 : kMaxLinearTokens;
  Buffer<float> squares(kParts * stride), out(size_t(c.tokens) * rows), norm(rows),
      out_squares(size_t(kMaxSquareParts) * stride);
  std::vector<double> factor(c.tokens);
  // At least 1 a part: a token whose norm multiplies it by much has gated values beyond a million, where halves end.
  for (float& v : squares.host) v = (1 + std::abs(normal(random))) * c.cols;
  for (int m = 0; m < c.tokens; ++m) {
    double total = 0;
    for (int i = 0; i < kParts; ++i) total += squares.host[i * stride + m];
    factor[m] = 1 / std::sqrt(total / c.cols + 1e-5);
  }
  for (float& v : norm.host) v = 1 + 0.1f * normal(random);
  for (float& v : out.host) v = normal(random);
  const std::vector<float> before = out.host;
  squares.upload(), norm.upload();
  if (c.kind == LinearOut::kResidual) out.upload();
  LinearParams p{.num_matrices = int(c.rows.size()),
                 .out_kind = c.kind,
                 .x = x.device,
                 .tokens = c.tokens,
                 .squares = squares.device,
                 .num_squares = kParts,
                 .squares_stride = stride,
                 .eps = 1e-5f,
                 .out = out.device,
                 .out_stride = rows,
                 .next_norm = norm.device,
                 .next = next.device,
                 .next_order = c.wide() && c.rows[0] % 32 == 0 ? static_cast<XOrder>(random() % 4) : XOrder::kBf16,
                 .out_squares = out_squares.device,
                 .gated = gated.device};
  for (size_t i = 0; i < w.size(); ++i) p.matrix[i] = w[i]->matrix;
  run_either(p, ordered);
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
        compare(gate / (1 + std::exp(-gate)) * up, value_in_order(gated, size_t(m) * c.rows[0], p.next_order, r));
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
          compare(want * norm.host[column], value_in_order(next, size_t(m) * rows, p.next_order, column));
          total_squares += double(out.host[at]) * out.host[at];
        }
        compare(want, out.host[at]);
      }
    }
    if (c.kind == LinearOut::kResidual) {
      double got = 0;
      const int parts = c.wide() ? linear_wide_parts(p) : linear_ctas(p, kSms);
      for (int i = 0; i < parts; ++i) got += out_squares.host[i * stride + m];
      if (!(std::abs(got / total_squares - 1) < 1e-4)) worst = 2;
    }
  }
  const double usual = std::sqrt(size / outputs.size());
  for (const auto& [want, got] : outputs) {
    if (!(std::abs(want - got) < 0.15 * (usual + std::abs(want)))) worst = 1;  // NaN too
  }
  if (c.kind == LinearOut::kStore && !repeats(p, ordered, out)) worst = 3;
  return worst > 0 ? 100 * worst : std::sqrt(error / size);
}

// Worst difference of the widened values from the stored ones times their scales, in roundings to f16: 1 at most.
double widened_error(const TestMatrix& w, Buffer<__half>& widened) {
  widened.poison();
  GPU_CHECK(widen(w.matrix, widened.device, nullptr));
  GPU_CHECK(cudaDeviceSynchronize());
  widened.download();
  double worst = 0;
  for (size_t i = 0; i < w.dense.size(); ++i) {
    const double want = std::clamp(double(w.dense[i]), -65504.0, 65504.0);
    const double rounding = std::max(std::abs(want) * std::ldexp(1, -11), std::ldexp(1, -25));
    const double error = std::abs(double(__half2float(widened.host[i])) - want) / rounding;
    if (!(error <= worst)) worst = std::isnan(error) ? 1e9 : error;
  }
  return worst;
}

// Relative error of cuBLASLt's product of the widened matrix, as the backend runs it.
double library_error(GemmLt& gemm, const TestMatrix& w, const Buffer<__half>& widened, bool fp32_out,
                     std::mt19937& random) {
  constexpr int kTokens = 70;
  const int rows = w.matrix.rows, cols = w.matrix.cols;
  std::normal_distribution<float> normal;
  Buffer<__nv_bfloat16> x(size_t(kTokens) * cols), ordered(x.count);
  std::vector<float> xf(x.count);
  for (size_t i = 0; i < x.count; ++i) {
    x.host[i] = __float2bfloat16(normal(random)), xf[i] = __bfloat162float(x.host[i]);
  }
  x.upload();
  GPU_CHECK(order_tokens(x.device, kTokens, cols, XOrder::kHalf2, ordered.device, nullptr));
  Buffer<float> out(size_t(kTokens) * rows);
  out.poison();
  const GemmShape shape{.n = rows, .k = cols, .half = true, .fp32_out = fp32_out};
  if (!gemm.prepare(shape, kTokens).ok()) return 1e9;
  GPU_CHECK(gemm.run({.shape = shape, .x = ordered.device, .w = widened.device, .tokens = kTokens, .out = out.device,
                      .out_stride = rows, .alpha = fp32_out ? kHalfFactor : 1.0f}, nullptr));
  GPU_CHECK(cudaDeviceSynchronize());
  out.download();
  double error = 0, size = 0;
  for (int m = 0; m < kTokens; ++m) {
    for (int r = 0; r < rows; ++r) {
      const size_t at = size_t(m) * rows + r;
      double got = out.host[at];
      if (!fp32_out) {
        __half h;
        std::memcpy(&h, reinterpret_cast<const char*>(out.host.data()) + at * 2, 2);
        got = double(__half2float(h)) * kHalfFactor;
      }
      const double want = sum_row(w, xf, r, m, 1) - w.bias.host[r];
      error += (want - got) * (want - got), size += want * want;
    }
  }
  const double relative = std::sqrt(error / size);
  return std::isnan(relative) ? 1e9 : relative;
}

// Widening rounds once to f16, saturates, and products of widened matrices are as exact: bf16 would be at 1e-3.
int check_widening(std::mt19937& random) {
  int failed = 0;
  auto gemm = GemmLt::create();
  Buffer<uint8_t> workspace(kGemmWorkspace, false);
  if (!gemm) return std::printf("FAIL %s\n", gemm.error().message().c_str()), 1;
  (*gemm)->set_workspace(workspace.device);
  const std::vector<std::pair<WeightForm, bool>> forms = {
      {WeightForm::kFp8, false}, {WeightForm::kFp8, true}, {WeightForm::kInt4, false}, {WeightForm::kNvfp4, false},
      {WeightForm::kInt8, false}};
  for (const auto& [form, blocks] : forms) {
    TestMatrix w(form, blocks, 328, 1056, random);
    Buffer<__half> widened(w.dense.size());
    const double values = widened_error(w, widened);
    const double sums = library_error(**gemm, w, widened, true, random);
    const double halves = library_error(**gemm, w, widened, false, random);
    double large = 0;
    if (form == WeightForm::kFp8 && !blocks) {  // some products with their scales are beyond f16
      const float factor = 1e5f;
      for (float& v : w.row_scale.host) v *= factor;
      for (float& v : w.dense) v *= factor;
      w.row_scale.upload();
      large = widened_error(w, widened);
    }
    const bool ok = values <= 1.01 && large <= 1.01 && sums < 5e-4 && halves < 5e-4;
    if (!ok) failed++, std::printf("FAIL ");
    std::printf("check widened %-5s%s: %.2f and %.2f roundings to f16, products %.2e, as f16 %.2e\n", form_name(form),
                blocks ? " in blocks" : "", values, large, sums, halves);
  }
  return failed;
}

// Small enough for racecheck, which takes a thousand times as long.
int run_small() {
  std::mt19937 random(std::random_device{}());
  int failed = 0;
  for (WeightForm form : {WeightForm::kBf16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kNvfp4}) {
    for (int tokens : {3, 18}) {
      if (tokens > 16 && !has_hopper_code()) continue;
      const double worst = std::max(run_case({form, 576, tokens, {67, 130}, LinearOut::kStore}, random),
                                    run_case({form, 320, tokens, {96, 96}, LinearOut::kGated}, random));
      if (!(worst < 1e-2)) failed++, std::printf("FAIL ");
      std::printf("check linear %-5s %3d tokens: relative error %.2e\n", form_name(form), tokens, worst);
    }
  }
  return failed;
}

int run_checks() {
  std::mt19937 random(std::random_device{}());
  int failed = check_widening(random);
  std::vector<int> counts = {1, 3, 5, 8, 9, 16};
  if (has_hopper_code()) counts.insert(counts.end(), {18, 40, 64, 100, 258});
  for (WeightForm form :
       {WeightForm::kBf16, WeightForm::kF16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kNvfp4, WeightForm::kInt8}) {
    for (int tokens : counts) {
      const std::vector<Case> cases = {{form, 576, tokens, {576, 192, 192}, LinearOut::kStore},
                                       {form, 1536, tokens, {520}, LinearOut::kResidual},
                                       {form, 64, tokens, {tokens > 64 ? 500 : 3000}, LinearOut::kStore},
                                       {form, 2880, tokens, {67, 130}, LinearOut::kStore},
                                       {form, 320, tokens, {352}, LinearOut::kResidual},
                                       {form, 192, tokens, {288, 288}, LinearOut::kGated},
                                       {form, 1056, tokens, {300, 300}, LinearOut::kGated}};
      double worst = 0;
      if (form == WeightForm::kFp8) worst = run_case({form, 1056, tokens, {300, 40}, LinearOut::kStore, true}, random);
      for (const Case& c : cases) worst = std::max(worst, run_case(c, random));
      if (!(worst < 1e-2)) failed++, std::printf("FAIL ");
      std::printf("check linear %-5s %3d tokens: relative error %.2e\n", form_name(form), tokens, worst);
    }
  }
  return failed;
}

struct Shape {
  const char* name;
  int rows, cols;
  LinearOut kind;
};

const std::vector<Shape> kShapes = {
    {"qkv 6144x4096", 6144, 4096, LinearOut::kStore},       {"o 4096x4096", 4096, 4096, LinearOut::kResidual},
    {"gate_up 28672x4096", 28672, 4096, LinearOut::kGated}, {"down 4096x14336", 4096, 14336, LinearOut::kResidual},
    {"head 128256x4096", 128256, 4096, LinearOut::kStore},  {"qkv 5120x2880", 5120, 2880, LinearOut::kStore}};

size_t stored_bytes(const Shape& s, WeightForm form) {
  return s.rows * (row_value_bytes(form, s.cols) + row_scale_bytes(form, s.cols));
}

// Everything that the products of a table work on; matrices lie in `weights`, one behind the other, and are used in
// turn.
struct Memory {
  Buffer<__nv_bfloat16> weights, x, next, gated, widened;
  Buffer<float> out, norm, squares;
  explicit Memory(int tokens)
      : weights(size_t(1200) << 20, false),
        x(size_t(tokens) * 14336),
        next(size_t(tokens) * 4096),
        gated(size_t(tokens) * 14336),
        widened(size_t(128256) * 4096, false),
        out(size_t(tokens) * 128256, false),
        norm(28672),
        squares(size_t(kMaxSquareParts) * tokens) {
    out.zero(), norm.zero(), squares.zero();
    fill_normal(x.device, x.count, 1), fill_normal(weights.device, weights.count, 2, 0.02f),
        fill_normal(widened.device, widened.count, 3, 0.02f);
  }
  int copies(const Shape& s, WeightForm form) const {
    return std::clamp<int>((size_t{400} << 20) / stored_bytes(s, form), 2, 16);
  }
  LinearParams problem(const Shape& s, WeightForm form, int tokens, int copy) const {
    const auto* base =
        reinterpret_cast<const uint8_t*>(weights.device) + copy * (stored_bytes(s, form) + 255) / 256 * 256;
    const int parts = s.kind == LinearOut::kGated ? 2 : 1, rows = s.rows / parts;
    LinearParams p{.num_matrices = parts,
                   .out_kind = s.kind,
                   .x = x.device,
                   .tokens = tokens,
                   .squares = squares.device,
                   .num_squares = tokens > kMaxLinearTokens ? 32 : kSms,
                   .squares_stride = std::max(tokens, kMaxLinearTokens),
                   .eps = 1,
                   .out = out.device,
                   .out_stride = s.rows,
                   .next_norm = norm.device,
                   .next = next.device,
                   .out_squares = squares.device,
                   .gated = gated.device};
    for (int part = 0; part < parts; ++part) {
      p.matrix[part] = {form,
                        base + part * rows * row_value_bytes(form, s.cols),
                        base + s.rows * row_value_bytes(form, s.cols) + part * rows * row_scale_bytes(form, s.cols),
                        nullptr,
                        nullptr,
                        nullptr,
                        rows,
                        s.cols};
    }
    return p;
  }
};

void run_few() {
  const double ceiling = read_ceiling_gbs();
  std::printf("read ceiling %.0f GB/s\n%-20s %-5s %6s %9s %9s %6s\n", ceiling, "shape", "form", "tokens", "us", "GB/s",
              "%");
  const Memory memory(kMaxLinearTokens);
  for (WeightForm form : {WeightForm::kBf16, WeightForm::kFp8, WeightForm::kInt4, WeightForm::kNvfp4, WeightForm::kInt8}) {
    for (int tokens : {1, 8, 16}) {
      const auto time = [&](const char* name, double bytes, int calls,
                            const std::function<LinearParams(int)>& problem) {
        const double us =
            time_us(calls, [&](int i, cudaStream_t stream) { GPU_CHECK(run_linear(problem(i), kSms, stream)); });
        const double gbs = bytes / us / 1000;
        std::printf("%-20s %-5s %6d %9.1f %9.0f %5.0f%%\n", name, form_name(form), tokens, us, gbs,
                    100 * gbs / ceiling);
      };
      double layer = 0;  // the first four in turn
      for (const Shape& s : kShapes) {
        const int copies = memory.copies(s, form);
        time(s.name, stored_bytes(s, form), copies * 2,
             [&](int i) { return memory.problem(s, form, tokens, i % copies); });
        if (&s < &kShapes[4]) layer += stored_bytes(s, form);
      }
      time("mean of the first 4", layer / 4, 32, [&](int i) {
        return memory.problem(kShapes[i % 4], form, tokens, i / 4 % memory.copies(kShapes[i % 4], form));
      });
    }
  }
}

void run_wide() {
  auto gemm = GemmLt::create();
  Buffer<uint8_t> workspace(kGemmWorkspace, false);
  if (gemm) (*gemm)->set_workspace(workspace.device);
  std::printf("%-20s %6s | %-38s | %s\n", "shape", "tokens", "us: bf16 fp8 blocks int4 int8",
              "bf16 GB/s TFLOP/s | fp8 TFLOP/s | cuBLASLt us: bf16 f16; widening fp8 us");
  const std::vector<std::pair<WeightForm, bool>> forms = {{WeightForm::kBf16, false},
                                                          {WeightForm::kFp8, false},
                                                          {WeightForm::kFp8, true},
                                                          {WeightForm::kInt4, false},
                                                          {WeightForm::kInt8, false}};
  const Memory memory(2048);
  for (int tokens : {32, 64, 128, 256, 512, 2048}) {
    double layer[8] = {};
    for (const Shape& s : kShapes) {
      if (s.rows > 100000 && tokens > 512) continue;
      std::vector<double> us;
      for (const auto& [form, blocks] : forms) {
        const int copies = memory.copies(s, form);
        us.push_back(time_us(copies * 2, [&, form = form, blocks = blocks](int i, cudaStream_t stream) {
          LinearParams p = memory.problem(s, form, tokens, i % copies);
          if (blocks) p.matrix[0].block_scale = p.matrix[1].block_scale = memory.out.device;
          GPU_CHECK(run_linear_wide(p, kSms, stream));
        }, 7));
      }
      const int copies = memory.copies(s, WeightForm::kBf16);
      double library[2] = {};
      for (const bool half : {false, true}) {
        const GemmShape shape{.n = s.rows, .k = s.cols, .half = half, .fp32_out = true};
        if (!gemm || !(*gemm)->prepare(shape, tokens).ok()) continue;
        library[half] = time_us(copies * 2, [&](int i, cudaStream_t stream) {
          const __nv_bfloat16* w = memory.weights.device + i % copies * size_t(s.rows) * s.cols;
          GPU_CHECK((*gemm)->run({.shape = shape,
                                  .x = memory.x.device,
                                  .w = w,
                                  .tokens = tokens,
                                  .out = memory.out.device,
                                  .out_stride = s.rows,
                                  .accumulate = s.kind == LinearOut::kResidual},
                                 stream));
        }, 7);
      }
      const int stored = memory.copies(s, WeightForm::kFp8);
      const double widening = time_us(stored * 2, [&](int i, cudaStream_t stream) {
        Matrix m = memory.problem(s, WeightForm::kFp8, tokens, i % stored).matrix[0];
        m.rows = s.rows;
        GPU_CHECK(widen(m, reinterpret_cast<__half*>(memory.widened.device), stream));
      }, 7);
      const double flops = 2.0 * s.rows * s.cols * tokens;
      std::printf("%-20s %6d | %7.1f %7.1f %7.1f %7.1f %7.1f | %5.0f %4.0f | %4.0f | %7.1f %7.1f %6.1f\n", s.name,
                  tokens, us[0], us[1], us[2], us[3], us[4], stored_bytes(s, WeightForm::kBf16) / us[0] / 1000,
                  flops / us[0] / 1e6, flops / us[1] / 1e6, library[0], library[1], widening);
      if (&s >= &kShapes[4]) continue;
      for (int i = 0; i < 5; ++i) layer[i] += us[i];
      layer[5] += library[0], layer[6] += library[1], layer[7] += widening;
    }
    std::printf("%-20s %6d | %7.1f %7.1f %7.1f %7.1f %7.1f |%24s %7.1f %7.1f %6.1f\n", "sum of the first 4", tokens,
                layer[0], layer[1], layer[2], layer[3], layer[4], "|", layer[5], layer[6], layer[7]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = mode_of(argc, argv, "check small bench few wide");
  int failed = 0;
  const bool all = mode == "all", bench = all || mode == "bench";
  GPU_CHECK(prepare_linear());
  if (has_hopper_code()) GPU_CHECK(prepare_linear_wide());
  if (all || mode == "check") failed = run_checks();
  if (mode == "small") failed = run_small();
  if (bench || mode == "few") run_few();
  if ((bench || mode == "wide") && has_hopper_code()) run_wide();
  if (failed > 0) std::printf("%d checks failed\n", failed);
  return failed > 0;
}
