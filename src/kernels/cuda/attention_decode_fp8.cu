// The decode kernel from a pool of e4m3; a file of its own, since each takes minutes to compile.
#include "kernels/cuda/attention_decode.cuh"

namespace tailrace::cuda {

int decode_ctas_fp8(int head_dim, int group) { return ctas_of<true>(head_dim, group); }
MixedTuning mixed_defaults_fp8(int head_dim, int group) { return mixed_of<true>(head_dim, group); }
cudaError_t run_decode_fp8(const DecodeParams& p, int ctas, cudaStream_t stream) { return run<true>(p, ctas, stream); }

}  // namespace tailrace::cuda
