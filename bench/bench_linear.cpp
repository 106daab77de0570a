// The CPU linear layers against their bounds: decode (one row) against the read bandwidth measured here, prefill against
// the measured rate of the int8 dot-product instruction. Figures are medians; the best tells how quiet the machine was.
// bench_linear [seconds per figure [threads [MB of weights used in turn [instruction set]]]]
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_pool.h"
#include "measure.h"

namespace tailrace::cpu {
namespace {

using bench::measure;
using bench::Times;

// As much as the demo model holds: weights are read from where they lie between two tokens.
size_t g_footprint = 96 << 20;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<uint8_t, Free>;
// In huge pages, as the CPU device keeps its memory.
Bytes aligned(size_t bytes) {
  constexpr size_t kHugePage = 2 << 20;
  Bytes p(static_cast<uint8_t*>(std::aligned_alloc(kHugePage, (bytes + kHugePage) / kHugePage * kHugePage)));
  CHECK(p != nullptr);
  madvise(p.get(), bytes, MADV_HUGEPAGE);
  return p;
}

double read_gbps(ThreadPool& pool) {
  const Bytes data = aligned(g_footprint);
  std::memset(data.get(), 1, g_footprint);
  constexpr int64_t kPieces = 64;
  typedef uint64_t Vector __attribute__((vector_size(64)));
  std::vector<uint64_t> sums(kPieces);
  const Times times = measure([&] {
    pool.parallel_for(kPieces, [&](int64_t piece, int) {
      const Vector* p = reinterpret_cast<const Vector*>(data.get() + g_footprint / kPieces * piece);
      const Vector* end = p + g_footprint / kPieces / sizeof(Vector);
      Vector sum[2] = {};
      for (; p + 2 <= end; p += 2) {
        __builtin_prefetch(p + 64);
        __builtin_prefetch(p + 65);
        sum[0] += p[0];
        sum[1] += p[1];
      }
      sums[piece] = (sum[0] + sum[1])[0];
    });
  });
  return g_footprint / times.median_us / 1e3;
}

#if defined(__x86_64__)
// 12 independent sums, so that latency does not count.
void vnni_loop(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
#define DOT(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n\t"
    asm volatile(DOT(16) DOT(17) DOT(18) DOT(19) DOT(20) DOT(21) DOT(22) DOT(23) DOT(24) DOT(25) DOT(26) DOT(27)::
                     : "memory");
#undef DOT
  }
}
#endif

// Measured int8 multiply-adds x 2 per second, in units of 1e12; 0 where the instruction is missing.
double vnni_tops(ThreadPool& pool) {
#if defined(__x86_64__)
  if (std::string(isa_name()) != "avx512_vnni") return 0;
  constexpr int64_t kRounds = 20'000;
  const Times times =
      measure([&] { pool.parallel_for(pool.size(), [](int64_t, int) { vnni_loop(kRounds); }); });
  return 2.0 * 64 * 12 * kRounds * pool.size() / times.median_us / 1e6;
#else
  return 0;
#endif
}

// Copies of one weight that fill the footprint, used in turn.
struct Copies {
  Bytes data;
  std::vector<Weight> weights;
  std::vector<float> scales;  // of F8_E4M3
  size_t bytes = 0;  // of one
  const Weight* turn(size_t i) const { return &weights[i % weights.size()]; }
};

Copies make_copies(Format format, int64_t rows, int64_t cols) {
  std::vector<std::byte> stored(stored_row_bytes(format, cols) * rows);
  std::mt19937 rng(1);
  for (std::byte& b : stored) b = static_cast<std::byte>((rng() & 0x0b) | 0x30);  // halves and floats of sensible size
  const TensorView view{"w", format, {rows, cols}, stored.data(), stored.size(), false, 0};
  Copies copies;
  copies.bytes = *packed_bytes(view);
  const size_t n = std::max<size_t>(1, g_footprint / copies.bytes);
  copies.data = aligned(copies.bytes * n);
  CHECK(pack(view, copies.data.get()).ok());
  for (size_t i = 0; i < n; ++i) {
    uint8_t* at = copies.data.get() + copies.bytes * i;
    if (i > 0) std::memcpy(at, copies.data.get(), copies.bytes);
    copies.weights.push_back({format, rows, cols, at, nullptr});
    if (format != Format::kF8E4M3) continue;
    copies.scales.resize(rows, 0.01f);
    copies.weights.back().scale = copies.scales.data(), copies.weights.back().scale_cols = cols;
  }
  return copies;
}

struct Input {
  std::vector<float> x;
  Bytes data;
};
Input make_input(Format format, int64_t m, int64_t k) {
  Input input{std::vector<float>(m * k), aligned(input_bytes(input_kind(format), m, k))};
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  for (float& value : input.x) value = normal(rng);
  prepare_input(input_kind(format), input.x.data(), k, 0, m, k, input.data.get());
  return input;
}

// All tiles of one weight over the pool: about four tasks per thread, whole pairs of tiles.
void linear_all(ThreadPool& pool, const Weight& weight, const void* input, int64_t m, float* y) {
  const int64_t tiles = (weight.rows + kRowTile - 1) / kRowTile;
  const int64_t wanted = std::max<int64_t>(1, tiles / (4 * pool.size()));
  const int64_t step = pool.size() == 1 ? tiles : std::min<int64_t>(tiles, (wanted + 1) / 2 * 2);
  pool.parallel_for((tiles + step - 1) / step, [&](int64_t task, int) {
    linear(weight, input, m, task * step, std::min(tiles, (task + 1) * step), y, weight.rows);
  });
}

void bench_shape(ThreadPool& pool, Format format, int64_t rows, int64_t cols, int64_t m, double gbps, double tops) {
  const Copies copies = make_copies(format, rows, cols);
  const Input input = make_input(format, m, cols);
  const Bytes outputs = aligned(m * rows * sizeof(float));
  float* y = reinterpret_cast<float*>(outputs.get());
  size_t next = 0;
  const Times times = measure([&] {
    linear_all(pool, *copies.turn(next++), input.data.get(), m, y);
  });
  const double us = times.median_us, rate = copies.bytes / us / 1e3, operations = 2.0 * m * rows * cols / us / 1e6;
  std::printf("%-5s %6ld x %-5ld M=%-5ld %dT %10.1f us (best %10.1f) %7.1f GB/s %5.1f%%  %7.3f TOPS",
              format_traits(format).name, static_cast<long>(rows), static_cast<long>(cols), static_cast<long>(m), pool.size(), us, times.best_us, rate,
              100 * rate / gbps, operations);
  if (tops > 0 && input_kind(format) == InputKind::kInt8) std::printf(" %5.1f%%", 100 * operations / tops);
  std::printf("\n");
}

// The linear layers of one decode step of the demo model: 30 layers of Q4_1 and the Q8_0 head, as fused regions.
void bench_demo_step(ThreadPool& pool, int64_t m, double gbps) {
  constexpr int kLayers = 30;
  struct Layer { Copies q, kv, gate, down; };
  const Copies q = make_copies(Format::kQ4_1, 576, 576), kv = make_copies(Format::kQ4_1, 192, 576);
  const Copies gate = make_copies(Format::kQ4_1, 1536, 576), down = make_copies(Format::kQ4_1, 576, 1536);
  const Copies head = make_copies(Format::kQ8_0, 49152, 576);
  const Input hidden = make_input(Format::kQ4_1, m, 576), wide = make_input(Format::kQ4_1, m, 1536);
  const Bytes outputs = aligned(m * 49152 * sizeof(float));
  float* y = reinterpret_cast<float*>(outputs.get());
  const double bytes =
      kLayers * (2.0 * q.bytes + 2.0 * kv.bytes + 2.0 * gate.bytes + down.bytes) + head.bytes;
  const auto region = [&](const std::vector<const Weight*>& weights, const Input& input) {
    std::vector<std::pair<const Weight*, int64_t>> tasks;
    for (const Weight* w : weights) {
      for (int64_t tile = 0; tile < (w->rows + 15) / 16; tile += 4) tasks.push_back({w, tile});
    }
    pool.parallel_for(tasks.size(), [&](int64_t task, int) {
      const auto [w, tile] = tasks[task];
      linear(*w, input.data.get(), m, tile, std::min<int64_t>(tile + 4, (w->rows + 15) / 16), y, w->rows);
    });
  };
  const Times times = measure([&] {
    for (int layer = 0; layer < kLayers; ++layer) {
      region({q.turn(2 * layer), kv.turn(2 * layer), kv.turn(2 * layer + 1)}, hidden);
      region({q.turn(2 * layer + 1)}, hidden);
      region({gate.turn(2 * layer), gate.turn(2 * layer + 1)}, hidden);
      region({down.turn(layer)}, wide);
    }
    linear_all(pool, head.weights[0], hidden.data.get(), m, y);
  });
  const double us = times.median_us;
  std::printf("demo model's linear layers  M=%-5ld %dT %10.1f us (best %10.1f) %7.1f GB/s %5.1f%%  %7.1f tokens/s\n",
              static_cast<long>(m), pool.size(), us, times.best_us, bytes / us / 1e3, 100 * bytes / us / 1e3 / gbps,
              m * 1e6 / us);
}

void bench_prepare(ThreadPool& pool) {
  for (int64_t k : {576, 1536}) {
    const Input input = make_input(Format::kQ4_1, 512, k);
    const Times times = measure([&] {
      prepare_input(InputKind::kInt8, input.x.data(), k, 0, 512, k, input.data.get());
    });
    std::printf("prepare int8 [512, %ld] 1T %.1f us, %.0f ns per row\n", static_cast<long>(k), times.median_us,
                times.median_us * 1e3 / 512);
  }
  const Times times = measure([&] {
    for (int i = 0; i < 100; ++i) pool.parallel_for(2 * pool.size(), [](int64_t, int) {});
  });
  std::printf("empty parallel region %dT %.2f us\n", pool.size(), times.median_us / 100);
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

void bench_threads(int threads) {
  ThreadPool pool(threads);
  bench::g_own_time = threads == 1;
  const double gbps = read_gbps(pool), tops = vnni_tops(pool);
  std::printf("\n%d thread(s): read %.1f GB/s over %zu MB, int8 dot products %.2f TOPS\n", threads, gbps,
              g_footprint >> 20, tops);
  struct Shape { int64_t rows, cols; };
  for (int64_t m : {1, 8, 512}) {
    for (const Shape s : {Shape{192, 576}, {576, 576}, {1536, 576}, {576, 1536}, {4096, 4096}}) {
      bench_shape(pool, Format::kQ4_1, s.rows, s.cols, m, gbps, tops);
    }
    bench_shape(pool, Format::kQ8_0, 49152, 576, m == 512 ? 64 : m, gbps, tops);
  }
  for (int64_t m : {1, 2, 4, 8, 16, 32, 512}) bench_demo_step(pool, m, gbps);
  bench_prepare(pool);
  for (int64_t m : {1, 2, 8, 16, 32, 64, 128}) bench_shape(pool, Format::kMXFP4, 2880, 2880, m, gbps, tops);  // gpt-oss
  for (int64_t m : {1, 64}) bench_shape(pool, Format::kBF16, 4096, 2880, m, gbps, tops);
  for (int64_t m : {1, 256}) {
    for (int f = 0; f < kNumFormats; ++f) bench_shape(pool, static_cast<Format>(f), 2048, 2048, m, gbps, tops);
  }
}

}  // namespace
}  // namespace tailrace::cpu

int main(int argc, char** argv) {
  if (argc > 1) tailrace::bench::g_seconds = std::atof(argv[1]);
  if (argc > 4 && !tailrace::cpu::set_isa_for_test(argv[4])) {
    std::fprintf(stderr, "this machine has no kernels '%s'\n", argv[4]);
    return 2;
  }
  setlinebuf(stdout);
  std::printf("%s, %s kernels\n", tailrace::cpu::cpu_model().c_str(), tailrace::cpu::isa_name());
  if (argc > 3) tailrace::cpu::g_footprint = static_cast<size_t>(std::atof(argv[3]) * 1048576);
  if (argc > 2) {
    tailrace::cpu::bench_threads(std::atoi(argv[2]));
  } else {
    for (int threads : {1, 2}) tailrace::cpu::bench_threads(threads);
  }
  return 0;
}
