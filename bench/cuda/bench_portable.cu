// Attention without Hopper's instructions: correctness against float64 on fresh random inputs, then its time beside
// the Hopper kernels' where the GPU runs those.
//   bench_portable [check|bench|all]; both from pools of bf16 and of e4m3
#include <cstring>
#include <string>

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/attention_portable.h"

using namespace tailrace;
using namespace tailrace::cuda;
using namespace tailrace::cuda::workbench;

namespace {

using Case = AttentionCase;

int verdict(const std::string& kind, const Case& c, const std::string& how, double error, double bound, int differ) {
  const bool good = error < bound && differ == 0;
  std::printf("%scheck %-11s %-18s %-24s relative error %.2e, %d repeats differ\n", good ? "" : "FAIL ", kind.c_str(), c.name,
              how.c_str(), error, differ);
  return good ? 0 : 1;
}

// Runs `launch` three times on poisoned outputs: how many differ from the first in any bit.
template <typename Launch>
int repeats(AttentionProblem& p, const Launch& launch) {
  std::vector<__nv_bfloat16> before;
  int differ = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    p.out.poison();
    launch();
    GPU_CHECK(cudaDeviceSynchronize());
    p.out.download();
    if (repeat > 0) differ += std::memcmp(before.data(), p.out.host.data(), before.size() * sizeof(before[0])) != 0;
    before = p.out.host;
  }
  return differ;
}

int check_decode(bool fp8) {
  const std::vector<Case> cases = {
      {"gpt-oss 63..65", 64, 8, 64, 0, true, {1, 63, 64, 65, 1000, 128, 127, 129}},
      {"gpt-oss long", 64, 8, 64, 0, true, {9000}},
      {"gpt-oss window", 64, 8, 64, 128, true, {1, 127, 128, 129, 191, 192, 700}},
      {"llama 32/8/128", 32, 8, 128, 0, false, {5, 700, 64, 1500}},
      {"mha 4/4/128", 4, 4, 128, 0, false, {5, 700, 64, 1500}},
      {"qwen2 28/4/128", 28, 4, 128, 0, false, {65, 700, 3000}},
      {"group 16", 32, 2, 128, 0, false, {65, 700, 3000}},
      {"qwen3.6 16/2/256", 16, 2, 256, 0, false, {1, 64, 65, 4000}},
      {"gemma 16/8/256 w", 16, 8, 256, 1024, false, {1, 1023, 1024, 1025, 3000}},
      {"gemma 16/2/512", 16, 2, 512, 0, false, {1, 65, 2500, 700}},
      {"16/1/512 sinks", 16, 1, 512, 0, true, {1, 65, 900}},
      {"ragged", 64, 8, 64, 0, true, {20000, 1, 2, 3, 64, 65, 100, 1000}},
      {"smollm 9/3/64", 9, 3, 64, 0, false, {1, 100, 700}}, {"dim 96", 8, 2, 96, 0, false, {1, 100, 700}},
      {"huge pool", 32, 8, 128, 0, false, {5, 700, 4000}, 0, 0, {}, 40000}};  // more than 2^31 values
  int failed = 0;
  uint64_t seed = std::random_device{}();
  for (const Case& c : cases) {
    AttentionProblem p(c, 1, ++seed, fp8);
    const int resident = (fp8 ? portable_decode_ctas_fp8 : portable_decode_ctas)(c.dim, c.group());
    const struct {
      int ctas, splits;
      float softcap;
    } variants[] = {{resident, 0, 0}, {3, 0, 0}, {resident, 7, 0}, {resident, 0, 5}};
    for (const auto& v : variants) {
      DecodeRun decode(p, p.rows, v.ctas, v.splits);
      const int differ = repeats(p, [&] {
        decode.make_plan(nullptr, v.splits);
        GPU_CHECK((fp8 ? run_decode_portable_fp8 : run_decode_portable)(decode.params(0, v.softcap), v.ctas, nullptr));
      });
      char how[64];
      std::snprintf(how, sizeof how, "ctas %d splits %d cap %g", v.ctas, v.splits, v.softcap);
      failed += verdict(fp8 ? "decode fp8" : "decode", c, how, p.worst_error(v.softcap, 0, seed), 8e-3, differ);
    }
  }
  return failed;
}

int check_extend(bool fp8) {
  std::vector<Case> cases = extend_cases();
  cases.push_back({"huge pool", 32, 8, 128, 0, false, {700, 1500}, 0, 0, {70, 150}, 40000});
  int failed = 0;
  uint64_t seed = std::random_device{}();
  for (const Case& c : cases) {
    AttentionProblem p(c, 1, ++seed, fp8);
    GPU_CHECK((fp8 ? prepare_portable_attention_fp8 : prepare_portable_attention)(c.dim));
    ExtendRun extend(p, 0, {1, 0}, portable_extend_tile_rows(c.dim));
    for (float softcap : {0.0f, 5.0f}) {
      const auto launch = fp8 ? run_extend_portable_fp8 : run_extend_portable;
      const int differ = repeats(p, [&] { GPU_CHECK(launch(extend.params(0, softcap), nullptr)); });
      failed += verdict(fp8 ? "extend fp8" : "extend", c, softcap > 0 ? "cap 5" : "", p.worst_error(softcap, 200, seed), 1e-2,
                        differ);
    }
  }
  return failed;
}

bool runs_hopper() {
  int major = 0, minor = 0;
  GPU_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  GPU_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  return major == 9 && minor == 0;
}

void bench_decode(const Case& c, bool hopper, double gbs, bool fp8) {
  constexpr int kLayers = 8;
  AttentionProblem p(c, kLayers, 5, fp8);
  double bytes = 0;
  for (int len : c.lens) bytes += (fp8 ? 2.0 : 4.0) * c.kv_heads * c.dim * (c.window > 0 ? std::min(len, c.window) : len);
  DecodeRun portable(p, p.rows, (fp8 ? portable_decode_ctas_fp8 : portable_decode_ctas)(c.dim, c.group()));
  const double plan = time_us(20, [&](int, cudaStream_t s) { portable.make_plan(s); });
  const auto time = [&](DecodeRun& run, auto launch) {
    return time_us(kLayers, [&](int layer, cudaStream_t s) {
      if (layer == 0) run.make_plan(s);
      GPU_CHECK(launch(run.params(layer), run.ctas, s));
    }) - plan / kLayers;
  };
  const double us = time(portable, fp8 ? run_decode_portable_fp8 : run_decode_portable);
  std::printf("decode %s%-18s %9.1f us %6.0f GB/s, %3.0f %% of a read", fp8 ? "fp8 " : "", c.name, us, bytes / us / 1000,
              100 * bytes / us / 1000 / gbs);
  if (hopper) {
    DecodeRun best(p, p.rows, (fp8 ? decode_ctas_fp8 : decode_ctas)(c.dim, c.group()));
    std::printf("; Hopper's kernel %9.1f us", time(best, fp8 ? run_decode_fp8 : run_decode));
  }
  std::printf("\n");
}

void bench_extend(const Case& c, bool hopper, bool fp8) {
  constexpr int kLayers = 3;
  AttentionProblem p(c, kLayers, 5, fp8);
  GPU_CHECK((fp8 ? prepare_portable_attention_fp8 : prepare_portable_attention)(c.dim));
  double pairs = 0;
  for (int t = 0; t < c.q_lens[0]; ++t) pairs += c.window > 0 ? std::min(c.window, c.lens[0] - t) : c.lens[0] - t;
  ExtendRun portable(p, 0, {1, 0}, portable_extend_tile_rows(c.dim));
  const auto run = fp8 ? run_extend_portable_fp8 : run_extend_portable;
  const auto launch = [&](int l, cudaStream_t s) { GPU_CHECK(run(portable.params(l), s)); };
  const double us = time_us(kLayers, launch, 7);
  std::printf("extend %s%-18s %9.1f us %6.0f TFLOP/s", fp8 ? "fp8 " : "", c.name, us,
              4.0 * pairs * c.q_heads * c.dim / us / 1e6);
  if (hopper) {
    ExtendRun best(p);
    std::printf("; Hopper's kernel %9.1f us", time_us(kLayers, [&](int l, cudaStream_t s) { best.run(l, s); }, 7));
  }
  std::printf("\n");
}

void run_bench() {
  const bool hopper = runs_hopper();
  const double gbs = read_ceiling_gbs();
  const auto same = [](int rows, int len) { return std::vector<int>(rows, len); };
  const std::vector<Case> decode = {{"llama b1 8k", 32, 8, 128, 0, false, same(1, 8192)},
                                    {"llama b64 1k", 32, 8, 128, 0, false, same(64, 1024)},
                                    {"gpt-oss b1 8k", 64, 8, 64, 0, true, same(1, 8192)},
                                    {"gpt-oss b64 1k", 64, 8, 64, 0, true, same(64, 1024)},
                                    {"qwen3.6 b8 8k", 16, 2, 256, 0, false, same(8, 8192)},
                                    {"gemma4 512 b8 8k", 16, 2, 512, 0, false, same(8, 8192)}};
  for (const bool fp8 : {false, true}) {
    for (const Case& c : decode) bench_decode(c, hopper, gbs, fp8);
  }
  const std::vector<Case> extend = {{"llama 2k", 32, 8, 128, 0, false, {2048}, 0, 0, {2048}},
                                    {"gpt-oss 2k", 64, 8, 64, 0, true, {2048}, 0, 0, {2048}},
                                    {"gpt-oss w128 2k", 64, 8, 64, 128, true, {2048}, 0, 0, {2048}},
                                    {"qwen3.6 2k", 16, 2, 256, 0, false, {2048}, 0, 0, {2048}},
                                    {"gemma4 512 2k", 16, 2, 512, 0, false, {2048}, 0, 0, {2048}}};
  for (const bool fp8 : {false, true}) {
    for (const Case& c : extend) bench_extend(c, hopper, fp8);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = mode_of(argc, argv, "check bench");
  int failed = 0;
  for (const bool fp8 : {false, true}) {
    if (what != "bench") failed += check_decode(fp8) + check_extend(fp8);
  }
  if (what != "check") run_bench();
  std::printf(failed ? "%d checks FAILED\n" : "all checks passed\n", failed);
  return failed ? 1 : 0;
}
