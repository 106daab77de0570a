// us, GB/s and TFLOP/s of a layer of experts, from routing to weighted sum, at gpt-oss-20b's and Qwen3.6-35B-A3B's shape.
#include <algorithm>
#include <random>
#include <vector>

#include "experts_memory.h"
#include "kernels/cuda/cuda_experts.h"
#include "kernels/cuda/random_fill.h"

namespace tailrace::cuda::workbench {
namespace {

struct Shape {
  const char* name;
  int hidden, width, experts, top_k;
  int layers;  // whose weights are used in turn, so that the second-level cache does not hold them
  Activation activation;
  bool shared_last = false;

  int matrices() const { return experts + (shared_last ? 1 : 0); }
  int taken() const { return top_k + (shared_last ? 1 : 0); }
};
constexpr float kSmall = 1e-3f;
constexpr Shape kGptOss20b{"gpt-oss-20b", 2880, 2880, 32, 4, 3, Activation::kClampedSwiglu};
constexpr Shape kQwen35b{"Qwen3.6-35B-A3B", 2048, 512, 256, 8, 6, Activation::kSilu, true};
constexpr Shape kQwen35bRouted{"its routed experts alone", 2048, 512, 256, 8, 6, Activation::kSilu};

struct Layers {
  const Shape& shape;
  ExpertForm form;
  int64_t matrix;  // bytes
  Buffer<uint8_t> weights;
  Buffer<__nv_bfloat16> router;  // and the gate of a shared expert
  Buffer<float> scales;  // of one part, for all

  Layers(const Shape& shape, ExpertForm form)
      : shape(shape),
        form(form),
        matrix(expert_matrix_bytes(form, shape.hidden, shape.width)),
        weights(size_t(3) * shape.layers * shape.matrices() * matrix, false),
        router(size_t(shape.matrices()) * shape.hidden, false),
        scales(size_t(shape.matrices()) * std::max(shape.hidden * scales_per_row(form, shape.width),
                                                   shape.width * scales_per_row(form, shape.hidden))) {
    if (expert_matrix_bytes(form, shape.width, shape.hidden) != matrix) std::abort();
    // So small that the residual, to which every call adds, keeps the tokens' own directions and so their experts.
    const float deviation = scaled() ? 32 : kSmall / std::sqrt(float(shape.hidden));
    for (int i = 0; i < 3 * shape.layers * shape.matrices(); ++i) {
      const bool down = i / shape.matrices() % 3 == 2;
      GPU_CHECK(fill_random_expert(form, down ? shape.hidden : shape.width, down ? shape.width : shape.hidden, i,
                                   deviation, weights.device + i * matrix, nullptr));
    }
    fill_normal(router.device, router.count, 5, 0.02f);
    for (float& v : scales.host) v = kSmall / (32 * std::sqrt(float(shape.hidden)));
    scales.upload();
  }
  bool scaled() const { return format_of(form) == Format::kF8E4M3; }
  ExpertWeights part(int layer, int i) const {
    const int rows = i == 2 ? shape.hidden : shape.width, cols = i == 2 ? shape.width : shape.hidden;
    return {.first = {.format = format_of(form),
                      .rows = rows,
                      .cols = cols,
                      .data = weights.device + (int64_t(layer) * 3 + i) * shape.matrices() * matrix,
                      .scale = scaled() ? scales.device : nullptr,
                      .scale_cols = !scaled() ? 0 : form == ExpertForm::kFp8Block ? kScaleBlockCols : cols},
            .count = shape.matrices(),
            .stride = matrix};
  }
  Weight share() const {
    if (!shape.shared_last) return {};
    return {.format = Format::kBF16,
            .rows = 1,
            .cols = shape.hidden,
            .data = router.device + shape.experts * shape.hidden};
  }
  MoeBlock block(const Memory& m, int layer) const {
    return {.norm = {.weight = m.norm.device},
            .router = {.format = Format::kBF16, .rows = shape.experts, .cols = shape.hidden, .data = router.device},
            .gate = part(layer, 0),
            .up = part(layer, 1),
            .down = part(layer, 2),
            .top_k = shape.top_k,
            .activation = shape.activation,
            .dense = {.share = share()}};
  }
};

// One number of tokens.
struct Steps {
  const Layers& layers;
  const Shape& shape;
  int tokens, entries;
  bool few;
  int tile;
  Memory m;
  StepRows rows;
  CudaExperts experts;

  Steps(const Layers& layers, int tokens)
      : layers(layers),
        shape(layers.shape),
        tokens(tokens),
        entries(tokens * shape.taken()),
        few(tokens <= kMostFewExpertTokens),
        tile(few ? few_tile_tokens(tokens)
                 : many_tile_tokens(tokens * shape.top_k, shape.experts, layers.form == ExpertForm::kFp8Block)),
        m(shape.hidden, shape.width, shape.matrices(), shape.taken(), tokens),
        rows{m.rows.device, tokens, tokens, tokens} {
    std::mt19937 random(tokens);
    std::normal_distribution<float> normal;
    for (float& v : m.x.host) v = normal(random);
    for (float& v : m.norm.host) v = 1;
    for (int t = 0; t < tokens; ++t) {
      m.rows.host[t] = {.slot = t, .q_start = t, .q_len = 1, .kv_len = 5, .samples = 1};
    }
    for (size_t i = 0; i < m.normed.count; ++i) m.normed.host[i] = __float2bfloat16(m.x.host[i]);
    m.x.upload(), m.norm.upload(), m.rows.upload(), m.normed.upload();
    experts.prepare(m.scratch, kSms);
  }
  NextNorm next() const { return {m.norm.device, m.next.device, m.squares.device}; }
  int stride() const { return std::max(tokens, 16); }

  double all() {
    return time_us(12, [&](int i, cudaStream_t stream) {
      const MoeBlock block = layers.block(m, i % shape.layers);
      experts.route(block, rows, few, stream);
      experts.multiply(block, rows, stream);
      experts.finish(block, rows, next(), stride(), stream);
    });
  }
  double routing() const {
    const MoeBlock b = layers.block(m, 0);
    const RouteParams p{.rows = rows,
                        .x = m.x.device,
                        .hidden = shape.hidden,
                        .norm = m.norm.device,
                        .eps = 1e-5f,
                        .expert_norm = m.norm.device,
                        .router = b.router.data,
                        .dense_gate = b.dense.share.data,
                        .experts = shape.experts,
                        .top_k = shape.top_k,
                        .shared_last = shape.shared_last,
                        .tile_tokens = tile,
                        .gathers = !few,
                        .normed = few ? nullptr : m.normed.device,
                        .out = m.scratch.routing};
    return time_us(
        12, [&](int, cudaStream_t stream) { GPU_CHECK(route(p, stream)); }, 7);
  }
  double mixing() const {
    const MixParams p{.routing = m.scratch.routing,
                      .tokens = tokens,
                      .taken = shape.taken(),
                      .hidden = shape.hidden,
                      .y = m.y.device,
                      .x = m.x.device,
                      .next = next(),
                      .squares_stride = stride()};
    return time_us(
        12, [&](int, cudaStream_t stream) { GPU_CHECK(mix(p, stream)); }, 7);
  }
  double products(bool gated) const {
    const Routing& r = m.scratch.routing;
    ExpertParams p{.matrix = {},
                   .tiles = r.tiles,
                   .num_tiles = r.counts + kCountTiles,
                   .tile_tokens = tile,
                   .most_tiles = int(most_expert_tiles(shape.matrices(), entries, tile)),
                   .most_entries = entries};
    const Weight& shape_of = layers.part(0, gated ? 0 : 2).first;
    p.form = layers.form, p.rows = int(shape_of.rows), p.cols = int(shape_of.cols), p.gated = gated;
    p.x = !gated ? m.gated.device : few ? m.normed.device : m.scratch.gathered;
    p.token = gated && few ? r.token : nullptr, p.activation = shape.activation;
    p.alpha = 1.702f, p.limit = 7, p.gated_out = m.gated.device, p.out = m.y.device;
    return time_us(
        12,
        [&](int i, cudaStream_t stream) {
          ExpertParams q = p;
          for (int j = 0; j < 2; ++j) {
            const Weight w = layers.part(i % shape.layers, gated ? j : 2).first;
            q.matrix[j] = {w.data, layers.matrix, nullptr, w.scale};
          }
          GPU_CHECK(few ? run_experts_few(q, stream) : run_experts_many(q, stream));
        },
        7);
  }
};

void print_speed(const Layers& layers, int tokens, double ceiling) {
  const Shape& shape = layers.shape;
  Steps steps(layers, tokens);
  const double us = steps.all();
  steps.m.ids.download();
  std::vector<bool> chosen(shape.matrices());
  for (int id : steps.m.ids.host) chosen[id] = true;
  const int distinct = int(std::count(chosen.begin(), chosen.end(), true));
  const double bytes = 3.0 * distinct * layers.matrix, flops = 6.0 * steps.entries * shape.hidden * double(shape.width);
  const double gate = steps.products(true), down = steps.products(false), mix = steps.mixing();
  std::printf("%-7s %6d %8d %8.1f %8.1f %7.0f %3.0f%% %8.0f | %19.1f %8.1f %8.1f %8.1f\n", form_name(layers.form), tokens,
              distinct, us, bytes / ceiling / 1000, bytes / us / 1000, bytes / us / 10 / ceiling, flops / us / 1e6,
              steps.routing(), gate, down, mix);
}

void print_speeds(const Shape& shape, std::initializer_list<ExpertForm> forms, std::initializer_list<int> tokens,
                  double ceiling) {
  std::printf("%s: %d x %d, %d of %d experts%s; floor: bytes of the chosen experts\n", shape.name, shape.hidden,
              shape.width, shape.top_k, shape.experts, shape.shared_last ? " and a shared one" : "");
  std::printf("%-7s %6s %8s %8s %8s %7s %4s %8s | alone, us: %8s %8s %8s %8s\n", "form", "tokens", "experts", "us",
              "floor us", "GB/s", "%", "TFLOP/s", "routing", "gate, up", "down", "mix");
  for (const ExpertForm form : forms) {
    const Layers layers(shape, form);
    for (const int count : tokens) print_speed(layers, count, ceiling);
  }
}

}  // namespace

void run_speed() {
  const double ceiling = read_ceiling_gbs();
  std::printf("read ceiling %.0f GB/s\n", ceiling);
  print_speeds(kQwen35b, {ExpertForm::kFp8Block, ExpertForm::kFp8, ExpertForm::kNvfp4}, {1, 8, 64, 512, 4096}, ceiling);
  print_speeds(kQwen35bRouted, {ExpertForm::kNvfp4}, {1, 8, 64, 512, 4096}, ceiling);
  print_speeds(kGptOss20b, {ExpertForm::kMxfp4, ExpertForm::kBf16}, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048},
               ceiling);
}

}  // namespace tailrace::cuda::workbench
