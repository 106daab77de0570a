// Which of this build's code the GPU runs: kernels and launches choose their path by it, not by what the GPU could do.
#pragma once

namespace tailrace::cuda {

// The architecture that this build's kernels were compiled for, as the current device runs them: 80, 89, 90 (Hopper's
// own instructions included) or 120; code for an older one also runs on later GPUs. 0: the build has none for this
// device. Asked of the driver once per process.
int gpu_code_arch();

// Hopper's kernels: bulk copies, wgmma, clusters.
inline bool has_hopper_code() { return gpu_code_arch() == 90; }
// Programmatic dependent launch and clusters exist in code for 9.0 and later; without, a launch must not ask for them.
inline bool code_may_overlap() { return gpu_code_arch() >= 90; }
inline bool code_has_clusters() { return gpu_code_arch() >= 90; }

}  // namespace tailrace::cuda
