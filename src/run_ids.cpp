// tailrace_ids: the engine on token ids, to measure it and to compare its paths where there is no server and no text.
#include <cstdio>
#include <memory>

#include "engine/tune.h"
#include "ids/bench_decode.h"
#include "ids/compare.h"
#include "ids/contracts.h"
#include "ids/engine_client.h"
#include "ids/idle_table.h"
#include "ids/ids_options.h"
#include "ids/report.h"
#include "ids/workload.h"

namespace tailrace {
namespace {

constexpr int kExitBadInput = 2;
constexpr size_t kLoggedSteps = 1 << 17;

int bad_input(const Status& status) {
  std::fprintf(stderr, "tailrace_ids: %s\n", status.message().c_str());
  return kExitBadInput;
}

void print_model(const IdsOptions& options, EngineHost& host) {
  std::printf("device            %s%s\n", host.device().description().c_str(),
              options.setup.device_kind == "cpu" && !options.device_reason.empty()
                  ? ("; no GPU: " + options.device_reason).c_str()
                  : "");
  std::printf("model             %s, context %d, %d rows, chunk %d\n", options.setup.model_path.c_str(),
              host.report().memory.context_length, options.setup.limits.max_rows, options.setup.limits.chunk_size);
  if (!options.stats) return;
  const std::string load = format_load(host.report().load);
  if (!load.empty()) std::printf("loaded            %s\n", load.c_str());
  std::printf("%s", format_ledger(host.report().memory).c_str());
  for (const std::string& line : host.report().decisions) std::printf("  %s\n", line.c_str());
  for (const std::string& note : host.report().memory.notes) std::printf("  note: %s\n", note.c_str());
  const CostModel& cost = host.cost();
  std::printf(
      "  measured: step %.1f us + %.2f per decode row + %.4f per key; prefill %.1f + %.2f per token, %.5f per cached key, "
      "%.7f per pair\n",
      cost.base_us, cost.decode_row_us, cost.decode_kv_us, cost.extend_base_us, cost.extend_token_us, cost.extend_kv_us,
      cost.extend_pair_us);
}

// Prints every answer; the first failure's text, or "".
std::string print_answers(const WorkloadResult& result, bool ids) {
  std::string failure;
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const Answer& answer = result.answers[i].answer;
    if (answer.finish == FinishReason::kError && failure.empty()) {
      failure = "prompt " + std::to_string(i) + ": " + (answer.error.empty() ? "no answer" : answer.error);
    }
    if (!ids) continue;
    std::printf("prompt %zu:", i);
    for (TokenId id : answer.ids) std::printf(" %d", id);
    std::printf("\n");
  }
  return failure;
}

int run(IdsOptions& options) {
  StepLog log(kLoggedSteps);
  options.setup.engine.log = &log;
  auto client = EngineClient::create(options.setup);
  if (!client) return bad_input(client.error());
  EngineHost& host = (*client)->host();
  print_model(options, host);
  auto requests = make_requests(options, host.report().memory.step.vocab, false);
  if (!requests) return bad_input(requests.error());
  auto result = run_workload(**client, *requests, options.concurrency, options.arrivals_ms);
  if (!result) return bad_input(result.error());
  (*client)->wait_idle();
  const std::string failure = print_answers(*result, options.print_ids);
  if (options.stats) print_stats(*result, log, (*client)->status());
  if (!options.trace.empty()) {
    if (Status status = write_trace(options.trace, log); !status.ok()) return bad_input(status);
  }
  if (failure.empty()) return 0;
  std::fprintf(stderr, "tailrace_ids: %s\n", failure.c_str());
  return 1;
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  auto options = parse_ids_options(argc, argv);
  if (!options) return bad_input(options.error());
  if (!options->has_value()) return 0;
  IdsOptions& o = **options;
  if (o.tune) {
    const Status tuned = run_tune({.device_index = o.setup.device_index, .model = o.setup.model_path, .out = o.tune_out});
    return tuned.ok() ? 0 : bad_input(tuned);
  }
  if (!o.bench_contexts.empty()) {
    const auto contexts = parse_counts(o.bench_contexts), rows = parse_counts(o.bench_rows);
    if (!contexts) return bad_input(contexts.error());
    if (!rows) return bad_input(rows.error());
    const Status status = run_bench_decode({.setup = o.setup, .contexts = *contexts, .rows = *rows, .steps = o.output_len, .per_op = o.per_op, .seed = o.seed});
    return status.ok() ? 0 : bad_input(status);
  }
  if (!o.compare && !o.contracts && !o.idle_table) return run(o);
  auto good = o.compare ? run_compare(o) : o.contracts ? run_contracts(o) : run_idle_table(o);
  if (!good) return bad_input(good.error());
  return *good ? 0 : 1;
}
