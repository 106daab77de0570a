// Clusters of CTAs on Hopper: their barrier, and reads of each other's shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tailrace::cuda {

// The barrier's two halves, for work in between.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory"); }
// Every thread of the cluster that has not exited arrives; what they wrote to shared memory before is seen after.
__device__ __forceinline__ void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}
// 16 bytes at `address`, as this CTA has it, in the shared memory of CTA `rank` of the cluster.
__device__ __forceinline__ float4 load_remote_16(uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [at];\n}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}

}  // namespace tailrace::cuda
