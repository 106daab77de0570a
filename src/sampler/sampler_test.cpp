#include "sampler/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "sampler/philox.h"
#include "sampler/sampler_fixture.h"

namespace tailrace {
namespace {

std::vector<float> random_logits(int64_t n, uint64_t seed, float spread = 3.0f) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(static_cast<size_t>(n));
  for (float& x : logits) x = normal(rng);
  return logits;
}

// The definition, by sorting everything: the ids that may be drawn and their probabilities.
std::vector<double> reference_distribution(const std::vector<float>& logits, const RowSampling& s) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  if (s.top_k > 0) order.resize(std::min(n, static_cast<size_t>(s.top_k)));
  std::vector<double> p(n, 0.0);
  double total = 0;
  for (size_t i : order) total += p[i] = std::exp((static_cast<double>(logits[i]) - logits[order[0]]) / s.temperature);
  if (s.top_p < 1) {
    double sum = 0;
    size_t keep = 0;
    while (keep < order.size() && (keep == 0 || sum < s.top_p * total)) sum += p[order[keep++]];
    for (size_t i = keep; i < order.size(); ++i) p[order[i]] = 0;
  }
  total = 0;
  for (size_t i : order) total += p[i] = p[i] >= s.min_p ? p[i] : 0;
  for (double& x : p) x /= total;
  return p;
}

TEST(Philox, known_answers) {  // Random123's kat_vectors for philox4x32-10
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampler, greedy_is_the_lowest_of_the_largest_at_every_size) {
  for (int64_t n : {1, 2, 15, 16, 63, 64, 65, 1000, 4096, 4097, 50000}) {
    SamplerFixture row(random_logits(n, static_cast<uint64_t>(n)));
    row.sampling.temperature = 0;
    const int64_t first = n / 3, second = n - 1;
    row.logits_[static_cast<size_t>(second)] = 100;
    row.logits_[static_cast<size_t>(first)] = 100;
    EXPECT_EQ(row.sample().id, std::min(first, second)) << n;
  }
}

TEST(Sampler, not_a_number_is_never_chosen) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (float temperature : {0.0f, 1.0f}) {
    for (int top_k : {0, 3}) {
      SamplerFixture row(random_logits(200, 5));
      row.sampling.temperature = temperature;
      row.sampling.top_k = top_k;
      row.sampling.top_p = 0.9f;
      row.sampling.num_top_logprobs = 20;
      for (size_t i = 0; i < row.logits_.size(); i += 2) row.logits_[i] = i % 4 ? nan : -inf;
      for (int i = 0; i < 200; ++i) {
        row.sampling.seed = static_cast<uint64_t>(i);
        const SampledRow sampled = row.sample();
        EXPECT_EQ(sampled.id % 2, 1);
        EXPECT_TRUE(std::isfinite(sampled.logprob));
        for (int t = 0; t < sampled.num_top; ++t) EXPECT_TRUE(std::isfinite(sampled.top[t].logprob));
      }
      row.logits_[77] = inf;
      EXPECT_EQ(row.sample().id, 77);
      std::fill(row.logits_.begin(), row.logits_.end(), nan);
      const SampledRow hopeless = row.sample();
      EXPECT_GE(hopeless.id, 0);
      EXPECT_LT(hopeless.id, 200);
      EXPECT_TRUE(std::isfinite(hopeless.logprob));
    }
  }
}

TEST(Sampler, follows_the_reference_distribution_under_every_filter) {
  struct Filters {
    float temperature, top_p, min_p;
    int top_k;
  };
  constexpr int kVocab = 150, kDraws = 20000;
  const std::vector<float> logits = random_logits(kVocab, 9, 2.0f);
  for (const Filters& f : {Filters{1, 1, 0, 0}, {0.7f, 1, 0, 0}, {2, 1, 0, 0}, {1, 0.8f, 0, 0}, {1, 1, 0, 20},
                           {1, 1, 0.1f, 0}, {1.3f, 0.9f, 0.02f, 40}, {1, 0.5f, 0.2f, 149}, {1, 1, 0, 150}}) {
    SamplerFixture row(logits);
    row.sampling.temperature = f.temperature;
    row.sampling.top_p = f.top_p;
    row.sampling.min_p = f.min_p;
    row.sampling.top_k = f.top_k;
    const std::vector<double> expected = reference_distribution(logits, row.sampling);
    const auto counts = row.histogram(kDraws);
    for (const auto& [id, times] : counts) EXPECT_GT(expected[static_cast<size_t>(id)], 0) << id;
    const auto degrees = static_cast<double>(std::count_if(expected.begin(), expected.end(), [](double p) { return p > 0; })) - 1;
    EXPECT_LT(chi_square(counts, expected, kDraws), degrees + 5 * std::sqrt(2 * degrees) + 10)
        << f.temperature << " " << f.top_p << " " << f.min_p << " " << f.top_k;
  }
}

// Exact support at a large vocabulary, where selections are partial: the reference's kept set is what is ever drawn, and
// each draw equals inverse-CDF over it.
TEST(Sampler, large_vocabulary_equals_sorting_everything) {
  std::mt19937_64 rng(3);
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t n = 1000 + static_cast<int64_t>(rng() % 30000);
    std::vector<float> logits = random_logits(n, rng(), trial % 2 ? 0.5f : 4.0f);
    if (trial % 3 == 0) {
      for (float& x : logits) x = std::round(x);  // many ties
    }
    SamplerFixture row(logits);
    row.sampling.temperature = 0.5f + static_cast<float>(rng() % 100) / 100;
    row.sampling.top_k = trial % 4 == 0 ? 0 : static_cast<int>(rng() % (trial % 4 == 1 ? 50 : 5000)) + 2;
    row.sampling.top_p = trial % 5 == 0 ? 1.0f : 0.3f + static_cast<float>(rng() % 69) / 100;
    row.sampling.min_p = trial % 7 == 0 ? 0.05f : 0.0f;
    const std::vector<double> p = reference_distribution(logits, row.sampling);
    for (int i = 0; i < 20; ++i) {
      row.sampling.seed = rng();
      const TokenId id = row.sample().id;
      const double u = uniform_draw(row.sampling.seed, 0, 0);
      double below = 0;
      for (TokenId j = 0; j < id; ++j) below += p[static_cast<size_t>(j)];
      EXPECT_GT(p[static_cast<size_t>(id)], 0);
      EXPECT_GE(u, below - 1e-4);
      EXPECT_LE(u, below + p[static_cast<size_t>(id)] + 1e-4);
    }
  }
}

TEST(Sampler, a_bias_of_minus_100_bans_even_the_largest_of_logits) {
  std::vector<float> logits(300, 0.0f);
  logits[7] = 250.0f;  // 150 above the rest after a mere addition
  for (const float temperature : {0.0f, 1.0f}) {
    SamplerFixture row(logits);
    row.sampling.temperature = temperature;
    row.bias_ids = {7};
    row.bias_values = {-100};
    EXPECT_NE(row.sample().id, 7);
  }
}

TEST(Sampler, logprobs_are_the_log_softmax_of_the_raw_logits) {
  const std::vector<float> logits = random_logits(5000, 21);
  double total = 0;
  for (float x : logits) total += std::exp(static_cast<double>(x));
  SamplerFixture row(logits);
  row.sampling.num_top_logprobs = 20;
  row.sampling.temperature = 0.3f;
  row.bias_ids = {7};
  row.bias_values = {100};  // changes the choice, not the logprobs
  const SampledRow sampled = row.sample();
  EXPECT_EQ(sampled.id, 7);
  EXPECT_NEAR(sampled.logprob, logits[7] - std::log(total), 1e-4);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  ASSERT_EQ(sampled.num_top, 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(logits[static_cast<size_t>(sampled.top[i].id)], sorted[static_cast<size_t>(i)]);
    EXPECT_NEAR(sampled.top[i].logprob, sorted[static_cast<size_t>(i)] - std::log(total), 1e-4);
  }
  row.sampling.num_top_logprobs = 0;
  EXPECT_EQ(row.sample().num_top, 0);
  EXPECT_LT(row.sample().logprob, 0);
  row.sampling.num_top_logprobs = -1;
  EXPECT_EQ(row.sample().logprob, 0);
}

TEST(Sampler, top_logprobs_break_ties_by_id_and_stop_at_the_vocabulary) {
  SamplerFixture row({1, 2, 2, 1, 2});
  row.sampling.num_top_logprobs = 20;
  const SampledRow sampled = row.sample();
  ASSERT_EQ(sampled.num_top, 5);
  const TokenId expected[] = {1, 2, 4, 0, 3};
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sampled.top[i].id, expected[i]);
}

TEST(Sampler, min_len_masks_stop_ids_until_the_log_is_long_enough) {
  SamplerFixture row({5, 9, 1});
  row.sampling.temperature = 0;
  row.stop_ids = {1};
  row.sampling.min_len = 4;
  row.log = {0, 0, 0};
  EXPECT_EQ(row.sample().id, 0);
  row.log.push_back(0);
  EXPECT_EQ(row.sample().id, 1);
}

TEST(Sampler, a_mask_leaves_the_distribution_of_what_it_allows) {
  const std::vector<double> weights = {0.3, 0.05, 0.2, 0.1, 0.25, 0.1};
  SamplerFixture row(logits_of(weights));
  row.mask = {0b010110};  // 1, 2 and 4
  const std::vector<double> allowed = {0, 0.1, 0.4, 0, 0.5, 0};
  EXPECT_LT(chi_square(row.histogram(20000), allowed, 20000), 16.3);  // 99.97 % of two degrees of freedom
  for (const auto& [top_k, top_p, min_p] : {std::tuple(2, 1.0f, 0.0f), std::tuple(0, 0.85f, 0.0f), std::tuple(0, 1.0f, 0.5f)}) {
    row.sampling.top_k = top_k, row.sampling.top_p = top_p, row.sampling.min_p = min_p;
    const auto counts = row.histogram(300);
    for (const auto& [id, count] : counts) EXPECT_TRUE(id == 2 || id == 4) << id;  // filters see what is allowed alone
    EXPECT_EQ(counts.size(), 2u);
  }
  row.sampling.top_k = 1;
  EXPECT_EQ(row.sample().id, 4);
  row.sampling.num_top_logprobs = 1;
  EXPECT_EQ(row.sample().top[0].id, 0);  // log probabilities are the model's
}

TEST(Sampler, what_a_mask_allows_is_chosen_whatever_its_logits_are) {
  const float inf = HUGE_VALF;
  for (const float worst : {-inf, std::nanf(""), -3e38f}) {
    SamplerFixture row(std::vector<float>(200, 5.0f));
    row.logits_[77] = row.logits_[150] = worst;
    row.mask.assign(mask_words(200), 0);
    row.mask[77 / 32] |= 1u << (77 % 32);
    for (const float temperature : {0.0f, 1.0f}) {
      row.sampling.temperature = temperature;
      EXPECT_EQ(row.sample().id, 77);
      row.bias_ids = {77}, row.bias_values = {-100};  // banned, but nothing else may come
      EXPECT_EQ(row.sample().id, 77);
      row.bias_ids.clear(), row.bias_values.clear();
    }
    row.sampling.temperature = 1;
    row.mask[150 / 32] |= 1u << (150 % 32);
    for (const auto& [id, count] : row.histogram(100)) EXPECT_TRUE(id == 77 || id == 150) << id;
  }
}

TEST(SampleBatchRow, a_row_that_comes_before_its_mask_gets_no_token_and_is_stopped) {
  constexpr int64_t kVocab = 40;
  std::vector<TokenId> log(2 * 10, -7), stop_ids(2 * kMaxStopTokenIds), bias_ids(2 * kMaxLogitBias);
  std::vector<float> bias_values(2 * kMaxLogitBias), logits(kVocab, 0.0f);
  std::vector<RowSampling> sampling(2);
  std::vector<int32_t> stopped(2), mask_len(2 * kMaskLenStride);
  mask_len[0] = 6, mask_len[kMaskLenStride] = 5;
  std::vector<uint32_t> masks = {~0u, ~0u, 0, 1u << 3};
  sampling[1].top_p = sampling[1].repetition_penalty = 1, sampling[1].num_top_logprobs = -1, sampling[1].constrained = 1;
  Batch batch{};
  batch.state = {.token_log = log.data(), .log_stride = 10, .sampling = sampling.data(), .bias_ids = bias_ids.data(),
                 .bias_values = bias_values.data(), .stop_ids = stop_ids.data(), .stopped = stopped.data(),
                 .masks = masks.data(), .mask_len = mask_len.data(), .mask_words = mask_words(kVocab)};
  std::vector<std::max_align_t> scratch(sampler_scratch_bytes(kVocab) / sizeof(std::max_align_t) + 1);
  init_sampler_scratch(scratch.data(), kVocab);
  SampledRow out{};
  const auto sample = [&](int32_t kv_len) {
    sample_batch_row(batch, {.slot = 1, .q_start = 0, .q_len = 1, .kv_len = kv_len, .samples = 1}, logits.data(), kVocab,
                     scratch.data(), &out);
    return out.id;
  };
  EXPECT_EQ(sample(5), 35);  // the slot's own mask
  EXPECT_EQ(log[10 + 5], 35);
  EXPECT_EQ(stopped[1], 0);
  EXPECT_EQ(sample(6), kNoToken);  // the mask is still the last token's
  EXPECT_EQ(log[10 + 6], -7);
  EXPECT_EQ(stopped[1], 1);
}

TEST(KeepSampled, logs_the_id_and_flags_the_stop_ids_that_count) {
  std::vector<TokenId> log(2 * 10, -7), stop_ids(2 * kMaxStopTokenIds);
  std::vector<RowSampling> sampling(2);
  std::vector<int32_t> stopped(2);
  for (int i = 0; i < 3; ++i) stop_ids[kMaxStopTokenIds + i] = 40 + i;
  sampling[1].num_stop_ids = 2, sampling[1].min_len = 5;
  const RowStateView state{.token_log = log.data(), .log_stride = 10, .sampling = sampling.data(), .bias_ids = nullptr,
                           .bias_values = nullptr, .stop_ids = stop_ids.data(), .stopped = stopped.data()};
  const auto keep = [&](int32_t kv_len, TokenId id) {
    keep_sampled(state, {.slot = 1, .q_start = 0, .q_len = 1, .kv_len = kv_len, .samples = 1}, id);
    EXPECT_EQ(log[10 + kv_len], id);
    return stopped[1];
  };
  EXPECT_EQ(keep(4, 41), 0);  // below min_len
  EXPECT_EQ(keep(5, 42), 0);  // behind the row's stop ids
  EXPECT_EQ(keep(6, 7), 0);
  EXPECT_EQ(keep(7, 41), 1);
  EXPECT_EQ(stopped[0], 0);
}

}  // namespace
}  // namespace tailrace
