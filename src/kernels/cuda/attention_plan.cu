// The plan of a step's decode rows: one CTA cuts their units into chunks of equal length (attention_decode.h says why).
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/ptx.h"

namespace tailrace::cuda {
namespace {

// Chunks of a unit of `blocks` blocks where `length` blocks is a CTA's fair share: the nearest whole number. None of an idle row.
__device__ __forceinline__ int chunks_of(int blocks, int64_t length) {
  if (blocks <= kUnsplitBlocks) return blocks > 0 ? 1 : 0;
  const int n = static_cast<int>((blocks + length / 2) / length);
  return n > 0 ? n : 1;
}

// One CTA: the step's tiles are summed, which gives the length of a chunk; a scan places the rows; the chunks are written out.
__global__ void __launch_bounds__(1024) plan_kernel(DecodePlan* plan, const BatchRow* rows, int num_rows, const int32_t* table,
                                                    int64_t stride, int kv_heads, int window, int ctas, int splits, DecodeTuning tuning) {
  __shared__ int32_t first[kMaxPlanRows + 1];
  __shared__ int32_t sums[1024];
  __shared__ unsigned long long tiles;
  ptx::wait_for_previous_kernel();
  if (threadIdx.x == 0) tiles = 0;
  __syncthreads();
  for (int r = threadIdx.x; r < num_rows; r += blockDim.x) {
    atomicAdd(&tiles, static_cast<unsigned long long>(kv_heads) * visible_blocks(rows[r].kv_len, window));
  }
  __syncthreads();
  const int64_t share = static_cast<int64_t>(tiles) < tuning.plenty_tiles * int64_t{ctas} ? ctas : tuning.chunks_per_cta * int64_t{ctas};
  const int64_t length = (static_cast<int64_t>(tiles) + share - 1) / share;

  int base = 0;
  for (int begin = 0; begin < num_rows; begin += blockDim.x) {
    const int r = begin + threadIdx.x;
    const int blocks = r < num_rows ? visible_blocks(rows[r].kv_len, window) : 0;
    const int chunks = r < num_rows ? kv_heads * (splits > 0 ? min(splits, blocks) : chunks_of(blocks, length)) : 0;
    sums[threadIdx.x] = chunks;
    __syncthreads();
    for (int reach = 1; reach < blockDim.x; reach *= 2) {
      const int add = threadIdx.x >= reach ? sums[threadIdx.x - reach] : 0;
      __syncthreads();
      sums[threadIdx.x] += add;
      __syncthreads();
    }
    if (r < num_rows) first[r] = base + sums[threadIdx.x] - chunks;
    base += sums[blockDim.x - 1];
    __syncthreads();
  }
  auto* bytes = reinterpret_cast<unsigned char*>(plan);
  auto* row_first = reinterpret_cast<int32_t*>(bytes + kRowFirstAt);
  auto* tickets = reinterpret_cast<unsigned*>(bytes + kTicketsAt);
  auto* chunks = reinterpret_cast<DecodeChunk*>(bytes + kChunksAt);
  if (threadIdx.x == 0) {
    first[num_rows] = base;
    plan->num_chunks = base, plan->num_rows = num_rows;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kMaxLaunches; i += blockDim.x) tickets[i] = 0;
  for (int r = threadIdx.x; r <= num_rows; r += blockDim.x) row_first[r] = first[r];
  for (int i = threadIdx.x; i < base; i += blockDim.x) {
    int low = 0, high = num_rows;  // first[low] <= i < first[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first[middle] <= i ? low : high) = middle;
    }
    const BatchRow row = rows[low];
    const int blocks = visible_blocks(row.kv_len, window), n = (first[low + 1] - first[low]) / kv_heads;
    DecodeChunk c;
    c.row = low, c.slot = row.slot, c.kv_len = row.kv_len;
    c.head = (i - first[low]) / n;
    c.chunk = (i - first[low]) % n;
    c.unit_chunks = n, c.unit_first = i - c.chunk;
    // Equal lengths within the unit, so that the last chunk is no crumb.
    const int begin = blocks * c.chunk / n, end = blocks * (c.chunk + 1) / n;
    c.first_block = first_visible(row.kv_len, window) / kBlockTokens + begin;
    c.num_blocks = end - begin;
    const int32_t* ids = table + row.slot * stride + c.first_block;
    for (int k = 0; k < kChunkIds; ++k) c.ids[k] = k < c.num_blocks ? ids[k] : 0;
    chunks[i] = c;
  }
}

}  // namespace

size_t decode_partial_out_bytes(int head_dim, int max_chunks) {
  return sizeof(float) * max_chunks * 16 * padded_dim(head_dim);
}

void plan_decode(DecodePlan* plan, const BatchRow* rows, int num_rows, const int32_t* block_table, int64_t table_stride,
                 int kv_heads, int window, int ctas, int splits, const DecodeTuning& tuning, cudaStream_t stream) {
  plan_kernel<<<1, 1024, 0, stream>>>(plan, rows, num_rows, block_table, table_stride, kv_heads, window, ctas, splits, tuning);
}

}  // namespace tailrace::cuda
