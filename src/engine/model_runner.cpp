#include "engine/model_runner.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/test_fault.h"

namespace tailrace {

Expected<std::unique_ptr<ModelRunner>> ModelRunner::create(Device& device, Backend& backend, const Model& model,
                                                           const MemoryPlan& plan) {
  std::unique_ptr<ModelRunner> runner(new ModelRunner(device, backend, plan));
  runner->engine_stream_ = device.create_stream("engine");
  runner->copy_stream_ = device.create_stream("copy");
  if (Status status = runner->claim(model); !status.ok()) return fail(status);
  return runner;
}

ModelRunner::~ModelRunner() {
  if (copy_stream_) copy_stream_->record()->wait("shutdown");
  if (engine_stream_) engine_stream_->record()->wait("shutdown");
}

Status ModelRunner::claim(const Model& model) {
  const Status no_memory(StatusCode::kResourceExhausted, "the device has no room for the planned memory");
  const int64_t stride = (plan_.context_length + plan_.kv.block_size - 1) / plan_.kv.block_size + 1;
  batch_.num_groups = static_cast<int32_t>(model.groups.size());
  for (int g = 0; g < batch_.num_groups; ++g) {
    const KvGroupSpec& spec = model.groups[g];
    const int64_t blocks = plan_.kv.groups[g].num_blocks;
    auto* pool = static_cast<uint16_t*>(device_.alloc_device(spec.bytes_per_token() * blocks * plan_.kv.block_size));
    auto* table = static_cast<int32_t*>(device_.alloc_device(sizeof(int32_t) * plan_.step.max_rows * stride));
    if (!pool || !table) return no_memory;
    batch_.groups[g] = {.pool = pool,
                        .num_blocks = blocks,
                        .num_layers = spec.num_layers,
                        .kv_heads = spec.kv_heads,
                        .head_dim = spec.head_dim,
                        .block_size = plan_.kv.block_size,
                        .window = spec.window,
                        .block_table = table,
                        .table_stride = stride};
    targets_.block_table[g] = table;
    targets_.table_stride[g] = stride;
  }
  if (Status status = claim_row_state(); !status.ok()) return status;

  void* scratch = device_.alloc_device(backend_.scratch_bytes(model.blocks, plan_.step));
  if (!scratch) return no_memory;
  if (Status status = backend_.prepare(model.blocks, plan_.step, scratch); !status.ok()) return status;
  auto staging = Staging::create(device_, slab_capacity(plan_.slab), plan_.step.max_rows);
  if (!staging) return staging.error();
  staging_ = std::move(*staging);
  return Status();
}

Status ModelRunner::claim_row_state() {
  const int64_t rows = plan_.step.max_rows;
  RowStateView& state = batch_.state;
  state.log_stride = plan_.context_length + 1;  // the last sampled token may lie one past the context
  state.token_log = static_cast<TokenId*>(device_.alloc_device(sizeof(TokenId) * rows * state.log_stride));
  state.sampling = static_cast<RowSampling*>(device_.alloc_device(sizeof(RowSampling) * rows));
  state.bias_ids = static_cast<TokenId*>(device_.alloc_device(sizeof(TokenId) * rows * kMaxLogitBias));
  state.bias_values = static_cast<float*>(device_.alloc_device(sizeof(float) * rows * kMaxLogitBias));
  state.stop_ids = static_cast<TokenId*>(device_.alloc_device(sizeof(TokenId) * rows * kMaxStopTokenIds));
  if (!state.token_log || !state.sampling || !state.bias_ids || !state.bias_values || !state.stop_ids) {
    return Status(StatusCode::kResourceExhausted, "the device has no room for the row state");
  }
  targets_.state = state;
  return Status();
}

LaunchedStep ModelRunner::launch(const StepPlan& plan) {
  CHECK(!plan.empty());
  LaunchedStep launched{.step = plan.step, .num_rows = static_cast<int32_t>(plan.rows.size())};
  const std::byte* slab = staging_->stage(plan, *copy_stream_, &launched.copied);

  const PatchTargets targets = targets_;
  auto apply = [slab, targets] { apply_slab(slab, targets); };
  if (test_fault(Fault::kPatchRaces)) {
    copy_stream_->run(apply);  // the fault: patches race the forward that still reads the tables
    engine_stream_->wait_for(copy_stream_->record());
  } else {
    engine_stream_->wait_for(launched.copied);
    engine_stream_->run(apply);
  }
  launched.begun = engine_stream_->record();

  Batch batch = batch_;
  batch.num_rows = static_cast<int32_t>(plan.rows.size());
  batch.num_decode_rows = plan.num_decode_rows;
  batch.num_tokens = plan.num_tokens;
  // write_slab puts the rows right behind the header; the device's copy of the offset is not readable from here.
  batch.rows = reinterpret_cast<const BatchRow*>(slab + slab_rows_offset());
  batch.sampled = staging_->sampled(plan.step);
  backend_.forward(*engine_stream_, batch);
  launched.done = engine_stream_->record();
  staging_->set_forward_done(plan.step, launched.done);
  launched.sampled = batch.sampled;
  launched.launched_ns = now_ns();
  return launched;
}

}  // namespace tailrace
