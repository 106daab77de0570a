// How the experts' kernels read units (expert_form.h) and finish sums: shared by those for few tokens and for many.
#pragma once

#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/vector_math.cuh"

namespace tailrace::cuda {

// A lane's part of a unit: its 16 rows' operands of four steps. load(unit, group): of rows 16 * group and on.
template <ExpertForm F>
struct UnitPart;

template <>
struct UnitPart<ExpertForm::kBf16> {
  uint4 v[4];
  template <typename Load16, typename Load4>
  __device__ __forceinline__ void load(int group, int lane, const Load16& load_16, const Load4&) {
#pragma unroll
    for (int s = 0; s < 4; ++s) v[s] = load_16((group * 4 + s) * 512 + lane * 16);
  }
  __device__ __forceinline__ void step(int s, uint32_t (&a)[4]) const {
    a[0] = v[s].x, a[1] = v[s].y, a[2] = v[s].z, a[3] = v[s].w;
  }
};

__device__ __forceinline__ __nv_bfloat162 pair_of(uint32_t bits) { return *reinterpret_cast<const __nv_bfloat162*>(&bits); }
__device__ __forceinline__ uint32_t scaled(uint32_t pair, uint32_t scale) {
  const __nv_bfloat162 product = __hmul2(pair_of(pair), pair_of(scale));
  return *reinterpret_cast<const uint32_t*>(&product);
}
// The operands of a step from its word of e2m1 codes; scales of row g and of row g + 8, as pairs.
__device__ __forceinline__ void e2m1_operands(uint32_t w, const uint32_t (&scale)[2], uint32_t (&a)[4]) {
  a[0] = scaled(w & 0x81c081c0u, scale[0]);
  a[1] = scaled(w << 3 & 0x81c081c0u, scale[1]);
  a[2] = scaled((w << 6 & 0x01c001c0u) | (w << 2 & 0x80008000u), scale[0]);
  a[3] = scaled((w >> 3 & 0x01c001c0u) | (w << 1 & 0x80008000u), scale[1]);
}
template <>
struct UnitPart<ExpertForm::kMxfp4> {
  uint4 v;
  uint32_t scales;  // bytes: block 0 of row g and of row g + 8, block 1 of both
  template <typename Load16, typename Load4>
  __device__ __forceinline__ void load(int group, int lane, const Load16& load_16, const Load4& load_4) {
    v = load_16(group * 512 + lane * 16);
    scales = load_4(kFourBitUnitValues + group * 32 + lane / 4 * 4);
  }
  __device__ __forceinline__ void step(int s, uint32_t (&a)[4]) const {
    // bf16 of both blocks, of row g and of row g + 8.
    const uint32_t rows[2] = {(scales & 0x00ff00ffu) << 7, scales >> 1 & 0x7f807f80u};
    uint32_t scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __nv_bfloat162 both = pair_of(rows[i]), one = s < 2 ? __low2bfloat162(both) : __high2bfloat162(both);
      scale[i] = *reinterpret_cast<const uint32_t*>(&one);
    }
    e2m1_operands(component(v, s), scale, a);
  }
};

template <>
struct UnitPart<ExpertForm::kNvfp4> {
  uint4 v;
  uint32_t scales[2];  // a byte a step, of row g and of row g + 8
  template <typename Load16, typename Load4>
  __device__ __forceinline__ void load(int group, int lane, const Load16& load_16, const Load4& load_4) {
    v = load_16(group * 512 + lane * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) scales[i] = load_4(kFourBitUnitValues + group * 64 + lane / 4 * 8 + i * 4);
  }
  __device__ __forceinline__ void step(int s, uint32_t (&a)[4]) const {
    uint32_t scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) scale[i] = __byte_perm(scales[i], 0, 0x4040 | s << 8 | s) * 16 + kNvfp4ScaleBias * 0x10001u;
    e2m1_operands(component(v, s), scale, a);
  }
};

template <>
struct UnitPart<ExpertForm::kFp8> {
  uint4 v[2];
  template <typename Load16, typename Load4>
  __device__ __forceinline__ void load(int group, int lane, const Load16& load_16, const Load4&) {
#pragma unroll
    for (int h = 0; h < 2; ++h) v[h] = load_16((group * 2 + h) * 512 + lane * 16);
  }
  __device__ __forceinline__ void step(int s, uint32_t (&a)[4]) const {
    constexpr uint32_t kUp = (120u + 127) << 7;  // e4m3's bits in bf16's places are the value / 2^120
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = component(v[s / 2], s % 2 * 2 + i);
      a[2 * i] = scaled((w & 0x80008000u) | (w >> 4 & 0x07f007f0u), kUp * 0x10001u);
      a[2 * i + 1] = scaled((w << 8 & 0x80008000u) | (w << 4 & 0x07f007f0u), kUp * 0x10001u);
    }
  }
};

template <>
struct UnitPart<ExpertForm::kFp8Block> : UnitPart<ExpertForm::kFp8> {};

// What an expert's sums are too small by.
__device__ __forceinline__ constexpr float form_factor(ExpertForm form) { return form == ExpertForm::kNvfp4 ? kNvfp4Factor : 1.0f; }

__device__ __forceinline__ float gated(const ExpertParams& p, float gate, float up) {
  if (p.activation != Activation::kClampedSwiglu) return activate(gate, p.activation == Activation::kGeluTanh) * up;
  gate = fminf(gate, p.limit);
  up = fminf(fmaxf(up, -p.limit), p.limit);
  return gate / (1.0f + __expf(-p.alpha * gate)) * (up + 1.0f);
}

// What kernels before wrote is read past the first-level cache, which may hold an earlier layer's.
__device__ __forceinline__ ExpertTile load_tile(const ExpertParams& p, int i) {
  const int32_t* tile = &p.tiles[i].expert;
  return {__ldcg(tile), __ldcg(tile + 1), __ldcg(tile + 2)};
}
__device__ __forceinline__ float entry_factor(const ExpertParams& p, int entry) {
  return p.factor != nullptr ? __ldcg(p.factor + __ldcg(p.factor_of + entry)) : 1.0f;
}

// kFp8Block: the scales, one per 128 columns, of a tile of rows that begins at `row`: 128 is a multiple of its rows.
__device__ __forceinline__ const float* block_scales(const ExpertParams& p, int matrix, int expert, int row) {
  const int blocks = (p.cols + kScaleBlockCols - 1) / kScaleBlockCols;
  return p.matrix[matrix].scale + (int64_t{expert} * p.rows + row) * blocks;
}
// A row's scale of its sums; kFp8Block's are in them.
__device__ __forceinline__ float row_scale(ExpertForm form, const ExpertMatrix& m, int64_t row) {
  return form != ExpertForm::kFp8Block && m.scale != nullptr ? m.scale[row] * form_factor(form) : form_factor(form);
}

}  // namespace tailrace::cuda
