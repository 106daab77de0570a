#include "ids/per_op.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

namespace tailrace {
namespace {

using Kind = StepOp::Kind;
using Launch = std::vector<KernelRun>;  // in the order in which they were queued

// What kernels do, by the names of the CUDA backend's; null: they are part of no op.
std::optional<Kind> kind_of(const std::string& kernel) {
  static const std::map<std::string, Kind> kKinds = {
      {"linear_kernel", Kind::kProduct},       {"wide_kernel", Kind::kProduct},      {"decode_kernel", Kind::kAttention},
      {"recurrent_kernel", Kind::kState},      {"route_few_kernel", Kind::kRoute},   {"route_many_kernel", Kind::kRoute},
      {"few_kernel", Kind::kExperts},          {"many_kernel", Kind::kExperts}};
  const auto found = kKinds.find(kernel);
  return found == kKinds.end() ? std::nullopt : std::optional(found->second);
}

// The launches of the graph that ran most often: with several rows, others serve those that begin and end.
std::vector<Launch> main_graph(std::vector<KernelRun> runs) {
  std::sort(runs.begin(), runs.end(), [](const KernelRun& a, const KernelRun& b) {
    return a.launch != b.launch ? a.launch < b.launch : a.node < b.node;
  });
  std::map<uint32_t, size_t> kernels;
  for (const KernelRun& run : runs) kernels[run.graph] += run.graph != 0;
  const auto most = std::max_element(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const uint32_t graph = most == kernels.end() ? 0 : most->first;
  std::vector<Launch> launches;
  for (KernelRun& run : runs) {
    if (run.graph == 0 || run.graph != graph) continue;
    if (launches.empty() || launches.back().back().launch != run.launch) launches.emplace_back();
    launches.back().push_back(std::move(run));
  }
  return launches;
}

// The op of each kernel, or -1. Whether every op got one, or joined the next.
bool match(const Launch& launch, std::vector<StepOp>& ops, std::vector<int>& op_of) {
  size_t next = 0;
  bool matched = true;
  op_of.assign(launch.size(), -1);
  for (size_t i = 0; i < launch.size(); ++i) {
    const auto kind = kind_of(launch[i].name);
    if (!kind) continue;
    while (next + 1 < ops.size() && ops[next].kind != *kind && ops[next].joins_next) {
      ops[next + 1].bytes += ops[next].bytes;
      ++next;
    }
    if (next < ops.size() && ops[next].kind == *kind) {
      op_of[i] = static_cast<int>(next++);
    } else {
      matched = false;
    }
  }
  return matched && next == ops.size();
}

}  // namespace

PerOp per_op(std::vector<KernelRun> runs, std::vector<StepOp> ops) {
  PerOp out;
  const std::vector<Launch> launches = main_graph(std::move(runs));
  if (launches.size() < 3) return out;
  std::vector<int> op_of;
  out.matched = match(launches[0], ops, op_of);
  std::vector<size_t> line_of;  // of each kernel, in out.ops
  for (size_t i = 0; i < launches[0].size(); ++i) {
    const bool known = out.matched && op_of[i] >= 0;
    const std::string label = known ? ops[static_cast<size_t>(op_of[i])].label : launches[0][i].name;
    auto line = std::find_if(out.ops.begin(), out.ops.end(), [&](const OpTime& op) { return op.label == label; });
    if (line == out.ops.end()) line = out.ops.insert(line, {.label = label});
    line->count += 1, line->bytes += known ? ops[static_cast<size_t>(op_of[i])].bytes : 0;
    line_of.push_back(static_cast<size_t>(line - out.ops.begin()));
  }
  const auto ends = [](const Launch& launch) {
    int64_t last = 0;
    for (const KernelRun& run : launch) last = std::max(last, run.end_ns);
    return last;
  };
  for (size_t n = 1; n + 1 < launches.size(); ++n) {
    const Launch& launch = launches[n];
    if (launch.size() != line_of.size()) continue;
    std::vector<size_t> by_begin(launch.size());
    for (size_t i = 0; i < by_begin.size(); ++i) by_begin[i] = i;
    std::stable_sort(by_begin.begin(), by_begin.end(),
                     [&](size_t a, size_t b) { return launch[a].begin_ns < launch[b].begin_ns; });
    const int64_t step_began = ends(launches[n - 1]);
    int64_t done = step_began;
    for (const size_t i : by_begin) {
      if (launch[i].end_ns <= done) continue;  // beside another
      OpTime& op = out.ops[line_of[i]];
      op.us += static_cast<double>(launch[i].end_ns - done) / 1e3;
      op.gap_us += static_cast<double>(std::max<int64_t>(0, launch[i].begin_ns - done)) / 1e3;
      done = launch[i].end_ns;
    }
    out.step_us += static_cast<double>(done - step_began) / 1e3;
    ++out.steps;
  }
  const double steps = std::max(1, out.steps);
  out.step_us /= steps;
  for (OpTime& op : out.ops) op.us /= steps, op.gap_us /= steps;
  return out;
}

void print_per_op(const PerOp& per_op, double ceiling_gbs) {
  if (per_op.steps == 0) {
    std::printf("\nper op: too few steps of one captured graph were recorded\n");
    return;
  }
  std::printf("\nper op, mean of %d steps of %.0f us:%s\n", per_op.steps,
              per_op.step_us, per_op.matched ? "" : " (kernels by name: they are not those of the model's ops)");
  std::printf("\n| op | a step | us a step | us each | gaps, us a step | MB a step | GB/s | of a read |\n"
              "|---|---|---|---|---|---|---|---|\n");
  OpTime total{.label = "all"};
  const auto line = [&](const OpTime& op) {
    std::printf("| %s | %.0f | %.1f | %.2f | %.1f |", op.label.c_str(), op.count, op.us, op.us / op.count, op.gap_us);
    if (op.bytes <= 0) {
      std::printf(" - | - | - |\n");
      return;
    }
    const double gbs = op.bytes / op.us / 1e3;
    std::printf(" %.1f | %.0f |", op.bytes / 1e6, gbs);
    if (ceiling_gbs > 0) {
      std::printf(" %.0f %% |\n", 100 * gbs / ceiling_gbs);
    } else {
      std::printf(" - |\n");
    }
  };
  for (const OpTime& op : per_op.ops) {
    line(op);
    total.count += op.count, total.us += op.us, total.gap_us += op.gap_us, total.bytes += op.bytes;
  }
  line(total);
  std::fflush(stdout);
}

}  // namespace tailrace
