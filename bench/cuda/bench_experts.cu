// Mixtures of experts: routing, products and weighted sum against float64 on fresh random inputs, from a captured
// graph; then us, GB/s and TFLOP/s (experts_speed.cu).
//   bench_experts [check|bench|small|all]
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "experts_memory.h"
#include "kernels/cuda/cuda_experts.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {


// What surrounds the experts: nothing and biases; a branch beside them that counts by a gate of its own; norms
// everywhere; one more expert that counts by a gate of its own.
enum class Kind { kGptOss, kQwen, kGemma, kShared };
const char* kind_name(Kind kind) {
  const char* names[] = {"gpt-oss", "qwen", "gemma", "shared"};
  return names[static_cast<int>(kind)];
}

enum class Spread { kRandom, kUneven, kSame, kTies };
const char* spread_name(Spread s) {
  const char* names[] = {"random", "uneven", "one for all", "ties"};
  return names[static_cast<int>(s)];
}

struct Case {
  ExpertForm form;
  int hidden, width, experts, top_k, tokens;
  Spread spread = Spread::kRandom;
  Format router = Format::kBF16;
  bool normed = false;  // x * norm is there already
  Kind kind = Kind::kGptOss;

  int matrices() const { return experts + (kind == Kind::kShared ? 1 : 0); }
  int taken() const { return top_k + (kind == Kind::kShared ? 1 : 0); }
};

float e4m3_value(unsigned bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float value = exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10);
  return bits & 128 ? -value : value;
}

// Calls work(i) of 0 to count - 1 on all cores.
void for_each(int count, const std::function<void(int)>& work) {
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (int at; (at = next.fetch_add(1)) < count;) work(at);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A matrix of every expert, packed, and its stored values.
struct TestExperts {
  std::vector<float> dense;  // [experts][rows][cols]
  Buffer<float> bias, scale;
  Buffer<uint8_t> packed;
  ExpertWeights weights;

  TestExperts(ExpertForm form, int experts, int rows, int cols, std::mt19937& random)
      : dense(size_t(experts) * rows * cols),
        bias(size_t(experts) * rows),
        scale(size_t(experts) * rows * scales_per_row(form, cols)),
        packed(size_t(experts) * expert_matrix_bytes(form, rows, cols)) {
    std::normal_distribution<float> normal;
    const Format format = format_of(form);
    const size_t stride = packed.count / experts, row_bytes = stored_row_bytes(format, cols);
    const bool scaled = format == Format::kNVFP4 || format == Format::kF8E4M3;
    for (float& v : bias.host) v = normal(random);
    const float size = std::sqrt(float(cols)) * (format == Format::kNVFP4 ? 3.0f : 1.5f);  // of the values as drawn
    for (float& v : scale.host) v = scaled ? std::exp(0.5f * normal(random)) / size : 1;
    const int per_row = scales_per_row(form, cols);
    for (size_t i = 0; form == ExpertForm::kFp8Block && i < scale.host.size(); ++i) {
      const int row = int(i / per_row % rows);  // a block of 128 rows has its first row's
      scale.host[i] = scale.host[i - size_t(row % 128) * per_row];
    }
    std::vector<uint32_t> seeds(experts);
    for (uint32_t& seed : seeds) seed = uint32_t(random());
    for_each(experts, [&](int e) {
      std::mt19937 random(seeds[e]);
      std::vector<std::byte> stored(row_bytes * rows);
      float* w = dense.data() + size_t(e) * rows * cols;
      for (int r = 0; r < rows; ++r)
        fill_row(format, stored.data() + r * row_bytes, cols, w + size_t(r) * cols, random);
      for (int64_t i = 0; i < int64_t(rows) * cols; ++i) {
        w[i] *= scale.host[(size_t(e) * rows + i / cols) * per_row + (per_row > 1 ? i % cols / 128 : 0)];
      }
      const TensorView view{
          .name = "expert", .format = format, .shape = {rows, cols}, .data = stored.data(), .bytes = stored.size()};
      if (!pack_expert(view, reinterpret_cast<std::byte*>(packed.host.data()) + e * stride).ok()) std::exit(1);
    });
    packed.upload(), bias.upload(), scale.upload();
    weights = {.first = {.format = format, .rows = rows, .cols = cols, .data = packed.device, .bias = bias.device,
                         .scale = scaled ? scale.device : nullptr, .scale_cols = !scaled ? 0 : per_row > 1 ? 128 : cols},
               .count = experts,
               .stride = int64_t(stride)};
  }

  static void fill_row(Format format, std::byte* row, int cols, float* w, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 1 / std::sqrt(float(cols)));
    constexpr float kCodes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    if (format == Format::kBF16) {
      for (int k = 0; k < cols; ++k) {
        const __nv_bfloat16 b = __float2bfloat16(normal(random));
        std::memcpy(row + k * 2, &b, 2);
        w[k] = __bfloat162float(b);
      }
      return;
    }
    if (format == Format::kF8E4M3) {
      for (int k = 0; k < cols; ++k) {
        unsigned byte;
        do byte = random() & 255; while ((byte & 127) >= 0x48);  // below 4
        row[k] = static_cast<std::byte>(byte), w[k] = e4m3_value(byte);
      }
      return;
    }
    if (format == Format::kNVFP4) {
      for (int k = 0; k < cols; k += 16, row += 9) {
        unsigned scale;  // of both signs, zeros and subnormals among them
        do scale = random() & 255; while ((scale & 127) >= 0x40 || (random() % 8 != 0 && (scale & 127) < 0x28));
        row[0] = static_cast<std::byte>(scale);
        for (int i = 0; i < 8; ++i) {
          const unsigned byte = random() & 255;
          row[1 + i] = static_cast<std::byte>(byte);
          for (int half = 0; half < 2; ++half) {
            const unsigned code = half ? byte >> 4 : byte & 15;
            w[k + 2 * i + half] = (code & 8 ? -1 : 1) * kCodes[code & 7] * e4m3_value(scale);
          }
        }
      }
      return;
    }
    for (int block = 0; block < cols / 32; ++block, row += 17) {
      const int e = random() % 16 == 0 ? int(random() % 100) : 124 - int(std::log2(cols)) / 2 + int(random() % 4);
      row[0] = static_cast<std::byte>(e);
      for (int i = 0; i < 16; ++i) {
        const unsigned byte = random() & 255;
        row[1 + i] = static_cast<std::byte>(byte);
        for (int half = 0; half < 2; ++half) {
          const unsigned code = half ? byte >> 4 : byte & 15;
          w[block * 32 + half * 16 + i] = e == 0 ? 0 : (code & 8 ? -1 : 1) * std::ldexp(kCodes[code & 7], e - 127);
        }
      }
    }
  }
};

struct Problem {
  const Case& c;
  std::mt19937& random;
  Memory m;
  TestExperts gate, up, down;
  std::vector<float> router;
  Buffer<uint8_t> stored_router;
  Buffer<float> router_bias, router_norm, expert_scale, experts_norm, dense_norm, sum_norm, out_scale;
  std::vector<float> dense_gate;
  Buffer<uint8_t> stored_dense_gate;
  MoeBlock block;
  StepRows rows;
  std::vector<bool> idle;
  int parts = 0;  // of the sums of squares

  Problem(const Case& c, std::mt19937& random)
      : c(c),
        random(random),
        m(c.hidden, c.width, c.matrices(), c.taken(), c.tokens),
        gate(c.form, c.matrices(), c.width, c.hidden, random),
        up(c.form, c.matrices(), c.width, c.hidden, random),
        down(c.form, c.matrices(), c.hidden, c.width, random),
        router(size_t(c.experts) * c.hidden),
        stored_router(router.size() * 4),
        router_bias(c.experts),
        router_norm(c.hidden),
        expert_scale(c.experts),
        experts_norm(c.hidden),
        dense_norm(c.hidden),
        sum_norm(c.hidden),
        out_scale(1),
        dense_gate(c.hidden),
        stored_dense_gate(size_t(c.hidden) * 4),
        idle(c.tokens) {
    std::normal_distribution<float> normal;
    const auto store = [&](float v, size_t i, Buffer<uint8_t>& stored, std::vector<float>& values) {
      if (c.router == Format::kF32) {
        std::memcpy(stored.host.data() + i * 4, &v, 4), values[i] = v;
      } else {
        const __nv_bfloat16 b = __float2bfloat16(v);
        std::memcpy(stored.host.data() + i * 2, &b, 2), values[i] = __bfloat162float(b);
      }
    };
    for (size_t i = 0; i < router.size(); ++i) {
      store(c.spread == Spread::kTies ? 0 : normal(random) / std::sqrt(float(c.hidden)), i, stored_router, router);
    }
    for (size_t i = 0; i < dense_gate.size(); ++i) store(normal(random) / std::sqrt(float(c.hidden)), i, stored_dense_gate, dense_gate);
    for (auto* b : {&router_norm, &experts_norm, &dense_norm, &sum_norm}) {
      for (float& v : b->host) v = 1 + 0.1f * normal(random);
      b->upload();
    }
    for (float& v : expert_scale.host) v = std::exp(0.3f * normal(random));
    for (float& v : m.dense.host) v = normal(random);
    out_scale.host[0] = 0.7f;
    expert_scale.upload(), m.dense.upload(), out_scale.upload(), stored_dense_gate.upload();
    for (int e = 0; e < c.experts; ++e) {
      float& b = router_bias.host[e];
      b = c.spread == Spread::kTies ? float(e % 2) : normal(random);
      if (c.spread == Spread::kSame) b += e >= c.experts - c.top_k ? 50 : 0;
      if (c.spread == Spread::kUneven) b += e % 3 == 0 ? -60 : e % 5 == 1 ? 3 : 0;
    }
    for (float& v : m.norm.host) v = 1 + 0.1f * normal(random);
    for (float& v : m.next_norm.host) v = 1 + 0.1f * normal(random);
    stored_router.upload(), router_bias.upload(), m.norm.upload(), m.next_norm.upload();
    make_rows();
    block = {.norm = {.weight = m.norm.device, .eps = 1e-5f},
             .router = {.format = c.router,
                        .rows = c.experts,
                        .cols = c.hidden,
                        .data = stored_router.device,
                        .bias = router_bias.device},
             .gate = gate.weights,
             .up = up.weights,
             .down = down.weights,
             .top_k = c.top_k};
    if (c.kind == Kind::kGptOss) return;
    block.activation = c.kind == Kind::kGemma ? Activation::kGeluTanh : Activation::kSilu;
    if (c.kind != Kind::kShared) block.dense.gate.rows = 1;  // present; what it gave lies in scratch
    if (c.kind != Kind::kGemma) {
      block.dense.share = {.format = c.router, .rows = 1, .cols = c.hidden, .data = stored_dense_gate.device};
      return;
    }
    block.router_norm = {router_norm.device, 1e-5f};
    block.expert_scale = expert_scale.device;
    block.experts_post_norm = {experts_norm.device, 1e-6f}, block.dense.post_norm = {dense_norm.device, 1e-5f};
    block.post_norm = {sum_norm.device, 1e-5f}, block.out_scale = out_scale.device;
  }
  // What the token's shared expert, or the branch beside the experts, counts.
  double dense_share(const float* x) const {
    double squares = 0, logit = 0;
    for (int k = 0; k < c.hidden; ++k) {
      squares += double(x[k]) * x[k], logit += double(dense_gate[k]) * x[k] * m.norm.host[k];
    }
    return 1 / (1 + std::exp(-logit / std::sqrt(squares / c.hidden + 1e-5)));
  }
  const std::vector<float>& routed_by() const { return c.kind == Kind::kGemma ? router_norm.host : m.norm.host; }

  // A third decode rows of which some are idle, then two rows of several tokens; few tokens: decode rows.
  void make_rows() {
    const int decode = c.tokens <= 64 ? c.tokens : c.tokens / 3, extend = c.tokens - decode;
    int num = 0;
    for (; num < decode; ++num) {
      idle[num] = c.tokens > 2 && random() % 5 == 0;
      m.rows.host[num] = {.slot = num, .q_start = num, .q_len = 1, .kv_len = idle[num] ? 0 : 5, .samples = 1};
    }
    for (int part = 0, at = decode; part < 2 && extend > 0; ++part) {
      const int count = part == 0 ? extend / 2 : c.tokens - at;
      m.rows.host[num] = {.slot = num, .q_start = at, .q_len = count, .kv_len = count, .samples = 1};
      at += count, ++num;
    }
    m.rows.upload();
    rows = {m.rows.device, num, decode, c.tokens};
  }

  void fill_x() {
    std::normal_distribution<float> normal;
    for (int t = 0; t < c.tokens; ++t) {
      const float size = std::exp(normal(random));
      for (int k = 0; k < c.hidden; ++k) {
        float& v = m.x.host[size_t(t) * c.hidden + k];
        v = idle[t] ? 0 : size * normal(random);
        m.normed.host[size_t(t) * c.hidden + k] = __float2bfloat16(v * m.norm.host[k]);
      }
    }
    m.x.upload();
    for (auto* b : {&m.y, &m.logits, &m.shares, &m.factor, &m.squares, &m.dense_share}) b->poison();
    for (auto* b : {&m.gated, &m.next, &m.normed}) b->poison();
    if (c.normed) m.normed.upload();
  }
  int stride() const { return std::max(c.tokens, 16); }
};

// Faults of the routing: logits, the choice made from them, shares, and that entries and tiles are a partition by
// expert.
bool routing_is_right(Problem& p, double* worst) {
  Memory& m = p.m;
  for (auto* b : {&m.logits, &m.shares, &m.factor}) b->download();
  for (auto* b : {&m.ids, &m.entry, &m.token, &m.counts, &m.arrived}) b->download();
  m.tiles.download();
  const Case& c = p.c;
  bool ok = true;
  const int taken = c.taken();
  std::vector<int> owner(size_t(c.tokens) * taken, -1);
  int entries = 0;
  for (int t = 0; t < c.tokens; ++t) {
    const int32_t* ids = m.ids.host.data() + size_t(t) * taken;
    if (p.idle[t]) {
      for (int i = 0; i < taken; ++i) ok &= ids[i] == -1 && m.entry.host[size_t(t) * taken + i] == -1;
      continue;
    }
    const float* x = p.m.x.host.data() + size_t(t) * c.hidden;  // as before the step
    const float* logits = m.logits.host.data() + size_t(t) * c.experts;
    double squares = 0;
    for (int k = 0; k < c.hidden; ++k) squares += double(x[k]) * x[k];
    const double factor = 1 / std::sqrt(squares / c.hidden + 1e-5);
    *worst = std::max(*worst, std::abs(m.factor.host[t] / factor - 1));
    for (int e = 0; e < c.experts; ++e) {
      double sum = 0;
      for (int k = 0; k < c.hidden; ++k) sum += double(p.router[size_t(e) * c.hidden + k]) * x[k] * p.routed_by()[k];
      const double want = sum * factor + p.router_bias.host[e],
                   error = std::abs(logits[e] - want) / (1 + std::abs(want));
      *worst = std::isnan(error) ? 1e9 : std::max(*worst, error);
    }
    std::vector<int> order(c.experts);
    for (int e = 0; e < c.experts; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    double sum = 0;
    for (int i = 0; i < c.top_k; ++i) sum += std::exp(double(logits[order[i]]) - logits[order[0]]);
    for (int i = 0; i < taken; ++i, ++entries) {
      const bool shared = i == c.top_k;
      const double scale = c.kind == Kind::kGemma ? p.expert_scale.host[order[i]] : 1;
      const double share =
          shared ? p.dense_share(x) : std::exp(double(logits[order[i]]) - logits[order[0]]) / sum * scale;
      ok &= ids[i] == (shared ? c.experts : order[i]);
      const double error = std::abs(m.shares.host[size_t(t) * taken + i] - share);
      *worst = std::isnan(error) ? 1e9 : std::max(*worst, error);
      const int at = m.entry.host[size_t(t) * taken + i];
      if (!ok || at < 0 || at >= int(owner.size()) || owner[at] != -1 || m.token.host[at] != t) return false;
      owner[at] = ids[i];
    }
  }
  // Ready for the next launch.
  for (int i = kCountChosen; i < kCountOf + c.matrices(); ++i) ok &= m.counts.host[i] == 0;
  for (int t = 0; t < c.tokens; ++t) ok &= m.arrived.host[t] == 0;
  int covered = 0;
  for (int i = 0; i < m.counts.host[kCountTiles]; ++i) {
    const ExpertTile& tile = m.tiles.host[i];
    ok &= tile.first == covered && tile.count > 0;
    for (int k = 0; ok && k < tile.count; ++k) ok &= owner[tile.first + k] == tile.expert;
    covered += tile.count;
  }
  return ok && covered == entries;
}

double dot(const TestExperts& w, int64_t row, const float* x, int cols) {
  const float* r = w.dense.data() + row * cols;
  double sum = 0;
  for (int k = 0; k < cols; ++k) sum += double(r[k]) * x[k];
  return sum;
}

// v * weight / rms(v)
void norm_of(std::vector<double>& v, const std::vector<float>& weight, double eps) {
  double squares = 0;
  for (double x : v) squares += x * x;
  const double factor = 1 / std::sqrt(squares / double(v.size()) + eps);
  for (size_t k = 0; k < v.size(); ++k) v[k] *= factor * weight[k];
}

// What joins the experts' sum.
void add_surroundings(const Problem& p, int t, const float* was, std::vector<double>& sum) {
  const Case& c = p.c;
  if (c.kind == Kind::kGptOss || c.kind == Kind::kShared) return;
  std::vector<double> dense(p.m.dense.host.begin() + int64_t(t) * c.hidden, p.m.dense.host.begin() + int64_t(t + 1) * c.hidden);
  double share = 1;
  if (c.kind == Kind::kQwen) {
    share = p.dense_share(was);
  } else {
    norm_of(sum, p.experts_norm.host, 1e-6), norm_of(dense, p.dense_norm.host, 1e-5);
  }
  for (int k = 0; k < c.hidden; ++k) sum[k] += share * dense[k];
  if (c.kind == Kind::kGemma) norm_of(sum, p.sum_norm.host, 1e-5);
}

// Error of the step's new x relative to the size of what it adds; of next and of the sums of squares, relative.
double sums_error(Problem& p, const std::vector<float>& before) {
  const Case& c = p.c;
  Memory& m = p.m;
  Buffer<float>& x = m.x;
  x.download(), m.next.download(), m.squares.download();
  double error = 0, size = 0, worst = 0;
  std::mutex mutex;
  for_each(c.tokens, [&](int t) {
    std::vector<float> normed(c.hidden), gated(c.width);
    std::vector<double> want(c.hidden, 0.0);
    const float* was = before.data() + size_t(t) * c.hidden;
    for (int k = 0; k < c.hidden; ++k) normed[k] = bf16_round(was[k] * m.norm.host[k]);
    for (int i = 0; i < c.taken() && !p.idle[t]; ++i) {
      const int64_t e = m.ids.host[size_t(t) * c.taken() + i];
      const double factor = m.factor.host[t], share = m.shares.host[size_t(t) * c.taken() + i];
      for (int r = 0; r < c.width; ++r) {
        const int64_t row = e * c.width + r;
        double g = dot(p.gate, row, normed.data(), c.hidden) * factor + p.gate.bias.host[row];
        double u = dot(p.up, row, normed.data(), c.hidden) * factor + p.up.bias.host[row];
        double h;
        if (c.kind == Kind::kGptOss) {
          g = std::min(g, 7.0), u = std::clamp(u, -7.0, 7.0), h = g / (1 + std::exp(-1.702f * g)) * (u + 1);
        } else if (c.kind != Kind::kGemma) {
          h = g / (1 + std::exp(-g)) * u;
        } else {
          h = 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
        }
        gated[r] = bf16_round(float(h));
      }
      for (int r = 0; r < c.hidden; ++r) {
        const int64_t row = e * c.hidden + r;
        want[r] += share * (dot(p.down, row, gated.data(), c.width) + p.down.bias.host[row]);
      }
    }
    double squares = 0, got_squares = 0;
    add_surroundings(p, t, was, want);
    std::lock_guard lock(mutex);
    for (int k = 0; k < c.hidden; ++k) {
      const double got = x.host[size_t(t) * c.hidden + k], exact = (was[k] + want[k]) * (c.kind == Kind::kGemma ? p.out_scale.host[0] : 1);
      error += (got - exact) * (got - exact), size += want[k] * want[k];
      if (!(std::abs(got - exact) < 0.1 * (1 + std::abs(exact)))) worst = 1;
      squares += got * got;
      const float next = __bfloat162float(m.next.host[size_t(t) * c.hidden + k]);
      if (!(next == bf16_round(x.host[size_t(t) * c.hidden + k] * m.next_norm.host[k]))) worst = 2;
    }
    for (int part = 0; part < p.parts; ++part)
      got_squares += m.squares.host[size_t(part) * p.stride() + t];
    if (!(std::abs(got_squares - squares) <= 1e-4 * squares + 1e-30)) worst = 3;
  });
  const double relative = size > 0 ? std::sqrt(error / size) : 0;
  return worst > 0 || std::isnan(relative) ? 100 + worst : relative;
}

// Of the routed ones.
unsigned distinct_experts(const Problem& p) {
  std::vector<bool> chosen(p.c.experts);
  for (const int id : p.m.ids.host) {
    if (id >= 0 && id < p.c.experts) chosen[id] = true;
  }
  return unsigned(std::count(chosen.begin(), chosen.end(), true));
}

// Whether the device has counted so many launches and experts for the rows that were not idle, and nothing else; steps
// that extend are not counted.
bool counted(Problem& p, unsigned long long launches, unsigned long long distinct) {
  p.m.counters.download();
  const auto live = size_t(std::count(p.idle.begin(), p.idle.end(), false));
  const bool counts = p.rows.num_tokens == p.rows.num_decode_rows && live > 0;
  bool ok = true;
  for (size_t rows = 0; rows < p.m.counters.count; ++rows) {
    const ExpertCounter& got = p.m.counters.host[rows];
    const bool these = counts && rows == live;
    ok &= got.mixtures == (these ? launches : 0) && got.distinct == (these ? distinct : 0);
  }
  return ok;
}

int run_case(const Case& c, std::mt19937& random) {
  Problem p(c, random);
  CudaExperts experts;
  experts.prepare(p.m.scratch, kSms, p.m.counters.device);
  unsigned long long distinct = 0;
  const NextNorm next{p.m.next_norm.device, p.m.next.device, p.m.squares.device};
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  GPU_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  GPU_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  experts.route(p.block, p.rows, c.normed, stream);
  experts.multiply(p.block, p.rows, stream);
  p.parts = experts.finish(p.block, p.rows, next, p.stride(), stream);
  GPU_CHECK(cudaStreamEndCapture(stream, &graph));
  GPU_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  double routing = 0, sums = 0;
  bool right = true, repeats = true;
  for (int round = 0; round < 2; ++round) {  // other inputs, other experts, the same graph
    p.fill_x();
    const std::vector<float> before = p.m.x.host;
    GPU_CHECK(cudaDeviceSynchronize());
    GPU_CHECK(cudaGraphLaunch(exec, stream));
    GPU_CHECK(cudaStreamSynchronize(stream));
    right &= routing_is_right(p, &routing);
    if (!right) break;
    distinct += 2 * distinct_experts(p);
    sums = std::max(sums, sums_error(p, before));
    const std::vector<float> first = p.m.x.host;
    p.m.x.host = before;
    p.m.x.upload();
    GPU_CHECK(cudaDeviceSynchronize());
    GPU_CHECK(cudaGraphLaunch(exec, stream));
    GPU_CHECK(cudaStreamSynchronize(stream));
    p.m.x.download();
    repeats &= std::memcmp(first.data(), p.m.x.host.data(), first.size() * 4) == 0;
  }
  GPU_CHECK(cudaGraphExecDestroy(exec));
  GPU_CHECK(cudaGraphDestroy(graph));
  GPU_CHECK(cudaStreamDestroy(stream));
  right &= counted(p, 4, distinct);
  const bool ok = right && repeats && routing < 1e-4 && sums < 5e-3;
  std::printf("%scheck experts %-7s %-5s %4d x %4d, %d of %2d, %3d tokens, %-11s: routing %.1e, sums %.1e%s%s\n",
              ok ? "" : "FAIL ", kind_name(c.kind), form_name(c.form), c.hidden, c.width, c.top_k, c.experts, c.tokens,
              spread_name(c.spread), routing, sums, right ? "" : ", wrong routing", repeats ? "" : ", repeats differ");
  return !ok;
}

int run_checks() {
  std::mt19937 random(std::random_device{}());
  int failed = 0;
  for (const ExpertForm form : kForms) {
    for (const Kind kind : {Kind::kQwen, Kind::kGemma, Kind::kShared}) {
      for (const int tokens : {1, 7, 40, 150}) {
        failed += run_case({form, 320, 288, 32, 4, tokens, Spread::kRandom, Format::kBF16, tokens == 40, kind}, random);
      }
      failed += run_case({form, 2816, 96, 8, 2, 3, Spread::kRandom, Format::kF32, false, kind}, random);
      failed += run_case({form, 3136, 64, 8, 2, 66, Spread::kRandom, Format::kBF16, false, kind}, random);
    }
    // As many experts as there can be beside the shared one, and nine sums at a time.
    for (const int tokens : {1, 2, 8, 9, 64, 65, 300}) {
      const Case most{.form = form, .hidden = 64, .width = 32, .experts = kMostExperts, .top_k = 8, .tokens = tokens,
                      .normed = tokens % 2 == 0, .kind = Kind::kShared};
      failed += run_case(most, random);
    }
    Case shared{.form = form, .hidden = 64, .width = 32, .experts = 16, .top_k = kMostTopK - 1, .tokens = 40,
                .spread = Spread::kUneven, .kind = Kind::kShared};
    failed += run_case(shared, random);
    shared.top_k = 2, shared.tokens = 150, shared.spread = Spread::kSame;
    failed += run_case(shared, random);
    for (const int tokens : {1, 2, 5, 8, 31, 33, 64, 65, 100, 257, 600}) {
      const Spread spread = static_cast<Spread>(random() % 4);
      failed += run_case({form, 320, 288, 32, 4, tokens, Spread::kRandom, Format::kBF16, tokens <= 64}, random);
      failed += run_case({form, 64, 32, 8, 2, tokens, spread, Format::kF32}, random);
    }
    for (const Spread spread : {Spread::kUneven, Spread::kSame, Spread::kTies}) {
      for (const int tokens : {9, 64, 130, 520}) failed += run_case({form, 192, 224, 16, 3, tokens, spread}, random);
    }
    const int wide = form == ExpertForm::kMxfp4 ? 2880 : 1408;
    for (const int tokens : {3, 70}) failed += run_case({form, wide, wide, 6, 4, tokens}, random);
    failed += run_case({form, 64, 64, 128, 4, 300, Spread::kUneven}, random);
  }
  return failed;
}

int run_small() {
  std::mt19937 random(std::random_device{}());
  int failed = 0;
  for (const ExpertForm form : kForms) {
    const Kind kind = form == ExpertForm::kNvfp4 ? Kind::kGemma : form == ExpertForm::kFp8 ? Kind::kQwen
                      : form == ExpertForm::kFp8Block ? Kind::kShared : Kind::kGptOss;
    const int hidden = form == ExpertForm::kFp8Block ? 160 : 96, width = form == ExpertForm::kFp8Block ? 192 : 64;
    for (const int tokens : {2, 66}) {
      failed += run_case({form, hidden, width, 4, 2, tokens, Spread::kRandom, Format::kBF16, false, kind}, random);
    }
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = mode_of(argc, argv, "check small bench");
  int failed = 0;
  if (mode == "all" || mode == "check") failed = run_checks();
  if (mode == "small") failed = run_small();
  if (mode == "all" || mode == "bench") run_speed();
  if (failed > 0) std::printf("%d checks failed\n", failed);
  return failed > 0;
}
