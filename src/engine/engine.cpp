#include "engine/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tailrace {
namespace {

constexpr std::chrono::milliseconds kIdleTurn(100);  // an idle engine looks up this often: stop, cancelled requests

}  // namespace

Engine::Engine(EngineLoopOptions options, ModelRunner& runner, Scheduler& scheduler, RequestQueue& queue,
               EngineStatus& status)
    : options_(options), runner_(runner), scheduler_(scheduler), queue_(queue), status_(status) {
  const MemoryPlan& plan = runner_.plan();
  ids_.resize(plan.step.max_rows);
  status_.num_kv_groups = static_cast<int32_t>(plan.kv.groups.size());
  for (size_t g = 0; g < plan.kv.groups.size(); ++g) {
    status_.kv[g].window = plan.kv.groups[g].window;
    status_.kv[g].total = plan.kv.groups[g].num_blocks - 1;
  }
  status_.checkpoints.total = plan.kv.states.num_checkpoints;
}

void Engine::admit() {
  runner_.device().set_ready();
  status_.state = EngineState::kReady;
}

void Engine::run() {
  try {
    loop();
  } catch (const std::exception& error) {  // host memory, most likely: no sequence's state can be trusted any more
    end_all(Status(StatusCode::kInternal, std::string("the engine failed: ") + error.what()));
  }
  refuse_ = true;
  queue_.close();
  receive();  // what slipped in before the close is refused, not lost
  fail_flushes();
  status_.state = EngineState::kDead;
}

void Engine::end_all(const Status& error) {
  for (auto& [id, request] : open_) reject(*request, error);
  open_.clear();
}

void Engine::loop() {
  std::optional<Inflight> previous;
  while (!stop_ || !scheduler_.idle() || previous || queue_.depth() > 0) {
    if (abort_.exchange(false)) {
      refuse_ = true;
      scheduler_.fail_all(Status(StatusCode::kUnavailable, "the server is shutting down"));
    }
    receive();
    std::optional<Inflight> launched = launch_next();
    deliver(nullptr);  // cancellations, and sequences that could not grow
    if (previous) process(*previous);
    if (launched && !options_.overlap) {
      process(*launched);
      launched.reset();
    }
    previous = std::move(launched);
    inflight_ = previous.has_value();
    publish();
    serve_flushes();
  }
}

void Engine::stop(bool abort) {
  if (abort) abort_ = true;
  queue_.close();  // what was accepted before is served, unless `abort`
  stop_ = true;
  queue_.wake();
}

Expected<FlushedCache> Engine::flush_cache(std::chrono::milliseconds patience) {
  std::future<Expected<FlushedCache>> done;
  {
    std::lock_guard lock(flush_mutex_);
    if (ended_) return fail(StatusCode::kUnavailable, "the engine has ended");
    done = flushes_.emplace_back().done.get_future();
  }
  queue_.wake();
  if (done.wait_for(patience) == std::future_status::ready) return done.get();
  return fail(StatusCode::kResourceExhausted,
              "the engine is still busy with a step; it drops its cached prefixes after it");
}

// What has ended for its client may hold blocks until the step queued behind its last token has ended: a flush waits
// for the steps that were launched before it, two at most.
void Engine::serve_flushes() {
  std::lock_guard lock(flush_mutex_);
  std::optional<FlushedCache> flushed;
  for (Flush& flush : flushes_) {
    if (!flush.after_launch) flush.after_launch = num_launched_;
    if (num_processed_ < *flush.after_launch) continue;
    if (!flushed) {
      flushed = FlushedCache{.blocks = scheduler_.flush_cache(), .running = scheduler_.stats().running};
      publish();  // before anybody is told
    }
    flush.done.set_value(*flushed);
  }
  std::erase_if(flushes_, [this](const Flush& flush) { return num_processed_ >= *flush.after_launch; });
}

void Engine::fail_flushes() {
  std::lock_guard lock(flush_mutex_);
  ended_ = true;
  for (Flush& flush : flushes_) flush.done.set_value(fail(StatusCode::kUnavailable, "the engine has ended"));
  flushes_.clear();
}

void Engine::receive() {
  const bool has_nothing = scheduler_.idle() && !inflight_ && !stop_;
  const bool idle = has_nothing || scheduler_.waits_for_masks();  // whoever computes those wakes the queue
  status_.idle = idle;
  if (has_nothing) was_idle_ = true;
  auto requests = queue_.take(idle ? kIdleTurn : std::chrono::milliseconds(0));
  status_.idle = false;
  status_.beat();
  for (auto& request : requests) {
    Status status = refuse_ ? Status(StatusCode::kUnavailable, "the server is shutting down")
                          : scheduler_.admit(request);
    if (status.ok()) {
      open_.emplace(request->id, request);
    } else {
      reject(*request, status);
    }
  }
}

void Engine::reject(const Request& request, const Status& status) {
  request.stream->times.finished_ns = now_ns();
  request.stream->push({.kind = TokenEvent::Kind::kFinish, .finish = FinishReason::kError, .error = status});
}

std::optional<Engine::Inflight> Engine::launch_next() {
  const int64_t plan_ns = now_ns();
  const StepPlan plan = scheduler_.plan_step();
  if (plan.empty()) {
    plan_waited_ |= inflight_ || scheduler_.waits_for_masks();
    return std::nullopt;
  }
  const int64_t launch_ns = now_ns();
  const uint64_t slabs = runner_.slabs();
  Inflight inflight{.step = runner_.launch(plan),
                    .predicted_us = plan.predicted_us,
                    .decode_only_us = plan.decode_only_us,
                    .had_work = !std::exchange(was_idle_, false),
                    .waited_for_result = std::exchange(plan_waited_, false)};
  for (const PlanRow& row : plan.rows) {
    inflight.request_ids.push_back(row.request_id);
    if (&row - plan.rows.data() < plan.num_decode_rows) {
      inflight.shape.decode_rows++;
      inflight.shape.decode_kv_tokens += row.kv_len();
    } else {
      inflight.shape.extend_tokens += row.q_len;
      inflight.shape.extend_kv_tokens += row.computed_len;
      inflight.shape.extend_kv_pairs += int64_t{row.q_len} * (row.computed_len + row.q_len / 2);
    }
  }
  inflight.record = {.step = plan.step,
                     .num_rows = inflight.step.num_rows,
                     .num_decode_rows = plan.num_decode_rows,
                     .num_tokens = plan.num_tokens,
                     .has_slab = runner_.slabs() != slabs,
                     .plan_ns = plan_ns,
                     .launch_ns = launch_ns,
                     .launched_ns = inflight.step.launched_ns};
  status_.computed_tokens += plan.num_tokens;
  scheduler_.on_launched(plan);
  num_launched_++;
  return inflight;
}

void Engine::process(Inflight& inflight) {
  inflight.step.done->wait("step_result");
  num_processed_++;
  inflight.record.result_ns = now_ns();
  for (int i = 0; i < inflight.step.num_rows; ++i) {
    ids_[i] = inflight.step.sampled[i].id;
    if (i < inflight.shape.decode_rows && ids_[i] == kNoToken) num_idle_rows_++;
  }
  scheduler_.on_result({.step = inflight.step.step, .ids = std::span(ids_).first(inflight.step.num_rows)});
  measure(inflight);
  deliver(inflight.step.sampled);
  inflight.record.processed_ns = now_ns();
  if (options_.log) options_.log->add(inflight.record);
}

void Engine::deliver(const SampledRow* sampled) {
  for (SequenceUpdate& update : scheduler_.take_updates()) {
    TokenStream& stream = *update.request->stream;
    const int64_t now = now_ns();
    if (update.row >= 0) {
      CHECK(sampled != nullptr);
      const SampledRow& row = sampled[update.row];
      if (stream.times.first_token_ns == 0) stream.times.first_token_ns = now;
      TokenEvent event{.id = update.token, .logprob = row.logprob};
      if (update.request->sampling.num_top_logprobs >= 0) {
        event.top_logprobs.assign(row.top, row.top + row.num_top);
      }
      stream.push(std::move(event));
    }
    if (update.finished) {
      stream.times.finished_ns = now;
      stream.push({.kind = TokenEvent::Kind::kFinish, .finish = update.finish, .error = update.error});
      open_.erase(update.request->id);
    }
  }
}

void Engine::measure(Inflight& inflight) {
  const LaunchedStep& step = inflight.step;
  const int64_t begun_ns = step.begun->device_ns(), done_ns = step.done->device_ns();
  const int64_t step_us = (done_ns - begun_ns) / 1000;
  scheduler_.cost_model().observe(inflight.shape, static_cast<double>(step_us));
  const bool mixed = inflight.shape.decode_rows > 0 && inflight.shape.extend_tokens > 0;
  if (mixed && options_.fold) status_.mixed_fallback.add("fold", 1);
  const double bound_us = options_.max_mixed_ratio * inflight.decode_only_us;
  if (mixed && step_us > options_.bound_floor_us && static_cast<double>(step_us) > bound_us &&
      inflight.predicted_us <= bound_us) {
    status_.mixed_over_budget++;  // floor steps, planned above the bound so that prefill is not starved, count apart
  }
  const IdleGap gap = trace_.add({.launched_ns = step.launched_ns,
                                  .begun_ns = begun_ns,
                                  .done_ns = done_ns,
                                  .had_work = inflight.had_work,
                                  .waited_for_result = inflight.waited_for_result,
                                  .has_slab = inflight.record.has_slab});
  inflight.record.begun_ns = begun_ns;
  inflight.record.done_ns = done_ns;
  inflight.record.gap = gap;
  count_idle(inflight, gap);
}

void Engine::count_idle(const Inflight& inflight, const IdleGap& gap) {
  int64_t& total_ns = idle_ns_[static_cast<int>(gap.cause)];
  total_ns += gap.ns;  // summed in ns: a GPU's gaps are about a microsecond each
  const auto total_us = static_cast<uint64_t>(total_ns / 1000);
  switch (gap.cause) {
    case IdleCause::kNoWork: status_.idle_no_work_us = total_us; break;
    case IdleCause::kResultWait: status_.idle_result_wait_us = total_us; break;
    case IdleCause::kHostLate: status_.idle_host_late_us = total_us; break;
    case IdleCause::kMetadata: status_.idle_metadata_us = total_us; break;
    case IdleCause::kLaunch: status_.idle_launch_us = total_us; break;
  }
  if (gap.cause == IdleCause::kNoWork) return;  // before these requests came
  for (uint64_t id : inflight.request_ids) {
    if (auto it = open_.find(id); it != open_.end()) it->second->stream->gpu_idle_ns += gap.ns;
  }
}

void Engine::publish() {
  const SchedulerStats stats = scheduler_.stats();
  queue_.set_waiting_in_engine(stats.waiting);
  status_.running = stats.running;
  status_.waiting = stats.waiting;
  status_.inflight_steps = stats.inflight_steps;
  for (size_t g = 0; g < stats.kv.size(); ++g) {
    status_.kv[g].free = stats.kv[g].free;
    status_.kv[g].cached = stats.kv[g].cached;
    status_.kv[g].owned = stats.kv[g].owned;
  }
  status_.checkpoints.free = stats.checkpoints.free;
  status_.checkpoints.cached = stats.checkpoints.cached;
  status_.checkpoints.owned = stats.checkpoints.owned;
  status_.prompt_tokens = stats.prompt_tokens;
  status_.cached_tokens = stats.cached_tokens;
  status_.generated_tokens = stats.generated_tokens;
  status_.preemptions = stats.preemptions;
  status_.decode_steps = stats.decode_steps;
  status_.extend_steps = stats.extend_steps;
  status_.mixed_steps = stats.mixed_steps;
  status_.mixed_floor_steps = stats.floor_steps;
  status_.late_masks = stats.late_masks;
  status_.spared_rows = num_idle_rows_ - stats.late_rows;
  status_.launches = runner_.launches();
  status_.slab_copies = runner_.slabs();
  const DeviceCounters counters = runner_.device().counters();
  status_.device_bytes = static_cast<int64_t>(counters.device_bytes);
  status_.pinned_bytes = static_cast<int64_t>(counters.pinned_bytes);
  status_.device_alloc_after_ready = counters.allocs_after_ready;
  if (counters.host_blocks > host_blocks_seen_) {
    status_.host_block.add("engine", counters.host_blocks - host_blocks_seen_);
    host_blocks_seen_ = counters.host_blocks;
  }
}

}  // namespace tailrace
