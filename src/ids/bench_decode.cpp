#include "ids/bench_decode.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "device/cuda_plugin.h"
#include "engine/step_bytes.h"
#include "ids/engine_client.h"
#include "ids/ids_options.h"
#include "ids/per_op.h"
#include "ids/spread.h"
#include "ids/workload.h"
#include "kernels/cuda_abi.h"

namespace tailrace {
namespace {

constexpr int32_t kMostCount = 1 << 24;
constexpr size_t kLoggedSteps = 1 << 16;

struct Line {
  double step_us = 0, first_s = 0, prefill = 0;
  std::optional<double> distinct;  // experts of a layer and step, as counted
};

// Steps that decode `rows` rows and nothing else, from the end of one to the end of the next.
double median_step_us(const std::vector<StepRecord>& steps, int32_t rows) {
  Spread times;
  const auto decodes = [&](const StepRecord& s) {
    return s.num_rows == rows && s.num_decode_rows == rows;
  };
  for (size_t i = 1; i < steps.size(); ++i) {
    if (decodes(steps[i - 1]) && decodes(steps[i]))
      times.add(static_cast<double>(steps[i].done_ns - steps[i - 1].done_ns) / 1e3);
  }
  return times.at(0.5);
}

Expected<Line> measure(const DecodeBench& bench, EngineClient& client, StepLog& log, int32_t rows,
                       int32_t context) {
  IdsOptions work;
  work.prompts = rows, work.prompt_len = context - bench.steps, work.output_len = bench.steps;
  work.temperature = 1, work.seed = bench.seed;
  auto requests = make_requests(work, client.host().report().memory.step.vocab, false);
  if (!requests) return fail(requests.error());
  log.clear();
  const ExpertCounts before = client.host().expert_counts(rows);
  auto result = run_workload(client, *requests, 0, 0);
  if (!result) return fail(result.error());
  if (!client.flush_cache()) return fail(StatusCode::kInternal, "the engine did not become idle");
  Line line;
  int64_t last_first = result->begun_ns;
  for (const TimedAnswer& answer : result->answers) {
    if (answer.answer.finish == FinishReason::kError)
      return fail(StatusCode::kInternal, answer.answer.error);
    last_first = std::max(last_first, answer.first_ns);
  }
  const ExpertCounts after = client.host().expert_counts(rows);
  if (after.mixtures > before.mixtures) {
    line.distinct = static_cast<double>(after.distinct - before.distinct) / static_cast<double>(after.mixtures - before.mixtures);
  }
  line.step_us = median_step_us(log.records(), rows);
  line.first_s = static_cast<double>(last_first - result->begun_ns) / 1e9;
  line.prefill = static_cast<double>(rows) * work.prompt_len / std::max(line.first_s, 1e-9);
  return line;
}

void print_line(const DecodeBench& bench, const EngineHost& host, const StepBytes& bytes,
                double ceiling, int32_t rows, int32_t context, const Line& line) {
  const double step = bytes.step(rows, context - bench.steps / 2.0, line.distinct),
               gbs = step / line.step_us / 1e3;
  std::printf("| %d | %d | %.3f | %.0f | %.2f | %.0f |", context, rows, line.step_us / 1e3,
              rows * 1e6 / line.step_us, step / 1e9, gbs);
  if (ceiling > 0) {
    const double over = line.step_us - step / ceiling / 1e3;
    std::printf(" %.0f %% | %.1f |", 100 * gbs / ceiling, over / host.report().config.layers);
  } else {
    std::printf(" - | - |");
  }
  if (bytes.mixtures.empty()) {
    std::printf(" - |");
  } else {
    const double expected = StepBytes::distinct_experts(bytes.mixtures[0], rows);
    std::printf(" %.1f%s (%.1f) of %d |", line.distinct.value_or(expected), line.distinct ? "" : " not counted",
                expected, bytes.mixtures[0].experts);
  }
  std::printf(" %.2f | %.0f |\n", line.first_s, line.prefill);
  std::fflush(stdout);
}

// Before the engine's first use of the GPU; null: not asked for.
Expected<std::unique_ptr<KernelTrace>> kernel_trace(const DecodeBench& bench) {
  if (!bench.per_op) return std::unique_ptr<KernelTrace>();
  if (bench.setup.device_kind != "cuda")
    return fail(StatusCode::kInvalidArgument, "--per-op: only a GPU tells what its kernels took; leave it out");
  auto plugin = load_cuda_plugin(cuda_plugin_abi());
  if (!plugin) return fail(plugin.error());
  return (*plugin)->trace_kernels();
}

}  // namespace

Expected<std::vector<int32_t>> parse_counts(const std::string& text) {
  std::vector<int32_t> counts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, end - at);
    char* rest = nullptr;
    const long long number =
        word.empty() || word[0] < '0' || word[0] > '9' ? 0 : std::strtoll(word.c_str(), &rest, 10);
    const bool kilo = rest != nullptr && (*rest == 'k' || *rest == 'K') && rest[1] == '\0';
    const long long value = kilo && number <= kMostCount ? number * 1024 : number;
    if (rest == nullptr || (*rest != '\0' && !kilo) || value < 1 || value > kMostCount) {
      return fail(StatusCode::kInvalidArgument,
                  "'" + word + "' in '" + text + "' is no number from 1 to 16384k");
    }
    counts.push_back(static_cast<int32_t>(value));
    at = end + 1;
  }
  return counts;
}

Status run_bench_decode(const DecodeBench& bench) {
  EngineSetup setup = bench.setup;
  StepLog log(kLoggedSteps);
  setup.engine.log = &log;
  setup.engine.max_mixed_ratio = 1e9;  // prompts before decoding: the rows are to decode together
  setup.backend_options.count_experts = true;
  auto described = inspect_model(setup);
  if (!described) return described.error();
  const int32_t most = described->config.context;
  std::vector<int32_t> contexts;
  for (const int32_t context : bench.contexts) {
    const int32_t held = std::min(context, most);
    if (held <= bench.steps) {
      return {StatusCode::kInvalidArgument, "a context of " + std::to_string(context) +
                                                " has no room for a prompt before " +
                                                std::to_string(bench.steps) + " decoded tokens"};
    }
    if (held < context) std::printf("context %d: the model holds %d, which is measured\n", context, held);
    if (std::find(contexts.begin(), contexts.end(), held) == contexts.end()) contexts.push_back(held);
  }
  setup.limits.context_length = *std::max_element(contexts.begin(), contexts.end());
  setup.limits.max_rows = *std::max_element(bench.rows.begin(), bench.rows.end());
  auto trace = kernel_trace(bench);
  if (!trace) return trace.error();
  auto client = EngineClient::create(setup);
  if (!client) return client.error();
  EngineHost& host = (*client)->host();
  const double ceiling = host.read_gbs();
  std::vector<std::pair<std::string, PerOp>> times;
  const StepBytes bytes = step_bytes(host.model());
  std::printf("%s, %s\n", setup.model_path.c_str(), host.device().description().c_str());
  if (ceiling > 0) std::printf("a large read now: %.0f GB/s\n", ceiling);
  std::printf(
      "\n| context | rows | ms/token | tok/s | GB/step | GB/s | of a read | us/layer over its "
      "bytes | distinct experts a layer and step (at random) | to "
      "the last first token, s | prefill tok/s |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  int not_measured = 0;
  for (const int32_t rows : bench.rows) {
    for (const int32_t context : contexts) {
      if (*trace != nullptr) (*trace)->begin();
      auto line = measure(bench, **client, log, rows, context);
      if (!line) return line.error();
      if (line->step_us <= 0) {
        std::printf(
            "| %d | %d | no two steps decoded all rows: they do not fit the memory together, or "
            "the first had ended; more steps |\n",
            context, rows);
        ++not_measured;
        continue;
      }
      print_line(bench, host, bytes, ceiling, rows, context, *line);
      if (*trace == nullptr) continue;
      const auto ops = step_ops(host.model(), rows, context - bench.steps / 2.0, line->distinct);
      times.emplace_back(std::to_string(rows) + " rows at " + std::to_string(context), per_op((*trace)->end(), ops));
    }
  }
  for (const auto& [title, ops] : times) {
    std::printf("\n%s", title.c_str());
    print_per_op(ops, ceiling);
  }
  if (not_measured == 0) return {};
  return {StatusCode::kInvalidArgument, std::to_string(not_measured) + " of the table's lines could not be measured"};
}

}  // namespace tailrace
