// The extend kernel from a pool of bf16.
#include "kernels/cuda/attention_extend_hopper.cuh"

namespace tailrace::cuda {

int extend_tile_rows(int head_dim) { return padded_dim(head_dim) > 256 ? 64 : 128; }

size_t extend_partial_bytes(int head_dim, int parts) {
  return by_head_dim(head_dim, [=]<int D>() { return size_t{2} * Config<D>::kPartialBytes * parts; });
}

ExtendSplit extend_split(int head_dim, int tiles, int64_t kv_tiles, int window, int sms, bool beside_decode) {
  return split_of<false>(head_dim, tiles, kv_tiles, window, sms, beside_decode);
}
cudaError_t prepare_extend(int head_dim) { return prepare_both<false>(head_dim); }
cudaError_t run_extend_hopper(const ExtendParams& p, cudaStream_t stream) { return run<false>(p, stream); }

}  // namespace tailrace::cuda
