// CPU attention against its bounds: decode against the read bandwidth measured here, extend against the measured rate of
// fp32 multiply-adds. Run alone: bench_attention_cpu [threads [seconds per figure]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "measure.h"
#include "kernels/cpu/attention_fixture.h"
#include "kernels/cpu/linear.h"

namespace tailrace::cpu {
namespace {

// Best run, in us.
template <typename F>
double best_us(const F& body) {
  return bench::measure(body).best_us;
}

// GB/s at which the threads read `pool` in pieces of one KV block and head.
double read_ceiling(ThreadPool& threads, const std::vector<std::byte>& pool) {
  const auto* words = reinterpret_cast<const uint64_t*>(pool.data());
  const int64_t count = static_cast<int64_t>(pool.size()) / 8, pieces = 64, piece = count / pieces / 8 * 8;
  std::vector<uint64_t> sums(static_cast<size_t>(pieces) * 8);
  const double us = best_us([&] {
    threads.parallel_for(pieces, [&](int64_t p, int) {
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < piece; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += words[p * piece + i + j];
      }
      std::copy_n(sum, 8, sums.begin() + p * 8);
    });
  });
  return static_cast<double>(piece * pieces * 8) / us / 1e3;
}

// GFLOP/s of 16 independent chains of vector multiply-adds on every thread.
double fma_ceiling(ThreadPool& threads) {
#if defined(__x86_64__)
  constexpr int64_t kRounds = 100000;
  const bool wide = std::string(attention_kernels().name) == "avx512";
  if (std::string(attention_kernels().name) == "portable") return 0;
  const auto loop = [&](int64_t, int) {
    for (int64_t i = 0; i < kRounds; ++i) {
#define Z(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define Y(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n\t"
      if (wide) {
        asm volatile(Z(0) Z(1) Z(2) Z(3) Z(4) Z(5) Z(6) Z(7) Z(8) Z(9) Z(10) Z(11) ::: "memory");
      } else {
        asm volatile(Y(0) Y(1) Y(2) Y(3) Y(4) Y(5) Y(6) Y(7) Y(8) Y(9) Y(10) Y(11) ::: "memory");
      }
#undef Z
#undef Y
    }
  };
  const double us = best_us([&] { threads.parallel_for(threads.size(), loop); });
  return 12.0 * kRounds * (wide ? 32 : 16) * threads.size() / us / 1e3;
#else
  return 0;
#endif
}

struct Model {
  const char* name;
  int32_t q_heads, kv_heads, head_dim, layers;
  Format format = Format::kBF16;
};

void bench_decode(ThreadPool& threads, const Model& m, int32_t rows, int32_t kv_len) {
  const AttentionShape shape{.q_heads = m.q_heads, .kv_heads = m.kv_heads, .head_dim = m.head_dim, .layers = m.layers,
                             .threads = threads.size(), .format = m.format};
  AttentionFixture f(shape, std::vector<RowShape>(static_cast<size_t>(rows), {kv_len, 1}));
  const double ceiling = read_ceiling(threads, f.pool);
  const double us = best_us([&] {
    for (int64_t layer = 0; layer < m.layers; ++layer) f.run(threads, attention_kernels(), layer);
  });
  const double bytes = 2.0 * format_traits(m.format).block_bytes * rows * kv_len * m.kv_heads * m.head_dim * m.layers;
  std::printf("decode %-14s %2d rows x %5d keys: %9.1f us a step, %5.1f us a layer, %5.1f GB/s = %3.0f %% of %.1f\n", m.name, rows,
              kv_len, us, us / m.layers, bytes / us / 1e3, 100 * bytes / us / 1e3 / ceiling, ceiling);
}

void bench_extend(ThreadPool& threads, const Model& m, int32_t cached, int32_t q_len, double ceiling) {
  const AttentionShape shape{.q_heads = m.q_heads, .kv_heads = m.kv_heads, .head_dim = m.head_dim, .layers = m.layers,
                             .threads = threads.size(), .format = m.format};
  AttentionFixture f(shape, {{cached + q_len, q_len}});
  const double us = best_us([&] {
    for (int64_t layer = 0; layer < m.layers; ++layer) f.run(threads, attention_kernels(), layer);
  });
  const double pairs = static_cast<double>(q_len) * cached + 0.5 * q_len * (q_len + 1.0);
  const double gflops = 4.0 * pairs * m.q_heads * m.head_dim * m.layers / us / 1e3;
  std::printf("extend %-14s %5d after %5d: %9.1f ms a step, %6.1f GFLOP/s = %3.0f %% of %.0f\n", m.name, q_len, cached,
              us / 1e3, gflops, ceiling > 0 ? 100 * gflops / ceiling : 0, ceiling);
}

void run_all(int threads_count) {
  ThreadPool threads(threads_count);
  const Model smol{"9/3 x 64 x 30", 9, 3, 64, 30}, llama{"32/8 x 128 x 8", 32, 8, 128, 8}, gemma{"4/1 x 256 x 18", 4, 1, 256, 18};
  const Model smol_fp8{"9/3 x 64 fp8", 9, 3, 64, 30, Format::kF8E4M3};
  const Model llama_fp8{"32/8 x 128 fp8", 32, 8, 128, 8, Format::kF8E4M3};
  const double fma = fma_ceiling(threads);
  std::printf("%d threads, %s; fp32 multiply-adds %.0f GFLOP/s\n", threads_count, attention_kernels().name, fma);
  for (int32_t kv_len : {128, 1024, 8192}) bench_decode(threads, smol, 1, kv_len);
  bench_decode(threads, smol, 8, 1024);
  bench_decode(threads, llama, 1, 4096);
  bench_decode(threads, gemma, 1, 4096);
  for (int32_t kv_len : {1024, 8192}) bench_decode(threads, smol_fp8, 1, kv_len);
  bench_decode(threads, llama_fp8, 1, 4096);
  for (int32_t q_len : {32, 128, 512, 2048}) bench_extend(threads, smol, 0, q_len, fma);
  bench_extend(threads, smol, 1536, 512, fma);
  for (int32_t q_len : {1, 4, 16}) bench_extend(threads, smol, 7000, q_len + 1, fma);
  bench_extend(threads, llama, 0, 1024, fma);
  bench_extend(threads, gemma, 0, 1024, fma);
  bench_extend(threads, smol_fp8, 0, 512, fma);
  bench_extend(threads, llama_fp8, 0, 1024, fma);
}

}  // namespace
}  // namespace tailrace::cpu

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  if (argc > 2) tailrace::bench::g_seconds = std::atof(argv[2]);
  if (threads < 1) {
    std::fprintf(stderr, "usage: bench_attention_cpu [threads [seconds per figure]]\n");
    return 2;
  }
  tailrace::bench::g_own_time = threads == 1;
  tailrace::cpu::run_all(threads);
  return 0;
}
