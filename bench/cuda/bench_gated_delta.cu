// Linear attention by the gated delta rule: both forms against float64 on fresh random inputs, from
// a captured graph; then us, GB/s and TFLOP/s at Qwen3.6-35B-A3B's shape.
//   bench_gated_delta [check|bench|small|all]
#include <cstring>
#include <string>

#include "kernels/blocks.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/gpu_workbench.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

constexpr int kLayers = 2, kLayer = 1;  // the layer in the middle of a slot
constexpr float kEps = 1e-6f;
constexpr int kGateHidden = 2048, kGateParts = 35;
constexpr double kBound = 5e-3;       // of the outputs, which are bf16
constexpr double kStateBound = 2e-5;  // of states, which are sums of fp32

struct Work {
  int q_len, past;      // tokens of this step, and before it
  bool copies = false;  // starts from a checkpoint
  bool saves = false;
};

struct Shape {
  int k_heads, v_heads, dim;
};

// A step's rows, decode rows first, on a pool of states with checkpoints.
struct Problem {
  Shape s;
  std::vector<Work> work;
  int decode_rows = 0, tokens = 0, max_rows;
  int channels, in_stride;
  Buffer<BatchRow> rows;
  Buffer<float> in, ba, conv, decay, dt_bias, norm, recurrent, inputs;
  Buffer<float> mixed, w, p, sums;
  Buffer<__nv_bfloat16> out;
  Buffer<__nv_bfloat16> gate_weights, gate_x;  // b, then a
  Buffer<float> gate_squares;
  std::vector<float> recurrent_before, inputs_before;
  DeltaParams params;

  static int tokens_of(const std::vector<Work>& work) {
    int n = 0;
    for (const Work& row : work) n += row.q_len;
    return n;
  }

  Problem(Shape shape, std::vector<Work> step, int num_decode, bool twin, std::mt19937& random)
      : s(shape),
        work(std::move(step)),
        decode_rows(num_decode),
        tokens(tokens_of(work)),
        max_rows(static_cast<int>(work.size())),
        channels((2 * s.k_heads + s.v_heads) * s.dim),
        in_stride(channels + s.v_heads * s.dim),
        rows(work.size()),
        in(size_t(tokens) * in_stride, twin),
        ba(size_t(tokens) * 2 * s.v_heads),
        conv(size_t(channels) * kDeltaInputs),
        decay(s.v_heads),
        dt_bias(s.v_heads),
        norm(s.dim),
        recurrent(size_t(2) * max_rows * kLayers * s.v_heads * s.dim * s.dim, twin),
        inputs(size_t(2) * max_rows * kLayers * kDeltaInputs * channels),
        mixed(size_t(tokens) * channels, twin),
        w(size_t(tokens) * s.v_heads * s.dim, twin),
        p(size_t(tokens) * s.v_heads * kDeltaChunk, twin),
        sums(size_t(tokens) * s.v_heads),
        out(size_t(tokens) * s.v_heads * s.dim),
        gate_weights(size_t(2) * s.v_heads * kGateHidden),
        gate_x(size_t(tokens) * kGateHidden),
        gate_squares(size_t(kGateParts) * tokens) {
    std::normal_distribution<float> normal;
    int start = 0;
    for (size_t r = 0; r < work.size(); ++r) {
      // Checkpoint r + 1 is row r's: to start from, or to save to.
      const int own = static_cast<int>(r) + 1;
      rows.host[r] = {static_cast<int32_t>(work.size() - 1 - r),
                      start,
                      work[r].q_len,
                      work[r].past + work[r].q_len,
                      1,
                      work[r].past == 0 ? kZeroState
                      : work[r].copies  ? own
                                        : 0,
                      work[r].saves ? own : 0};
      start += work[r].q_len;
    }
    for (float& v : ba.host) v = 2 * normal(random);
    for (float& v : conv.host) v = normal(random) * 0.5f;
    for (int h = 0; h < s.v_heads; ++h)
      decay.host[h] = -std::exp(2 * normal(random) - 2), dt_bias.host[h] = normal(random);
    for (float& v : norm.host) v = 1 + 0.3f * normal(random);
    for (auto* b : {&ba, &conv, &decay, &dt_bias, &norm}) b->upload();
    if (twin) {
      for (float& v : in.host) v = normal(random);
      for (float& v : recurrent.host) v = normal(random) * 0.3f;
      in.upload(), recurrent.upload();
    } else {
      in.zero(), recurrent.zero();
    }
    for (float& v : inputs.host) v = normal(random);
    inputs.upload();
    recurrent_before = recurrent.host, inputs_before = inputs.host;
    rows.upload();
    params.rows = {rows.device, static_cast<int>(work.size()), decode_rows, tokens};
    params.states = {recurrent.device, inputs.device, int64_t{kLayers} * s.v_heads * s.dim * s.dim,
                     int64_t{kLayers} * kDeltaInputs * channels, max_rows};
    params.layer = kLayer, params.k_heads = s.k_heads, params.v_heads = s.v_heads,
    params.dim = s.dim;
    params.in = in.device, params.in_stride = in_stride, params.ba = ba.device,
    params.conv = conv.device, params.decay = decay.device;
    params.dt_bias = dt_bias.device, params.norm = norm.device, params.eps = kEps;
    params.scratch = {mixed.device, w.device, p.device, sums.device}, params.out = out.device;
  }

  // b and a are to be made by the kernel; `ba` then says what they should be.
  void make_gates(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (__nv_bfloat16& v : gate_weights.host) v = __float2bfloat16(normal(random) * 0.1f);
    for (__nv_bfloat16& v : gate_x.host) v = __float2bfloat16(normal(random));
    for (float& v : gate_squares.host) v = kGateHidden * (0.2f + std::abs(normal(random)));
    for (int t = 0; t < tokens; ++t) {
      double squares = 0;
      for (int i = 0; i < kGateParts; ++i) squares += gate_squares.host[i * tokens + t];
      for (int row = 0; row < 2 * s.v_heads; ++row) {
        double sum = 0;
        for (int k = 0; k < kGateHidden; ++k) {
          sum += double(__bfloat162float(gate_weights.host[row * kGateHidden + k])) *
                 double(__bfloat162float(gate_x.host[t * kGateHidden + k]));
        }
        ba.host[size_t(t) * 2 * s.v_heads + row] = static_cast<float>(sum / std::sqrt(squares / kGateHidden + kEps));
      }
    }
    gate_weights.upload(), gate_x.upload(), gate_squares.upload();
    params.ba = nullptr;
    params.gates = {.b = gate_weights.device, .a = gate_weights.device + s.v_heads * kGateHidden, .x = gate_x.device,
                    .hidden = kGateHidden, .squares = gate_squares.device, .num_squares = kGateParts,
                    .squares_stride = tokens, .eps = kEps};
  }

  void run(cudaStream_t stream) const {
    if (decode_rows > 0) GPU_CHECK(run_delta_decode(params, stream));
    if (decode_rows < static_cast<int>(work.size())) GPU_CHECK(run_delta_extend(params, stream));
  }
  size_t state_at(int64_t slot) const {
    return size_t(slot * params.states.recurrent_stride) +
           size_t{kLayer} * s.v_heads * s.dim * s.dim;
  }
  size_t inputs_at(int64_t slot) const {
    return size_t(slot * params.states.conv_stride) + size_t{kLayer} * kDeltaInputs * channels;
  }
};

struct Errors {
  double square = 0, size = 0;
  void add(double got, double expected) {
    square += (got - expected) * (got - expected), size += expected * expected;
    if (!std::isfinite(got)) square = HUGE_VAL;
  }
  double relative() const { return std::sqrt(square / std::max(size, 1e-30)); }
};

struct Result {
  Errors out, state, inputs;
  bool untouched = true;  // slots that no row writes
};

double silu(double v) { return v / (1 + std::exp(-v)); }

// One v-head of a row in float64; `mixed` [q_len][channels] is behind the convolution.
void expect_head(const Problem& t, int r, int h, const std::vector<double>& mixed, Result& result) {
  const BatchRow& row = t.rows.host[r];
  const int d = t.s.dim, k_head = h / (t.s.v_heads / t.s.k_heads), keys = t.s.k_heads * d;
  std::vector<double> state(size_t(d) * d), q(d), k(d), o(d);
  if (row.state_from != kZeroState) {
    const size_t at = t.state_at(state_source(t.params.states, row)) + size_t(h) * d * d;
    for (size_t i = 0; i < state.size(); ++i) state[i] = t.recurrent_before[at + i];
  }
  for (int i = 0; i < row.q_len; ++i) {
    const size_t token = row.q_start + i;
    const double* x = mixed.data() + size_t(i) * t.channels;
    double qq = 0, kk = 0;
    for (int j = 0; j < d; ++j)
      q[j] = x[k_head * d + j], k[j] = x[keys + k_head * d + j], qq += q[j] * q[j],
      kk += k[j] * k[j];
    for (int j = 0; j < d; ++j)
      q[j] /= std::sqrt(qq + GatedDeltaBlock::kL2Eps) * std::sqrt(double(d)),
          k[j] /= std::sqrt(kk + GatedDeltaBlock::kL2Eps);
    const double b = t.ba.host[token * 2 * t.s.v_heads + h],
                 a = double(t.ba.host[(token * 2 + 1) * t.s.v_heads + h]) + t.dt_bias.host[h];
    const double keep = std::exp(t.decay.host[h] * (a > 20 ? a : std::log1p(std::exp(a)))),
                 beta = 1 / (1 + std::exp(-b));
    double squares = 0;
    for (int c = 0; c < d; ++c) {
      double recalled = 0, read = 0;
      for (int j = 0; j < d; ++j) state[j * d + c] *= keep, recalled += state[j * d + c] * k[j];
      const double u = beta * (x[2 * keys + h * d + c] - recalled);
      for (int j = 0; j < d; ++j) state[j * d + c] += k[j] * u, read += state[j * d + c] * q[j];
      o[c] = read, squares += read * read;
    }
    for (int c = 0; c < d; ++c) {
      const double z = t.in.host[token * t.in_stride + t.channels + h * d + c];
      const double expected = o[c] / std::sqrt(squares / d + kEps) * t.norm.host[c] * silu(z);
      result.out.add(__bfloat162float(t.out.host[(token * t.s.v_heads + h) * d + c]), expected);
    }
  }
  for (const int64_t slot : {int64_t{row.slot}, state_target(t.params.states, row)}) {
    if (slot < 0) continue;
    for (size_t i = 0; i < state.size(); ++i)
      result.state.add(t.recurrent.host[t.state_at(slot) + size_t(h) * d * d + i], state[i]);
  }
}

void expect_row(const Problem& t, int r, Result& result) {
  const BatchRow& row = t.rows.host[r];
  const int past = row.kv_len - row.q_len;
  const size_t ring = t.inputs_at(state_source(t.params.states, row));
  const auto input = [&](int position, int c) -> float {
    if (position < 0) return 0;
    if (position >= past) return t.in.host[size_t(row.q_start + position - past) * t.in_stride + c];
    return t.inputs_before[ring + size_t(position % kDeltaInputs) * t.channels + c];
  };
  std::vector<double> mixed(size_t(row.q_len) * t.channels);
  for (int i = 0; i < row.q_len; ++i) {
    for (int c = 0; c < t.channels; ++c) {
      double sum = 0;
      for (int j = 0; j < kDeltaInputs; ++j)
        sum +=
            double(t.conv.host[c * kDeltaInputs + j]) * input(past + i - (kDeltaInputs - 1) + j, c);
      mixed[size_t(i) * t.channels + c] = silu(sum);
    }
  }
  for (int h = 0; h < t.s.v_heads; ++h) expect_head(t, r, h, mixed, result);
  for (const int64_t slot : {int64_t{row.slot}, state_target(t.params.states, row)}) {
    for (int position = std::max(0, row.kv_len - (kDeltaInputs - 1));
         slot >= 0 && position < row.kv_len; ++position) {
      for (int c = 0; c < t.channels; ++c)
        result.inputs.add(
            t.inputs.host[t.inputs_at(slot) + size_t(position % kDeltaInputs) * t.channels + c],
            input(position, c));
    }
  }
}

int check(const char* name, Shape shape, const std::vector<Work>& work, int decode_rows,
          std::mt19937& random, bool gates = false) {
  Problem t(shape, work, decode_rows, true, random);
  if (gates) t.make_gates(random);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  GPU_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  GPU_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  t.run(stream);
  GPU_CHECK(cudaStreamEndCapture(stream, &graph));
  GPU_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  GPU_CHECK(cudaGraphLaunch(exec, stream));
  GPU_CHECK(cudaStreamSynchronize(stream));
  GPU_CHECK(cudaGraphExecDestroy(exec)), GPU_CHECK(cudaGraphDestroy(graph)),
      GPU_CHECK(cudaStreamDestroy(stream));
  t.out.download(), t.recurrent.download(), t.inputs.download();
  Result result;
  for (size_t r = 0; r < work.size(); ++r) expect_row(t, static_cast<int>(r), result);
  for (size_t r = 0; r < work.size();
       ++r) {  // the other layer of every slot, and checkpoints that nobody saves to
    const BatchRow& row = t.rows.host[r];
    for (const int64_t slot : {int64_t{row.slot}, int64_t{t.max_rows} + static_cast<int64_t>(r)}) {
      const bool saved = slot >= t.max_rows && row.state_save > 0;
      const size_t values =
          slot >= t.max_rows && !saved
              ? size_t(t.params.states.recurrent_stride)
              : t.state_at(slot) - size_t(slot * t.params.states.recurrent_stride);
      const size_t at = size_t(slot * t.params.states.recurrent_stride);
      result.untouched &=
          std::memcmp(&t.recurrent.host[at], &t.recurrent_before[at], values * sizeof(float)) == 0;
    }
  }
  const bool good = result.out.relative() < kBound && result.state.relative() < kStateBound &&
                    result.inputs.relative() == 0 && result.untouched;
  std::printf("check gated delta %2d/%2d x %3d %-26s: outputs %.1e, states %.1e, inputs %.1e%s%s\n",
              shape.k_heads, shape.v_heads, shape.dim, name, result.out.relative(),
              result.state.relative(), result.inputs.relative(),
              result.untouched ? "" : ", others touched", good ? "" : "  FAILED");
  return good ? 0 : 1;
}

int run_checks(bool small) {
  std::mt19937 random(std::random_device{}());
  int failed = 0;
  for (const Shape shape : {Shape{1, 1, 32}, Shape{2, 4, 64}, Shape{2, 6, 32}, Shape{2, 4, 128}}) {
    failed +=
        check("decode", shape,
              {{1, 0}, {1, 1}, {1, 2}, {1, 7}, {1, 500, true}, {1, 40, false, true}}, 6, random);
    failed += check("decode that makes b and a", shape, {{1, 0}, {1, 1}, {1, 7}, {1, 500, true}, {1, 40, false, true}}, 5,
                    random, true);
    failed += check("short prompts", shape, {{1, 0}, {2, 0}, {3, 5}, {2, 1}, {5, 3, true, true}}, 0,
                    random);
    if (small && shape.dim < 128) continue;
    failed += check("mixed, whole chunks", shape,
                    {{1, 9}, {1, 70}, {64, 0}, {128, 64, false, true}}, 2, random);
    failed +=
        check("mixed, all lengths", shape,
              {{1, 9}, {63, 2}, {65, 0}, {1, 3}, {130, 4, true}, {4, 1, false, true}, {191, 0}}, 1,
              random);
  }
  return failed;
}

void run_bench() {
  const double ceiling = read_ceiling_gbs();
  std::mt19937 random(1);
  const Shape shape{16, 32, 128};
  std::printf("read ceiling %.0f GB/s; 16 / 32 heads of 128\n%-24s %9s %9s %9s %6s\n", ceiling,
              "one layer", "us", "us/token", "GB/s", "%");
  const auto decode = [&](int rows, bool gates) {
    Problem t(shape, std::vector<Work>(rows, Work{1, 5}), rows, false, random);
    if (gates) t.make_gates(random);
    const double us = time_us(20, [&](int i, cudaStream_t stream) {
      DeltaParams p = t.params;
      p.layer = i % kLayers;
      GPU_CHECK(run_delta_decode(p, stream));
    });
    const double bytes = 2.0 * rows * shape.v_heads * shape.dim * shape.dim * sizeof(float);
    std::printf("decode %3d rows%-9s %9.2f %9.2f %9.0f %5.0f%%\n", rows, gates ? ", b, a" : "", us, us / rows,
                bytes / us / 1000, bytes / us / 10 / ceiling);
  };
  for (const int rows : {1, 8, 32, 64}) decode(rows, false);
  for (const int rows : {1, 2, 4, 8}) decode(rows, true);
  for (const auto& [rows, length] :
       {std::pair{1, 64}, {1, 512}, {1, 2048}, {1, 8192}, {4, 512}, {8, 1024}}) {
    Problem t(shape, std::vector<Work>(rows, Work{length, 0}), 0, false, random);
    const double us = time_us(
        4, [&](int, cudaStream_t stream) { GPU_CHECK(run_delta_extend(t.params, stream)); }, 7);
    std::printf("extend %d x %-5d         %9.1f %9.3f\n", rows, length, us, us / (rows * length));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = mode_of(argc, argv, "check small bench");
  GPU_CHECK(prepare_delta());
  int failed = 0;
  if (mode != "bench") failed = run_checks(mode == "small");
  if (mode == "all" || mode == "bench") run_bench();
  std::printf(failed == 0 ? "all checks passed\n" : "%d checks failed\n", failed);
  return failed > 0;
}
