// Warp-group matrix products on Hopper: d (+)= a b with a [64, 16] from registers (rs) or shared memory (ss), b [16, N] from
// shared memory, bf16 or (kHalf) f16 in, fp32 sums. The width N follows from d: 2 * size. Descriptors: see descriptor(). kTransB 1:
// b's rows (of the 16) are the outer dimension in memory, as V is.
#pragma once

#include <cstdint>

namespace tailrace::cuda::ptx {

// A matrix operand in shared memory with the 128-byte swizzle, in atoms of 8 rows of 128 bytes. stride: bytes between atoms along
// the rows; lead: between 64-value groups along a transposed operand's wide side.
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t stride = 1024, uint32_t lead = 8192) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(lead >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The accumulators of a product, as the instruction lists them and as operands.
#define TAILRACE_R16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TAILRACE_R32 TAILRACE_R16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TAILRACE_R64 TAILRACE_R32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TAILRACE_R128 TAILRACE_R64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TAILRACE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TAILRACE_D16(i) TAILRACE_D4(i), TAILRACE_D4(i + 4), TAILRACE_D4(i + 8), TAILRACE_D4(i + 12)
#define TAILRACE_D32(i) TAILRACE_D16(i), TAILRACE_D16(i + 16)
#define TAILRACE_D64(i) TAILRACE_D32(i), TAILRACE_D32(i + 32)
#define TAILRACE_D128(i) TAILRACE_D64(i), TAILRACE_D64(i + 64)
// The instruction of width WIDTH on SIZE accumulators: operands from %SIZE on are a's, b's and whether to add.
#define TAILRACE_WGMMA_RS(SIZE, WIDTH, TYPE, A0, A1, A2, A3, B, ADD, TRANS) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32." TYPE "." TYPE " {" TAILRACE_R##SIZE "}, " \
      "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TRANS ";\n}\n" \
      : TAILRACE_D##SIZE(0) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransB))
#define TAILRACE_WGMMA(SIZE, WIDTH, A0, A1, A2, A3, B, ADD, TRANS) \
  template <int kTransB, bool kHalf = false> \
  __device__ __forceinline__ void wgmma_rs(float (&d)[SIZE], const uint32_t (&a)[4], uint64_t b, int add) { \
    if constexpr (kHalf) { \
      TAILRACE_WGMMA_RS(SIZE, WIDTH, "f16", A0, A1, A2, A3, B, ADD, TRANS); \
    } else { \
      TAILRACE_WGMMA_RS(SIZE, WIDTH, "bf16", A0, A1, A2, A3, B, ADD, TRANS); \
    } \
  } \
  template <int kTransB> \
  __device__ __forceinline__ void wgmma_ss(float (&d)[SIZE], uint64_t a, uint64_t b, int add) { \
    asm volatile( \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %" #A2 ", 0;\n" \
        "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32.bf16.bf16 {" TAILRACE_R##SIZE "}, " \
        "%" #A0 ", %" #A1 ", p, 1, 1, 0, %" #A3 ";\n}\n" \
        : TAILRACE_D##SIZE(0) \
        : "l"(a), "l"(b), "r"(add), "n"(kTransB)); \
  }

TAILRACE_WGMMA(16, 32, 16, 17, 18, 19, 20, 21, 22)
TAILRACE_WGMMA(32, 64, 32, 33, 34, 35, 36, 37, 38)
TAILRACE_WGMMA(64, 128, 64, 65, 66, 67, 68, 69, 70)
TAILRACE_WGMMA(128, 256, 128, 129, 130, 131, 132, 133, 134)

#undef TAILRACE_WGMMA
#undef TAILRACE_WGMMA_RS
#undef TAILRACE_R16
#undef TAILRACE_D16
#undef TAILRACE_R32
#undef TAILRACE_D32
#undef TAILRACE_R64
#undef TAILRACE_D64
#undef TAILRACE_R128
#undef TAILRACE_D128
#undef TAILRACE_D4

}  // namespace tailrace::cuda::ptx
