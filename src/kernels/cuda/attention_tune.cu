// Tuning of the attention kernels: cases of a shape, candidates, and a choice that needs a gain that is no noise.
#include "kernels/cuda/attention_tune.h"

#include <cstdarg>
#include <map>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "device/cuda/gpu_code.h"
#include "kernels/cuda/attention_together.h"

namespace tailrace::cuda {
namespace {

using namespace workbench;
using Print = std::function<void(const std::string&)>;
using Times = std::vector<double>;  // us, one for each case

constexpr double kLeastGain = 0.01;  // of the cases' geometric mean
constexpr int kConfirmations = 3;     // measurements of both that must agree: two streams beside each other are noisy
constexpr double kMostLoss = 0.02;   // of any case: no shape is to pay for another

std::string text(const char* format, ...) {
  char line[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  return line;
}

std::string join(const Times& times) {
  std::string line;
  for (double us : times) line += text(" %8.1f", us);
  return line;
}

// Geometric mean of now / before.
double ratio(const Times& now, const Times& before) {
  double sum = 0;
  for (size_t i = 0; i < now.size(); ++i) sum += std::log(now[i] / before[i]);
  return std::exp(sum / static_cast<double>(now.size()));
}
bool better(const Times& now, const Times& before) {
  for (size_t i = 0; i < now.size(); ++i) {
    if (now[i] > before[i] * (1 + kMostLoss)) return false;
  }
  return ratio(now, before) < 1 - kLeastGain;
}

std::string verdict(const Times& after, const Times& before, bool won) {
  return text("  %.3f%s", ratio(after, before), won ? ", taken" : ", left");
}

// `best`, if it is better than `usual` each time both are measured once more.
template <typename T, typename Measure>
T confirmed(const T& usual, const T& best, const std::string& name, const Print& print, Measure measure) {
  if (best == usual) return usual;
  Times before, after;
  bool won = true;
  for (int i = 0; i < kConfirmations && won; ++i) before = measure(usual), after = measure(best), won = better(after, before);
  print("    once more: default                " + join(before));
  print(text("    %-34s", name.c_str()) + join(after) + verdict(after, before, won));
  return won ? best : usual;
}

// The quickest candidate, if it is better than the first, which is the default, also when both are measured once more.
template <typename T, typename Measure>
T choose(const std::vector<T>& candidates, const Print& print, const std::function<std::string(const T&)>& name,
         Measure measure) {
  measure(candidates[0]);  // until clocks are up
  const Times usual = measure(candidates[0]);
  T best = candidates[0];
  double least = 1;
  for (const T& candidate : candidates) {
    const Times times = candidate == candidates[0] ? usual : measure(candidate);
    print(text("    %-34s", name(candidate).c_str()) + join(times) + text("  %.3f", ratio(times, usual)));
    if (better(times, usual) && ratio(times, usual) < least) best = candidate, least = ratio(times, usual);
  }
  return confirmed(candidates[0], best, name(best), print, measure);
}

AttentionCase case_of(const TuneShape& s, std::vector<int> lens, std::vector<int> q_lens = {}) {
  return {s.name.c_str(), s.q_heads, s.kv_heads, s.head_dim, s.window, s.sinks, std::move(lens), 0, 0, std::move(q_lens)};
}

// A case with its memory; several layers, so that each finds a cold cache.
struct Bench {
  AttentionCase c;
  int layers;
  AttentionProblem problem;

  static int layers_for(const AttentionCase& c, double bytes) {
    const double blocks = static_cast<double>(AttentionProblem::total_blocks(c)) * c.kv_heads;
    return static_cast<int>(std::clamp(bytes / (blocks * kv_tile_values(padded_dim(c.dim)) * 2) + 1, 2.0, 40.0));
  }
  explicit Bench(const AttentionCase& given, double bytes)
      : c(given), layers(layers_for(c, bytes)), problem(c, layers, 5) {}
};
using Benches = std::vector<std::unique_ptr<Bench>>;

std::vector<int> between(int rows, int low, int high) {
  std::mt19937_64 random(rows);
  std::vector<int> lens;
  for (int r = 0; r < rows; ++r) lens.push_back(low + static_cast<int>(random() % (high - low + 1)));
  return lens;
}

// One row and many, of equal lengths and not, numbers of units that fit the GPU's CTAs and that do not.
Benches decode_benches(const std::vector<TuneShape>& shapes) {
  Benches out;
  for (const TuneShape& s : shapes) {
    const auto add = [&](std::vector<int> lens) {
      out.push_back(std::make_unique<Bench>(case_of(s, std::move(lens)), 256e6));
    };
    if (s.window > 0) {
      for (int rows : {1, 8, 24, 64, 96}) add(std::vector<int>(rows, 4 * s.window));
      add(between(40, 1, 4 * s.window));
      continue;
    }
    for (int len : {1024, 8192, 32768}) add({len});
    for (int len : {1024, 8192}) add(std::vector<int>(8, len));
    for (int len : {256, 1024, 4096}) add(std::vector<int>(64, len));
    add(std::vector<int>(96, 4096));
    add(between(16, 1024, 16384)), add(between(32, 4096, 16384)), add(between(64, 256, 8192));
    std::vector<int> ragged(24, 1024);
    ragged[0] = 65536;
    add(ragged);
  }
  return out;
}

DecodeTuning tune_decode(const std::vector<TuneShape>& shapes, const Print& print) {
  const Benches benches = decode_benches(shapes);
  const auto measure = [&](const DecodeTuning& tuning) {
    Times times;
    for (const auto& b : benches) {
      DecodeRun run(b->problem, b->c.rows(), decode_ctas(b->c.dim, b->c.group()), 0, tuning);
      times.push_back(time_us(b->layers, [&](int layer, cudaStream_t s) {
        if (layer == 0) run.make_plan(s);
        run.run(layer, s);
      }, 9));
    }
    return times;
  };
  print("  decode: us of the cases");
  std::vector<DecodeTuning> candidates = {DecodeTuning{}};
  for (int chunks : {1, 2, 3, 4}) {
    for (int plenty : {4, 8, 16, 32, 64}) {
      if (chunks > 1 || plenty == 8) candidates.push_back({chunks, plenty});  // with one it is the same whatever is plenty
    }
  }
  return choose<DecodeTuning>(candidates, print, [](const DecodeTuning& t) {
    return text("chunks %d, plenty %d", t.chunks_per_cta, t.plenty_tiles);
  }, measure);
}

Benches mixed_benches(const std::vector<TuneShape>& shapes) {
  constexpr std::pair<int, int> kRowsAndChunks[] = {{8, 2048}, {32, 2048}, {128, 2048}, {32, 512}, {32, 256}, {32, 64}};
  Benches benches;
  for (const TuneShape& s : shapes) {
    for (const auto& [rows, chunk] : kRowsAndChunks) {
      const AttentionCase c =
          mixed(s.name.c_str(), s.q_heads, s.kv_heads, s.head_dim, s.window, s.sinks, rows, 4096, 16384, chunk, 8192);
      benches.push_back(std::make_unique<Bench>(c, 128e6));
    }
  }
  return benches;
}

MixedTuning tune_mixed(const std::vector<TuneShape>& shapes, const DecodeTuning& decode, const Print& print) {
  int sms = 0;
  GPU_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const Benches benches = mixed_benches(shapes);
  const int dim = shapes[0].head_dim, group = shapes[0].q_heads / shapes[0].kv_heads;
  const int resident = decode_ctas(dim, group);
  TwoStreams streams;
  std::vector<int> tiles;
  for (const auto& b : benches) tiles.push_back(ExtendRun(b->problem, b->c.rows() - 1, {1, 0}).tiles());
  // Beside each other, or, with no CTAs, in turn.
  const auto time = [&](int ctas, int chunks) {
    Times times;
    for (const auto& b : benches) {
      const int rows = b->c.rows() - 1;
      ExtendRun chunk(b->problem, rows, ExtendRun(b->problem, rows, {1, 0}).chosen(ctas > 0));
      const DecodeTuning cut = ctas > 0 ? DecodeTuning{chunks, decode.plenty_tiles} : decode;
      DecodeRun run(b->problem, rows, resident, 0, cut);
      if (ctas > 0) run.first_ctas = ctas;
      times.push_back(step_us(streams.main, run, b->layers, [&](int layer) {
        if (ctas > 0) return streams.run(run, chunk, layer);
        run.run(layer, streams.main), chunk.run(layer, streams.main);
      }, 11));
    }
    return times;
  };
  print("  mixed: us of the cases");
  time(0, 0);  // until clocks are up
  Times turn = time(0, 0);
  print(text("    %-34s", "in turn") + join(turn));
  // A grid is measured once for all thresholds.
  std::map<std::pair<int, int>, Times> measured;
  const auto measure = [&](const MixedTuning& t) {
    Times& together = measured[{t.decode_ctas, t.chunks_per_cta}];
    if (together.empty()) together = time(t.decode_ctas, t.chunks_per_cta);
    Times times;
    for (size_t i = 0; i < tiles.size(); ++i) times.push_back(tiles[i] >= t.beside_tiles ? together[i] : turn[i]);
    return times;
  };
  const MixedTuning usual = mixed_defaults(dim, group);
  MixedTuning best = usual;
  const Times before = measure(usual);
  double least = 1;
  for (int ctas : {sms / 4, sms / 3, sms / 2, sms * 2 / 3, sms * 5 / 6, sms, sms * 2}) {
    if (ctas > resident) continue;
    for (int chunks : {1, 2, 3, 4}) {
      print(text("    beside, %3d CTAs, %d chunks         ", ctas, chunks) + join(measure({ctas, chunks, 0})));
      for (int threshold : {0, sms / 4, sms / 2, sms, 2 * sms, 4 * sms, 1 << 20}) {
        const MixedTuning candidate{ctas, chunks, threshold};
        const Times times = measure(candidate);
        if (better(times, before) && ratio(times, before) < least) best = candidate, least = ratio(times, before);
      }
    }
  }
  const std::string name =
      text("%3d CTAs, %d chunks, from %d tiles", best.decode_ctas, best.chunks_per_cta, best.beside_tiles);
  return confirmed(usual, best, name, print, [&](const MixedTuning& t) {
    measured.clear(), turn = time(0, 0);
    return measure(t);
  });
}

}  // namespace

Expected<TuningTable> tune_attention(Device& device, const std::vector<TuneShape>& shapes, const Print& print) {
  if (!has_hopper_code()) {
    return fail(StatusCode::kUnsupported, "tuning tables are of Hopper's kernels, but this GPU runs the portable ones");
  }
  static_cast<CudaDevice&>(device).make_current();
  std::vector<std::pair<TuningKey, std::vector<TuneShape>>> keys;
  for (const TuneShape& s : shapes) {
    if (!decode_supported(s.head_dim, s.q_heads, s.kv_heads)) {
      return fail(StatusCode::kUnsupported, s.name + ": no attention kernel of this shape");
    }
    const TuningKey key{padded_dim(s.head_dim), s.q_heads / s.kv_heads <= 8 ? 8 : 16, s.window > 0};
    auto at = std::find_if(keys.begin(), keys.end(), [&](const auto& entry) { return entry.first == key; });
    if (at == keys.end()) at = keys.insert(at, {key, {}});
    at->second.push_back(s);
  }
  TuningTable table;
  for (const auto& [key, of_key] : keys) {
    std::string names;
    for (const TuneShape& s : of_key) names += (names.empty() ? "" : ", ") + s.name;
    print(text("head_dim %d, group of up to %d, %s: ", key.head_dim, key.group, key.window ? "window" : "full") + names);
    GPU_CHECK(prepare_extend(key.head_dim));
    const DecodeTuning decode = tune_decode(of_key, print);
    const MixedTuning mixed = tune_mixed(of_key, decode, print);
    if (decode != DecodeTuning{}) table.decode.emplace_back(key, decode);
    const MixedTuning usual = mixed_defaults(key.head_dim, of_key[0].q_heads / of_key[0].kv_heads);
    if (mixed != usual) table.mixed.emplace_back(key, mixed);
  }
  return table;
}

}  // namespace tailrace::cuda
