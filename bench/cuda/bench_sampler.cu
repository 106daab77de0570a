// The sampler: the CUDA kernels against the CPU's sample_row on fresh random rows, then us and GB/s.
//   bench_sampler [check [vocab]|bench|all]
// Ids must be equal, unless the CPU's choice lies within kEdge of another: a share of those is counted and bounded.
#include <cstring>
#include <map>
#include <string>

#include "kernels/cuda/gpu_workbench.h"
#include "kernels/cuda/sampler.h"
#include "sampler/philox.h"
#include "sampler/sampler.h"

using namespace tailrace;
using namespace tailrace::cuda::workbench;

namespace {

constexpr double kEdge = 1e-5;  // relative, of u, top_p and min_p
constexpr int kRing = 4;
constexpr float kInf = HUGE_VALF;

std::mt19937_64 rng(std::random_device{}());

int pick(int bound) { return static_cast<int>(rng() % static_cast<uint64_t>(bound)); }

constexpr RowSampling kPlain = {.temperature = 1, .top_p = 1, .min_p = 0, .repetition_penalty = 1,
                                .presence_penalty = 0, .frequency_penalty = 0, .top_k = 0, .num_top_logprobs = -1,
                                .seed = 0, .choice_index = 0, .prompt_len = 0, .num_bias = 0, .num_stop_ids = 0,
                                .min_len = 0, .constrained = 0};

struct Row {
  std::string name;
  RowSampling sampling = kPlain;
  std::vector<float> logits;
  std::vector<TokenId> log, bias_ids, stop_ids;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;  // empty: unconstrained
  bool samples = true, idle = false, late = false;

  SampleInput input() {
    sampling.num_bias = static_cast<int32_t>(bias_ids.size());
    sampling.num_stop_ids = static_cast<int32_t>(stop_ids.size());
    sampling.constrained = mask.empty() ? 0 : 1;
    return {.logits = logits.data(), .vocab = static_cast<int64_t>(logits.size()), .sampling = &sampling,
            .log = log.data(), .log_len = static_cast<int32_t>(log.size()), .bias_ids = bias_ids.data(),
            .bias_values = bias_values.data(), .stop_ids = stop_ids.data(), .mask = mask.empty() ? nullptr : mask.data()};
  }
};

std::vector<float> normal_logits(int64_t vocab, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(rng);
  return logits;
}

// A launch's worth of device state for `rows`.
struct Problem {
  int num_rows;
  int64_t vocab, stride, log_stride;
  Buffer<float> logits;
  Buffer<BatchRow> batch;
  Buffer<TokenId> log, bias_ids, stop_ids;
  Buffer<float> bias_values;
  Buffer<RowSampling> sampling;
  Buffer<uint64_t> step, gates;
  Buffer<int32_t> stopped;
  Buffer<char> scratch;
  SampledRow* ring = nullptr;
  uint32_t* masks = nullptr;  // pinned, as the engine's
  int32_t* mask_len = nullptr;

  static int64_t longest_log(const std::vector<Row>& rows) {
    size_t longest = 0;
    for (const Row& row : rows) longest = std::max(longest, row.log.size());
    return static_cast<int64_t>(longest) + 2;
  }

  explicit Problem(std::vector<Row>& rows)
      : num_rows(static_cast<int>(rows.size())), vocab(static_cast<int64_t>(rows[0].logits.size())),
        stride((vocab + 3) / 4 * 4 + 8), log_stride(longest_log(rows)), logits(num_rows * stride), batch(num_rows),
        log((num_rows + 1) * log_stride), bias_ids((num_rows + 1) * kMaxLogitBias),
        stop_ids((num_rows + 1) * kMaxStopTokenIds), bias_values((num_rows + 1) * kMaxLogitBias),
        sampling(num_rows + 1), step(1), gates(num_rows + 1), stopped(num_rows + 1), scratch(cuda::sampler_scratch_bytes(num_rows, vocab)) {
    const size_t ring_bytes = sizeof(SampledRow) * kRing * num_rows;
    GPU_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&ring), ring_bytes, cudaHostAllocMapped));
    std::memset(ring, 0xab, ring_bytes);
    const int64_t words = mask_words(vocab);
    GPU_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&masks), sizeof(uint32_t) * words * (num_rows + 1),
                            cudaHostAllocMapped));
    GPU_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&mask_len), sizeof(int32_t) * kMaskLenStride * (num_rows + 1),
                            cudaHostAllocMapped));
    std::fill_n(masks, words * (num_rows + 1), 0u);
    std::fill_n(mask_len, kMaskLenStride * (num_rows + 1), -1);
    std::fill(logits.host.begin(), logits.host.end(), 1e30f);  // padding must never be chosen
    std::fill(log.host.begin(), log.host.end(), -7);
    for (int r = 0; r < num_rows; ++r) {
      Row& row = rows[r];
      row.input();
      const int slot = num_rows - r;
      batch.host[r] = {slot, r, 1, row.idle ? 0 : static_cast<int32_t>(row.log.size()), row.samples ? 1 : 0};
      sampling.host[slot] = row.sampling;
      std::copy(row.mask.begin(), row.mask.end(), masks + slot * words);
      mask_len[slot * kMaskLenStride] = static_cast<int32_t>(row.log.size()) - (row.late ? 1 : 0);
      std::copy(row.logits.begin(), row.logits.end(), logits.host.begin() + r * stride);
      std::copy(row.log.begin(), row.log.end(), log.host.begin() + slot * log_stride);
      std::copy(row.bias_ids.begin(), row.bias_ids.end(), bias_ids.host.begin() + slot * kMaxLogitBias);
      std::copy(row.bias_values.begin(), row.bias_values.end(), bias_values.host.begin() + slot * kMaxLogitBias);
      std::copy(row.stop_ids.begin(), row.stop_ids.end(), stop_ids.host.begin() + slot * kMaxStopTokenIds);
    }
    logits.upload(), batch.upload(), log.upload(), bias_ids.upload(), bias_values.upload(), stop_ids.upload();
    sampling.upload(), stopped.upload();
  }
  ~Problem() { cudaFreeHost(ring), cudaFreeHost(masks), cudaFreeHost(mask_len); }

  cuda::SamplerParams params() {
    SampledRow* mapped = nullptr;
    GPU_CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&mapped), ring, 0));
    return {.logits = logits.device, .vocab = vocab, .vocab_stride = stride, .rows = batch.device, .num_rows = num_rows,
            .state = {.token_log = log.device, .log_stride = log_stride, .sampling = sampling.device,
                      .bias_ids = bias_ids.device, .bias_values = bias_values.device, .stop_ids = stop_ids.device,
                      .stopped = stopped.device, .masks = masks, .mask_len = mask_len, .mask_words = mask_words(vocab),
                      .mask_gate = gates.device},
            .sampled_ring = mapped, .ring = kRing, .ring_stride = num_rows, .step = step.device,
            .scratch = scratch.device};
  }

  // One step; the results lie at ring + (at % kRing) * num_rows.
  const SampledRow* run(uint64_t at) {
    step.host[0] = at, step.upload();
    gates.zero();
    scratch.poison();
    GPU_CHECK(cuda::run_sampler(params(), nullptr));
    GPU_CHECK(cudaDeviceSynchronize());
    return ring + at % kRing * num_rows;
  }
};

// ---- near an edge: the definition in float64, with u, top_p and min_p moved by kEdge ----

std::vector<double> processed(Row& row) {
  const RowSampling& s = row.sampling;
  std::vector<float> x = row.logits;
  for (size_t i = 0; i < row.bias_ids.size(); ++i) {
    x[row.bias_ids[i]] += row.bias_values[i] <= kBanBias ? kBanned : row.bias_values[i];
  }
  std::map<TokenId, std::pair<bool, int>> seen;  // in the log, times in the output
  for (size_t i = 0; i < row.log.size(); ++i) {
    const TokenId id = row.log[i];
    if (id < 0 || id >= static_cast<TokenId>(x.size())) continue;
    seen[id].first = true;
    if (static_cast<int32_t>(i) >= s.prompt_len) seen[id].second++;
  }
  for (const auto& [id, times] : seen) {
    x[id] = x[id] < 0 ? x[id] * s.repetition_penalty : x[id] / s.repetition_penalty;
    if (times.second > 0) x[id] -= s.presence_penalty + s.frequency_penalty * static_cast<float>(times.second);
  }
  if (static_cast<int32_t>(row.log.size()) < s.min_len) {
    for (TokenId id : row.stop_ids) x[id] = -kInf;
  }
  for (size_t i = 0; i < x.size() && !row.mask.empty(); ++i) {
    x[i] = (row.mask[i / 32] >> (i % 32) & 1) == 0 ? -kInf : x[i] > kBanned ? x[i] : kBanned;
  }
  std::vector<double> clean(x.size());
  for (size_t i = 0; i < x.size(); ++i) clean[i] = std::isnan(x[i]) ? -kInf : std::min(x[i], 3.4028234e38f);
  return clean;
}

// Whether `id` may be chosen when the edges are moved by factors 1 + tp and 1 + mp and u by +-kEdge.
bool may_choose(const std::vector<double>& x, const Row& row, TokenId id, double tp, double mp) {
  const RowSampling& s = row.sampling;
  std::vector<int> order(x.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
  if (s.top_k > 0) order.resize(std::min<size_t>(order.size(), s.top_k));
  const double max = x[order[0]];
  std::vector<double> p(x.size(), 0.0);
  double total = 0, sum = 0;
  for (int i : order) total += p[i] = std::exp((x[i] - max) / s.temperature);
  if (s.top_p < 1) {
    for (size_t i = 0; i < order.size(); ++i) {
      const double own = p[order[i]];
      if (i > 0 && sum >= s.top_p * (1 + tp) * total) p[order[i]] = 0;
      sum += own;
    }
  }
  total = 0;
  for (double& v : p) total += v = v >= s.min_p * (1 + mp) ? v : 0;
  const double u = uniform_draw(s.seed, s.choice_index, static_cast<uint32_t>(row.log.size()));
  double before = 0;
  for (TokenId i = 0; i < id; ++i) before += p[i];
  return p[id] > 0 && before / total <= u + kEdge && (before + p[id]) / total >= u - kEdge;
}

bool near_edge(Row& row, TokenId id) {
  const RowSampling& s = row.sampling;
  if (!(s.temperature > kGreedyTemperature) || s.top_k == 1) return false;
  const std::vector<double> x = processed(row);
  for (double tp : {0.0, -kEdge, kEdge}) {
    for (double mp : {0.0, -kEdge, kEdge}) {
      if (may_choose(x, row, id, tp, mp)) return true;
    }
  }
  return false;
}

// ---- cases ----

struct Kind {
  const char* name;
  std::function<void(Row&)> make;  // row.logits are normal, with a spread that varies
};

void quantise(Row& r) {
  for (float& x : r.logits) x = std::round(x * 4) / 4;
}
void constant(Row& r) { std::fill(r.logits.begin(), r.logits.end(), 1.5f); }
void strange(Row& r) {
  for (size_t i = 0; i < r.logits.size(); i += 2) r.logits[i] = i % 4 ? NAN : -kInf;
}
// The likeliest ids, many times each, in prompt and output; some ids are outside of the vocabulary.
void fill_log(Row& r, int length) {
  std::vector<TokenId> order(r.logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
  const size_t top = std::min<size_t>(300, order.size());
  std::partial_sort(order.begin(), order.begin() + top, order.end(),
                    [&](TokenId a, TokenId b) { return r.logits[a] > r.logits[b]; });
  r.log.resize(length);
  for (TokenId& id : r.log) {
    id = pick(10) == 0 ? pick(static_cast<int>(order.size())) : order[pick(pick(2) ? 5 : 300) % top];
  }
  r.log[length / 2] = -1, r.log[length / 3] = static_cast<TokenId>(r.logits.size());
  r.sampling.prompt_len = length / 2 + pick(length / 4);
}
void filters(Row& r, int top_k, float top_p, float min_p, float temperature = 1) {
  r.sampling.top_k = top_k, r.sampling.top_p = top_p, r.sampling.min_p = min_p, r.sampling.temperature = temperature;
}
void penalties(Row& r, float repetition, float presence, float frequency) {
  r.sampling.repetition_penalty = repetition, r.sampling.presence_penalty = presence;
  r.sampling.frequency_penalty = frequency;
}
void bias(Row& r, int count) {  // bans the likeliest, then distinct ids at a stride
  const auto n = static_cast<TokenId>(r.logits.size());
  const auto best = static_cast<TokenId>(std::max_element(r.logits.begin(), r.logits.end()) - r.logits.begin());
  const int step = std::max(1, n / count);
  r.bias_ids = {best}, r.bias_values = {-100};
  for (TokenId id = 0; id < n && static_cast<int>(r.bias_ids.size()) < count; id += step) {
    if (id != best) r.bias_ids.push_back(id), r.bias_values.push_back(static_cast<float>(pick(1000)) / 100 - 3);
  }
}
void min_len(Row& r) {
  for (int i = 0; i < 5; ++i) {
    const TokenId best = static_cast<TokenId>(std::max_element(r.logits.begin(), r.logits.end()) - r.logits.begin());
    r.stop_ids.push_back(best), r.logits[best] -= 1;
  }
  for (TokenId id : r.stop_ids) r.logits[id] += 5;
  r.sampling.min_len = static_cast<int32_t>(r.log.size()) + 1;
}
void greedy(Row& r) { r.sampling.temperature = 0; }

// `count` random ids may come, or one in two of all; never the likeliest.
void allow(Row& r, int count) {
  const auto n = static_cast<int>(r.logits.size());
  r.mask.assign(mask_words(n), 0);
  for (uint32_t& word : r.mask) word = count == 0 ? static_cast<uint32_t>(rng()) : 0;
  for (int i = 0; i < count; ++i) {
    const int id = pick(n);
    r.mask[id / 32] |= 1u << (id % 32);
  }
  const auto best = static_cast<size_t>(std::max_element(r.logits.begin(), r.logits.end()) - r.logits.begin());
  r.mask[best / 32] &= ~(1u << (best % 32));
  const int last = best == static_cast<size_t>(n - 1) ? 0 : n - 1;  // the last word counts, and one at least is allowed
  r.mask[last / 32] |= 1u << (last % 32);
}

std::vector<Kind> kinds() {
  return {
      {"mask, greedy", [](Row& r) { greedy(r), allow(r, 0); }},
      {"mask of 3, greedy", [](Row& r) { greedy(r), allow(r, 3); }},
      {"mask, drawn", [](Row& r) { allow(r, 0); }},
      {"mask of 40, drawn", [](Row& r) { allow(r, 40); }},
      {"mask, top_k, top_p", [](Row& r) { allow(r, 0), filters(r, 20, 0.95f, 0, 0.7f); }},
      {"mask of 3, top_k, top_p", [](Row& r) { allow(r, 3), filters(r, 20, 0.95f, 0, 0.7f); }},
      {"mask of 40, top_p", [](Row& r) { allow(r, 40), filters(r, 0, 0.9f, 0); }},
      {"mask of 40, min_p", [](Row& r) { allow(r, 40), filters(r, 0, 1, 0.05f); }},
      {"mask, NaN and -inf", [](Row& r) { greedy(r), strange(r), allow(r, 5); }},
      {"mask of NaN alone", [](Row& r) { for (float& x : r.logits) x = NAN; allow(r, 5); }},
      {"mask, bias, penalties, logprobs", [](Row& r) {
         fill_log(r, 500), penalties(r, 1.1f, 0.1f, 0.1f), bias(r, 100), allow(r, 0), filters(r, 40, 0.9f, 0);
         r.sampling.num_top_logprobs = 20;
       }},
      {"mask that is late", [](Row& r) { allow(r, 0), r.late = true, r.stop_ids = {3}; }},
      {"mask that is late, filters", [](Row& r) { allow(r, 0), filters(r, 20, 0.9f, 0), r.late = true; }},
      {"greedy", greedy},
      {"greedy by top_k 1", [](Row& r) { filters(r, 1, 0.9f, 0); }},
      {"greedy, ties", [](Row& r) { greedy(r), quantise(r); }},
      {"greedy, constant", [](Row& r) { greedy(r), constant(r); }},
      {"greedy, NaN and -inf", [](Row& r) { greedy(r), strange(r); }},
      {"greedy, +inf and largest", [](Row& r) {
         greedy(r), strange(r), r.logits[77] = kInf, r.logits[75] = 3.4028234e38f;
       }},
      {"greedy, all NaN", [](Row& r) { greedy(r); for (float& x : r.logits) x = NAN; }},
      {"all -inf", [](Row& r) { for (float& x : r.logits) x = -kInf; r.sampling.num_top_logprobs = 20; }},
      {"greedy, zeros of both signs", [](Row& r) {
         greedy(r); for (float& x : r.logits) x = pick(2) ? 0.0f : -0.0f;
       }},
      {"temperature", [](Row& r) { r.sampling.temperature = 0.7f; }},
      {"temperature 1", [](Row&) {}},
      {"temperature 100", [](Row& r) { r.sampling.temperature = 100; }},
      {"temperature 0.01", [](Row& r) { r.sampling.temperature = 0.01f; }},
      {"temperature, NaN and inf", strange},
      {"temperature, ties", quantise},
      {"top_k 20", [](Row& r) { filters(r, 20, 1, 0, 0.7f); }},
      {"top_k 1000", [](Row& r) { filters(r, 1000, 1, 0); }},
      {"top_k 5000", [](Row& r) { filters(r, 5000, 1, 0); }},
      {"top_k 64, ties", [](Row& r) { quantise(r), filters(r, 64, 1, 0); }},
      {"top_k 100, constant", [](Row& r) { constant(r), filters(r, 100, 1, 0); }},
      {"top_k, NaN and inf", [](Row& r) { strange(r), filters(r, 40, 0.9f, 0); }},
      {"top_k above the vocabulary", [](Row& r) { filters(r, 1 << 20, 1, 0); }},
      {"top_p 0.9", [](Row& r) { filters(r, 0, 0.9f, 0); }},
      {"top_p 0.5", [](Row& r) { filters(r, 0, 0.5f, 0, 0.6f); }},
      {"top_p 0.999", [](Row& r) { filters(r, 0, 0.999f, 0); }},
      {"top_p 1e-6", [](Row& r) { filters(r, 0, 1e-6f, 0); }},
      {"top_p 0.9, ties", [](Row& r) { quantise(r), filters(r, 0, 0.9f, 0); }},
      {"top_p 0.5, constant", [](Row& r) { constant(r), filters(r, 0, 0.5f, 0); }},
      {"top_p 0.9, NaN and inf", [](Row& r) { strange(r), filters(r, 0, 0.9f, 0); }},
      {"min_p 0.05", [](Row& r) { filters(r, 0, 1, 0.05f); }},
      {"min_p 1e-6", [](Row& r) { filters(r, 0, 1, 1e-6f); }},
      {"min_p 1", [](Row& r) { filters(r, 0, 1, 1.0f); }},
      {"top_k, top_p", [](Row& r) { filters(r, 50, 0.8f, 0); }},
      {"top_k, top_p, min_p", [](Row& r) { filters(r, 64, 0.95f, 0.02f, 1.3f); }},
      {"top_p, min_p", [](Row& r) { filters(r, 0, 0.95f, 0.001f); }},
      {"top_k 4000, top_p", [](Row& r) { filters(r, 4000, 0.9f, 0.001f, 1.5f); }},
      {"repetition", [](Row& r) { greedy(r), fill_log(r, 700), penalties(r, 1.3f, 0, 0); }},
      {"presence, frequency", [](Row& r) { greedy(r), fill_log(r, 900), penalties(r, 1, 0.5f, 0.2f); }},
      {"all penalties, drawn", [](Row& r) { fill_log(r, 3000), penalties(r, 1.1f, 0.3f, 0.05f); }},
      {"all penalties, filters", [](Row& r) {
         fill_log(r, 3000), penalties(r, 1.1f, -0.3f, 0.05f), filters(r, 40, 0.9f, 0.01f);
       }},
      {"penalties, top_p, logprobs", [](Row& r) {
         fill_log(r, 500), penalties(r, 0.8f, 0, 0.1f), filters(r, 0, 0.9f, 0); r.sampling.num_top_logprobs = 20;
       }},
      {"bias", [](Row& r) { greedy(r), bias(r, 30); }},
      {"bias, drawn", [](Row& r) { bias(r, 1024); }},
      {"bias, filters", [](Row& r) { bias(r, 300), filters(r, 0, 0.8f, 0); }},
      {"min_len", [](Row& r) { greedy(r), min_len(r); }},
      {"min_len reached", [](Row& r) { greedy(r), min_len(r), r.sampling.min_len--; }},
      {"min_len, all, drawn", [](Row& r) {
         fill_log(r, 200), penalties(r, 1.2f, 0.1f, 0.1f), bias(r, 100), min_len(r), filters(r, 30, 0.9f, 0);
       }},
      {"logprobs 0", [](Row& r) { greedy(r), r.sampling.num_top_logprobs = 0; }},
      {"logprobs 5", [](Row& r) { greedy(r), r.sampling.num_top_logprobs = 5; }},
      {"logprobs 20, drawn", [](Row& r) { r.sampling.num_top_logprobs = 20; }},
      {"logprobs 20, ties", [](Row& r) { quantise(r), filters(r, 40, 0.9f, 0), r.sampling.num_top_logprobs = 20; }},
      {"logprobs 20, constant", [](Row& r) { constant(r), r.sampling.num_top_logprobs = 20; }},
      {"logprobs 7, penalties, greedy", [](Row& r) {
         greedy(r), fill_log(r, 300), penalties(r, 1.5f, 1, 0.5f); r.sampling.num_top_logprobs = 7;
       }},
      {"ends with its 64th stop id", [](Row& r) {
         greedy(r), r.sampling.min_len = static_cast<int32_t>(r.log.size());
         const auto best = std::max_element(r.logits.begin(), r.logits.end()) - r.logits.begin();
         while (r.stop_ids.size() < kMaxStopTokenIds) r.stop_ids.push_back(static_cast<TokenId>(best) ^ (64 - static_cast<int>(r.stop_ids.size()) - 1));
       }},
      {"a stop id not chosen", [](Row& r) {
         greedy(r), r.stop_ids = {static_cast<TokenId>(std::min_element(r.logits.begin(), r.logits.end()) - r.logits.begin())};
       }},
      {"does not sample", [](Row& r) { r.samples = false, r.sampling.num_top_logprobs = 20; }},
      {"idle", [](Row& r) { r.samples = false, r.idle = true, r.stop_ids = {3}; }}};
}

struct Verdict {
  int rows = 0, draws = 0, edges = 0, wrong = 0;
  double error = 0;  // of logprobs, relative to max(1, |logprob|)
};

void compare(Problem& p, Row& row, int r, const SampledRow& got, std::vector<char>& cpu_scratch, Verdict& v) {
  SampledRow want, untouched;
  std::memset(&untouched, 0xab, sizeof untouched);
  const TokenId* log = p.log.host.data() + (p.num_rows - r) * p.log_stride;
  const bool log_kept = std::equal(row.log.begin(), row.log.end(), log) && log[row.log.size() + 1] == -7;
  v.rows++;
  const bool stops = row.late || (row.samples && static_cast<int32_t>(row.log.size()) >= row.sampling.min_len &&
                     std::find(row.stop_ids.begin(), row.stop_ids.end(), got.id) != row.stop_ids.end());
  v.wrong += p.stopped.host[p.num_rows - r] != (stops ? 1 : 0);
  if (row.idle || row.late) std::memcpy(&untouched, &kNoToken, sizeof kNoToken);
  if (!row.samples || row.late) {
    v.wrong += !log_kept || log[row.log.size()] != -7 || std::memcmp(&got, &untouched, sizeof got) != 0;
    return;
  }
  sample_row(row.input(), cpu_scratch.data(), &want);
  v.draws += row.sampling.temperature > kGreedyTemperature && row.sampling.top_k != 1;
  bool wrong = !log_kept || log[row.log.size()] != got.id || got.num_top != want.num_top;
  const auto differ = [&](float a, float b) {
    const double error = std::fabs(static_cast<double>(a) - b) / std::max(1.0, std::fabs(static_cast<double>(b)));
    v.error = std::max(v.error, error);
    return !(error < 2e-5);
  };
  if (got.id != want.id) {
    if (!wrong && got.id >= 0 && got.id < p.vocab && near_edge(row, got.id)) {
      v.edges++;
    } else {
      std::printf("  %s: id %d, not %d\n", row.name.c_str(), got.id, want.id);
      wrong = true;
    }
  } else {
    wrong |= differ(got.logprob, want.logprob);
  }
  for (int i = 0; i < want.num_top && !wrong; ++i) {
    wrong |= got.top[i].id != want.top[i].id || differ(got.top[i].logprob, want.top[i].logprob);
  }
  const auto written = sizeof(SampledRow) - sizeof(want.top) + sizeof(want.top[0]) * std::max(0, want.num_top);
  wrong |= std::memcmp(reinterpret_cast<const char*>(&got) + written, &untouched, sizeof got - written) != 0;
  v.wrong += wrong;
}

// The same rows again, and in smaller steps, whose kernels are spread differently: the same bytes.
int check_repeats(const std::vector<Row>& rows, const SampledRow* again, const SampledRow* got) {
  int failed = std::memcmp(got, again, sizeof(SampledRow) * rows.size()) != 0;
  for (const size_t few : {size_t{1}, size_t{13}, size_t{25}}) {
    for (size_t begin = few == 1 ? pick(static_cast<int>(rows.size())) : 0; begin < rows.size(); begin += few) {
      std::vector<Row> some(rows.begin() + begin, rows.begin() + std::min(rows.size(), begin + few));
      Problem p(some);
      failed += std::memcmp(p.run(1), got + begin, sizeof(SampledRow) * some.size()) != 0;
      if (few == 1) break;
    }
  }
  if (failed) std::printf("FAIL the same rows got other tokens in another step\n");
  return failed;
}

int check_vocab(int64_t vocab, int repeats, int* draws_total, int* edges_total) {
  std::vector<char> cpu_scratch(sampler_scratch_bytes(vocab) + 64);
  init_sampler_scratch(cpu_scratch.data(), vocab);
  std::map<std::string, Verdict> verdicts;
  int failed = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::vector<Row> rows;
    for (const Kind& kind : kinds()) {
      Row row{.name = kind.name};
      row.logits = normal_logits(vocab, repeat % 3 == 0 ? 3.0f : repeat % 3 == 1 ? 1.0f : 7.0f);
      row.log.assign(1 + pick(50), 3);
      row.sampling.seed = rng(), row.sampling.choice_index = static_cast<uint32_t>(pick(4));
      kind.make(row);
      rows.push_back(std::move(row));
    }
    Problem p(rows);
    const uint64_t at = rng() % 1000;
    const SampledRow* got = p.run(at);
    p.log.download(), p.stopped.download();
    for (int r = 0; r < p.num_rows; ++r) compare(p, rows[r], r, got[r], cpu_scratch, verdicts[rows[r].name]);
    failed += check_repeats(rows, p.run(at + 1), got);
  }
  for (const auto& [name, v] : verdicts) {
    if (v.wrong > 0) failed++, std::printf("FAIL ");
    std::printf("check vocab %6ld %-30s rows %d near an edge %d wrong %d logprob error %.1e\n",
                static_cast<long>(vocab), name.c_str(), v.rows, v.edges, v.wrong, v.error);
    *draws_total += v.draws, *edges_total += v.edges;
  }
  return failed;
}

// Pearson's chi-square of draws on a small vocabulary against the float64 distribution.
int check_distribution(const char* name, const RowSampling& sampling, int launches) {
  const int64_t vocab = 50;
  const int num_rows = 256;
  Row base{.name = name, .sampling = sampling, .logits = normal_logits(vocab, 1.0f)};
  std::vector<double> x(base.logits.begin(), base.logits.end()), weight(vocab, 0.0);
  std::vector<int> order(vocab), counts(vocab, 0);
  for (int i = 0; i < vocab; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](int a, int b) { return x[a] > x[b]; });
  if (sampling.top_k > 0) order.resize(sampling.top_k);
  double total = 0, sum = 0;
  for (int i : order) total += std::exp((x[i] - x[order[0]]) / sampling.temperature);
  double kept = 0;
  for (int i : order) {
    const double p = std::exp((x[i] - x[order[0]]) / sampling.temperature);
    if (sum < sampling.top_p * total && p >= sampling.min_p) kept += weight[i] = p;
    sum += p;
  }
  for (int launch = 0; launch < launches; ++launch) {
    std::vector<Row> rows(num_rows, base);
    for (int r = 0; r < num_rows; ++r) {
      rows[r].sampling.seed = static_cast<uint64_t>(launch) * 7919 + 1;  // positions and choices alone tell rows apart
      rows[r].sampling.choice_index = static_cast<uint32_t>(r % 4);
      rows[r].log.assign(1 + r / 4, 0);
    }
    Problem p(rows);
    const SampledRow* got = p.run(launch);
    for (int r = 0; r < num_rows; ++r) counts[std::clamp(got[r].id, 0, static_cast<int>(vocab) - 1)]++;
  }
  double statistic = 0, freedom = -1;
  bool stray = false;
  for (int i = 0; i < vocab; ++i) {
    const double want = weight[i] / kept * num_rows * launches;
    if (want > 0) statistic += (counts[i] - want) * (counts[i] - want) / want, freedom++;
    stray |= want == 0 && counts[i] > 0;
  }
  const bool failed = stray || !(statistic < freedom + 6 * std::sqrt(2 * freedom) + 12);
  std::printf("%scheck distribution %-20s chi-square %.1f, degrees of freedom %.0f, draws %d\n",
              failed ? "FAIL " : "", name, statistic, freedom, num_rows * launches);
  return failed;
}

// Small enough for racecheck, which takes a thousand times as long.
int run_small() {
  int draws = 0, edges = 0;
  return check_vocab(100, 3, &draws, &edges);
}

int run_checks(int64_t only) {
  int failed = 0, draws = 0, edges = 0;
  for (int64_t vocab : {1000, 49152, 151936, 201088, 262144}) {
    if (only == 0 || only == vocab) failed += check_vocab(vocab, vocab == 1000 ? 12 : 3, &draws, &edges);
  }
  for (int64_t vocab : {100, 4095, 4097, 50257}) {  // odd ends
    if (only == 0 || only == vocab) failed += check_vocab(vocab, 3, &draws, &edges);
  }
  std::printf("draws %d, near an edge %d\n", draws, edges);
  if (edges * 100 > draws) failed++, std::printf("FAIL too many choices differ near an edge\n");
  RowSampling s = kPlain;
  failed += check_distribution("plain", s, 40);
  s.temperature = 0.6f, s.top_k = 12;
  failed += check_distribution("top_k", s, 40);
  s.temperature = 1.4f, s.top_k = 0, s.top_p = 0.8f, s.min_p = 0.1f;
  failed += check_distribution("top_p, min_p", s, 40);
  return failed;
}

// ---- bench ----

void run_bench() {
  constexpr int64_t kVocab = 201088;
  constexpr int kBuffers = 4;  // rotated: few rows stay in the second-level cache, as behind a projection
  const std::vector<Kind> modes = {
      {"greedy", greedy},
      {"temperature", [](Row&) {}},
      {"top_k 50, top_p 0.9", [](Row& r) { filters(r, 50, 0.9f, 0); }},
      {"top_p 0.9", [](Row& r) { filters(r, 0, 0.9f, 0); }},
      {"top_p 0.9, flat", [](Row& r) { filters(r, 0, 0.9f, 0, 3); }},
      {"min_p 0.05", [](Row& r) { filters(r, 0, 1, 0.05f); }},
      {"top_k 5000", [](Row& r) { filters(r, 5000, 1, 0); }},
      {"mask, temperature", [](Row& r) { allow(r, 0); }},
      {"mask, top_k 20, top_p", [](Row& r) { allow(r, 0), filters(r, 20, 0.95f, 0); }},
      {"mask of 3, top_k, top_p", [](Row& r) { allow(r, 3), filters(r, 20, 0.95f, 0); }},
      {"penalties, log 4000", [](Row& r) { fill_log(r, 4000), penalties(r, 1.1f, 0.1f, 0.1f); }},
      {"logprobs 5", [](Row& r) { greedy(r), r.sampling.num_top_logprobs = 5; }}};
  std::printf("%-22s %5s %9s %8s\n", "vocab 201088", "rows", "us", "GB/s");
  for (int num_rows : {1, 8, 64}) {
    std::vector<std::vector<float>> logits;
    for (int r = 0; r < num_rows; ++r) logits.push_back(normal_logits(kVocab, 2.0f));
    for (auto& row : logits) {
      for (int i = 0; i < 12; ++i) row[pick(kVocab)] = 12 + static_cast<float>(pick(500)) / 100;  // peaked
    }
    for (const Kind& mode : modes) {
      std::vector<Row> rows(num_rows);
      for (int r = 0; r < num_rows; ++r) {
        rows[r].logits = logits[r], rows[r].log.assign(20, 3), rows[r].sampling.seed = rng();
        mode.make(rows[r]);
      }
      Problem p(rows);
      p.step.host[0] = 1, p.step.upload();
      Buffer<float> copies(kBuffers * num_rows * p.stride);
      for (int b = 0; b < kBuffers; ++b) {
        GPU_CHECK(cudaMemcpy(copies.device + b * num_rows * p.stride, p.logits.host.data(),
                             p.logits.count * sizeof(float), cudaMemcpyHostToDevice));
      }
      constexpr int kSteps = 20;
      Buffer<uint64_t> gates(kSteps * (num_rows + 1));  // asked anew in each step
      const double us = time_us(kSteps, [&](int i, cudaStream_t stream) {
        if (i == 0) GPU_CHECK(cudaMemsetAsync(gates.device, 0, gates.count * sizeof(uint64_t), stream));
        cuda::SamplerParams params = p.params();
        params.logits = copies.device + i % kBuffers * num_rows * p.stride;
        params.state.mask_gate = gates.device + i * (num_rows + 1);
        GPU_CHECK(cuda::run_sampler(params, stream));
      });
      std::printf("%-22s %5d %9.2f %8.0f\n", mode.name, num_rows, us, 4.0 * kVocab * num_rows / us / 1000);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = mode_of(argc, argv, "check small bench");
  int failed = 0;
  if (what == "check" || what == "all") failed = run_checks(argc > 2 ? std::atoll(argv[2]) : 0);
  if (what == "small") failed = run_small();
  if (what == "bench" || what == "all") run_bench();
  std::printf(failed ? "%d checks FAILED\n" : "all checks passed\n", failed);
  return failed ? 1 : 0;
}
