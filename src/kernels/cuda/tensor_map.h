// Tensor maps: boxes of a row-major matrix in device memory that the copy engine brings to shared memory by one instruction, swizzled,
// zeros where a box reaches beyond the matrix. Hopper's.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#ifdef __CUDACC__
#include "kernels/cuda/ptx.h"
#endif

namespace tailrace::cuda {

// A matrix of `rows` rows of `row_bytes` (a multiple of 16), one behind the other, in boxes of box_rows (<= 256) x box_bytes (<= 128).
// A row of 128 or 64 bytes in shared memory has its 16-byte pieces swizzled by its number; shorter ones lie plain. `values` is aligned
// to 16 bytes. On the host, without a call that waits.
cudaError_t make_tensor_map(CUtensorMap* map, const void* values, int64_t row_bytes, int64_t rows, int box_bytes, int box_rows);
// Looks the driver's function up; once, at boot.
cudaError_t prepare_tensor_maps();

#ifdef __CUDACC__
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// The box at byte `byte` of row `row` to `to` in this CTA's shared memory; the barrier counts the whole box's bytes.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int byte, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(byte), "r"(row), "r"(ptx::smem_address(barrier))
      : "memory");
}
#endif

}  // namespace tailrace::cuda
