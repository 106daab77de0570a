#include "kernels/cuda/cuda_shape.h"

#include <algorithm>
#include <string>

#include "device/cuda/gpu_code.h"
#include "kernels/cuda/expert_form.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/moe_route.h"
#include "kernels/cuda/sampler.h"

namespace tailrace::cuda {
namespace {

// What the tuning table says of the group's shape, or the defaults.
Status tune(const AttentionPath& attention, const BackendOptions& options, GroupShape& group) {
  const TuningTable table = attention.tuned ? options.tuning : TuningTable{};
  const TuningKey key{
      .head_dim = padded_dim(group.head_dim), .group = group.gqa_ratio() <= 8 ? 8 : 16, .window = group.window > 0};
  group.decode = tuning_for(table.decode, key, DecodeTuning{});
  group.mixed = tuning_for(table.mixed, key, attention.mixed_defaults(group.head_dim, group.gqa_ratio()));
  if (group.mixed.decode_ctas <= group.decode_ctas) return {};
  return {StatusCode::kInvalidArgument, table.source + ": mixed.decode_ctas of head_dim " +
                                            std::to_string(key.head_dim) + ": " +
                                            std::to_string(group.mixed.decode_ctas) + ", but the GPU holds " +
                                            std::to_string(group.decode_ctas) + " CTAs of that kernel at once"};
}

// Why no kernel serves the mixture, or "".
std::string experts_unsupported(const MoeBlock& moe) {
  if (moe.router.rows > kMostExperts || moe.taken() > kMostTopK) {
    return std::to_string(moe.taken()) + " of " + std::to_string(moe.router.rows) + " experts; at most " +
           std::to_string(kMostTopK) + " of " + std::to_string(kMostExperts);
  }
  if (moe.router_norm.weight != nullptr && moe.router_norm.eps != moe.norm.eps) return "a router whose norm has an epsilon of its own";
  if (moe.norm.weight == nullptr || moe.router.cols > kMostNormedHidden) return "experts without a norm, or wider than 8192";
  if (moe.dense.share.rows > 0 && (moe.dense.share.format != moe.router.format || moe.dense.norm.weight != nullptr)) {
    return "a shared expert whose gate is stored or normed otherwise than the router";
  }
  for (const ExpertWeights* w : {&moe.gate, &moe.up, &moe.down}) {
    const bool blocks = w->first.scale != nullptr && w->first.scale_cols != w->first.cols;
    if (blocks && (w->first.format != Format::kF8E4M3 || w->first.scale_cols != kScaleBlockCols)) {
      return "experts with scales of " + std::to_string(w->first.scale_cols) + " columns";
    }
  }
  if (moe.dense.present() && moe.dense.gate.format != moe.dense.up.format) return "a branch beside the experts whose gate and up are stored in different formats";
  if (moe.gate.first.format != moe.up.first.format || moe.gate.first.scale_cols != moe.up.first.scale_cols) {
    return "experts whose gate and up are stored in different formats, or with scales of different layouts";
  }
  if (moe.router.cols % 8 != 0 || moe.down.first.cols % 8 != 0) return "experts of a width that is no multiple of 8";
  return "";
}

// Values of the norm behind a block of projections, or 0.
int64_t post_norm_width(const LayerBlock& block) {
  const auto* out = std::get_if<AttnOutBlock>(&block);
  if (out != nullptr && out->post_norm.weight != nullptr) return out->o.rows;
  const auto* mlp = std::get_if<MlpBlock>(&block);
  return mlp != nullptr && mlp->post_norm.weight != nullptr ? mlp->down.rows : 0;
}

// Why no kernel serves the recurrent layer, or "".
std::string delta_unsupported(const GatedDeltaBlock& delta) {
  if (!has_hopper_code()) return "linear attention needs a GPU of compute capability 9.0";
  if (delta.conv_width != kDeltaInputs) return "a convolution of " + std::to_string(delta.conv_width) + " inputs; 4 is served";
  if (delta_dim_served(delta.k_dim, delta.v_dim)) return "";
  return "linear attention with heads of " + std::to_string(delta.k_dim) + " and " + std::to_string(delta.v_dim) +
         " dims; 32, 64 and 128 are served, the same for keys and values";
}

}  // namespace

Expected<CudaShape> cuda_shape(const BlockList& blocks, const StepLimits& limits, const BackendOptions& options) {
  const auto refuse = [](const std::string& why) { return fail(StatusCode::kUnsupported, "the CUDA backend: " + why); };
  CudaShape s;
  s.widths = block_widths(blocks);
  s.attention = &attention_path(options.kv_format);
  for (const LayerBlock& block : blocks) {
    const auto* a = std::get_if<AttentionBlock>(&block);
    if (a == nullptr || s.attention->supported(a->head_dim, a->q_heads, a->kv_heads)) continue;
    s.portable_for = std::to_string(a->q_heads) + " query and " + std::to_string(a->kv_heads) + " KV heads of " +
                     std::to_string(a->head_dim) + " dims";
    s.attention = &attention_path(options.kv_format, true);
    if (!s.attention->supported(a->head_dim, a->q_heads, a->kv_heads)) return refuse("attention of " + s.portable_for);
  }
  const AttentionPath& attention = *s.attention;
  s.max_extend_parts = attention.max_extend_parts;
  s.limits = limits;
  s.logits_stride = (s.widths.vocab + 3) / 4 * 4;
  if (limits.vocab > kMaxSampledVocab) return refuse("a vocabulary of more than " + std::to_string(kMaxSampledVocab));
  if (limits.max_rows > kMaxPlanRows) return refuse("more than " + std::to_string(kMaxPlanRows) + " rows");
  const auto count = [&](const Weight& w, ProductOut) {
    const WeightForm form = *form_of(w.format);  // packed_bytes refused what has none
    s.has_halves |= form != WeightForm::kBf16;
    if (needs_widening(form)) s.widened = std::max(s.widened, w.rows * w.cols);
  };
  int launches[kMaxKvGroups] = {};
  for (const LayerBlock& block : blocks) {
    if (const auto* delta = std::get_if<GatedDeltaBlock>(&block)) {
      if (const Status status = check_gated_delta(*delta); !status.ok()) return fail(status);
      if (const std::string why = delta_unsupported(*delta); !why.empty()) return refuse(why);
    }
    if (const auto* moe = std::get_if<MoeBlock>(&block)) {
      if (const Status status = check_moe(*moe); !status.ok()) return fail(status);
      if (const std::string why = experts_unsupported(*moe); !why.empty()) return refuse(why);
      s.has_shared_last |= moe->shared_last();
    }
    if (const auto* mlp = std::get_if<MlpBlock>(&block); mlp && mlp->out_scale != nullptr && mlp->post_norm.weight == nullptr) {
      return refuse("a scale on the residual stream of an MLP without a norm behind it");
    }
    if (post_norm_width(block) > kMostNormedHidden) return refuse("a norm behind a block of more than 8192 values");
    for_each_product(block, count);
    s.has_post_norm |= post_norm_width(block) > 0;
    if (const auto* a = std::get_if<AttentionBlock>(&block)) {
      GroupShape& g = s.groups[a->group];
      if (g.q_heads != 0 && (g.q_heads != a->q_heads || g.head_dim != a->head_dim))
        return refuse("layers of one KV group differ in shape");
      g.q_heads = a->q_heads, g.kv_heads = a->kv_heads, g.head_dim = a->head_dim, g.window = a->window;
      s.num_groups = std::max(s.num_groups, a->group + 1);
      if (++launches[a->group] > kMaxLaunches)
        return refuse("more than " + std::to_string(kMaxLaunches) + " layers in a KV group");
    }
  }
  for (int g = 0; g < s.num_groups; ++g) {
    GroupShape& group = s.groups[g];
    group.decode_ctas = attention.decode_ctas(group.head_dim, group.gqa_ratio());
    if (Status status = tune(attention, options, group); !status.ok()) return fail(status);
    const int units = limits.max_rows * group.kv_heads;
    group.max_chunks = std::max({max_decode_chunks(group.decode_ctas, units, group.decode.chunks_per_cta),
                                 max_decode_chunks(group.decode_ctas, units, group.mixed.chunks_per_cta),
                                 units * options.kv_splits});
  }
  return s;
}

}  // namespace tailrace::cuda
