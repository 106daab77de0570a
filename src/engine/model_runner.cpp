#include "engine/model_runner.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/test_fault.h"

namespace tailrace {

Expected<std::unique_ptr<ModelRunner>> ModelRunner::create(Device& device, Backend& backend, const Model& model,
                                                           const MemoryPlan& plan, StagingMode staging) {
  CHECK_MSG(plan.fits.ok(), "what does not fit is refused before it is claimed");
  std::unique_ptr<ModelRunner> runner(new ModelRunner(device, backend, plan));
  runner->engine_stream_ = device.create_stream("engine");
  runner->copy_stream_ = device.create_stream("copy");
  if (Status status = runner->claim(model, staging); !status.ok()) return fail(status);
  return runner;
}

ModelRunner::~ModelRunner() {
  if (copy_stream_) copy_stream_->record()->wait("shutdown");
  if (engine_stream_) engine_stream_->record()->wait("shutdown");
}

Status ModelRunner::claim(const Model& model, StagingMode mode) {
  const Status no_memory(StatusCode::kResourceExhausted, "the device has no room for the planned memory");
  const int64_t stride = (plan_.context_length + plan_.kv.block_size - 1) / plan_.kv.block_size + 1;
  binding_.batch.num_groups = static_cast<int32_t>(model.groups.size());
  for (int g = 0; g < binding_.batch.num_groups; ++g) {
    const KvGroupSpec& spec = model.groups[g];
    const int64_t blocks = plan_.kv.groups[g].num_blocks;
    void* pool = device_.alloc_device(kv_bytes_per_token(spec, backend_) * blocks * plan_.kv.block_size,
                                      FirstTouch::kWhileServing);
    auto* table = static_cast<int32_t*>(device_.alloc_device(sizeof(int32_t) * (plan_.step.max_rows + 1) * stride));
    if (!pool || !table) return no_memory;
    binding_.batch.groups[g] = {.pool = pool,
                        .num_blocks = blocks,
                        .num_layers = spec.num_layers,
                        .kv_heads = spec.kv_heads,
                        .head_dim = spec.head_dim,
                        .block_size = plan_.kv.block_size,
                        .window = spec.window,
                        .block_table = table,
                        .table_stride = stride,
                        .format = spec.format};
    binding_.targets.block_table[g] = table;
    binding_.targets.table_stride[g] = stride;
  }
  if (Status status = claim_row_state(); !status.ok()) return status;
  if (Status status = claim_states(model.states); !status.ok()) return status;

  const auto scratch_bytes = backend_.scratch_bytes(model.blocks, plan_.step);
  if (!scratch_bytes) return scratch_bytes.error();
  void* scratch = device_.alloc_device(*scratch_bytes);
  if (!scratch) return no_memory;
  if (Status status = backend_.prepare(model.blocks, plan_.step, scratch); !status.ok()) return status;
  auto staging = Staging::create(device_, slab_capacity(plan_.slab), plan_.step.max_rows, mode);
  if (!staging) return staging.error();
  staging_ = std::move(*staging);
  for (int i = 0; i < kStagingRing; ++i) binding_.slabs[i] = staging_->twin(i);
  binding_.sampled = staging_->sampled(0);
  binding_.max_rows = plan_.step.max_rows;
  last_rows_.reserve(plan_.step.max_rows);
  return backend_.bind(binding_, *engine_stream_);
}

Status ModelRunner::claim_row_state() {
  const int64_t rows = plan_.step.max_rows + 1;  // one more for the padding of captured graphs: always the dummy block
  RowStateView& state = binding_.batch.state;
  state.log_stride = plan_.context_length + 1;  // the last sampled token may lie one past the context
  state.token_log = static_cast<TokenId*>(device_.alloc_device(sizeof(TokenId) * rows * state.log_stride));
  state.sampling = static_cast<RowSampling*>(device_.alloc_device(sizeof(RowSampling) * rows));
  state.bias_ids = static_cast<TokenId*>(device_.alloc_device(sizeof(TokenId) * rows * kMaxLogitBias));
  state.bias_values = static_cast<float*>(device_.alloc_device(sizeof(float) * rows * kMaxLogitBias));
  state.stop_ids = static_cast<TokenId*>(device_.alloc_device(sizeof(TokenId) * rows * kMaxStopTokenIds));
  state.stopped = static_cast<int32_t*>(device_.alloc_device(sizeof(int32_t) * rows));
  masks_.num_words = state.mask_words = mask_words(plan_.step.vocab);
  masks_.words = static_cast<uint32_t*>(device_.alloc_pinned(sizeof(uint32_t) * rows * masks_.num_words));
  masks_.len = static_cast<int32_t*>(device_.alloc_pinned(sizeof(int32_t) * rows * kMaskLenStride));
  state.mask_gate = static_cast<uint64_t*>(device_.alloc_device(sizeof(uint64_t) * rows));
  state.masks = masks_.words, state.mask_len = masks_.len;
  binding_.targets.rows = static_cast<BatchRow*>(device_.alloc_device(sizeof(BatchRow) * rows));
  if (!masks_.words || !masks_.len || !state.mask_gate || !binding_.targets.rows || !state.token_log ||
      !state.sampling || !state.bias_ids || !state.bias_values || !state.stop_ids || !state.stopped) {
    return Status(StatusCode::kResourceExhausted, "the device has no room for the row state");
  }
  binding_.targets.state = state;
  return Status();
}

Status ModelRunner::claim_states(const StateSpec& spec) {
  if (spec.num_layers == 0) return {};
  const int64_t slots = int64_t{plan_.step.max_rows} + plan_.kv.states.num_checkpoints;
  const auto claim = [&](int64_t values) {
    return static_cast<float*>(device_.alloc_device(sizeof(float) * values * slots, FirstTouch::kWhileServing));
  };
  binding_.batch.states = {.recurrent = claim(spec.recurrent_values()),
                           .conv = claim(spec.conv_values()),
                           .recurrent_stride = spec.recurrent_values(),
                           .conv_stride = spec.conv_values(),
                           .first_checkpoint = plan_.step.max_rows};
  if (binding_.batch.states.recurrent != nullptr && binding_.batch.states.conv != nullptr) return {};
  return {StatusCode::kResourceExhausted, "the device has no room for the recurrent states"};
}

bool ModelRunner::advances(const StepPlan& plan) const {
  if (!last_was_decode_ || plan.num_decode_rows != static_cast<int32_t>(plan.rows.size())) return false;
  if (!plan.starts.empty() || !plan.block_patches.empty() || !plan.log_patches.empty()) return false;
  return std::equal(plan.rows.begin(), plan.rows.end(), last_rows_.begin(), last_rows_.end(),
                    [](const PlanRow& now, const PlanRow& last) {
                      return now.slot == last.slot && now.computed_len == last.computed_len + 1 &&
                             now.samples == last.samples && now.state_from == 0 && now.state_save == 0;
                    });
}

LaunchedStep ModelRunner::launch(const StepPlan& plan) {
  CHECK(!plan.empty());
  LaunchedStep launched{.step = plan.step, .num_rows = static_cast<int32_t>(plan.rows.size())};
  StepLaunch step{.launch = launches_++,
                  .num_rows = launched.num_rows,
                  .num_decode_rows = plan.num_decode_rows,
                  .num_tokens = plan.num_tokens,
                  .has_slab = !staging_->spares_slabs() || !advances(plan)};
  if (step.has_slab) {
    ++slabs_;
    staging_->stage(plan, step.launch, *engine_stream_, *copy_stream_);
    step.rows = staging_->host_rows(step.launch);
    if (test_fault(Fault::kPatchRaces)) {  // the fault: patches race the forward that still reads the tables
      copy_stream_->run([slab = staging_->twin(step.launch), targets = binding_.targets] { apply_slab(slab, targets); });
    }
  }
  const StepEvents events = backend_.run_step(*engine_stream_, step);
  staging_->set_forward_done(step.launch, events.done);
  last_rows_.assign(plan.rows.begin(), plan.rows.end());
  last_was_decode_ = plan.num_decode_rows == launched.num_rows;
  launched.begun = events.begun;
  launched.done = events.done;
  launched.sampled = staging_->sampled(step.launch);
  launched.launched_ns = now_ns();
  return launched;
}

}  // namespace tailrace
