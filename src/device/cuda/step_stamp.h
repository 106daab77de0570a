// StepStamp: what the kernels of a step leave in mapped pinned memory, so that the host learns of its end without a
// call.
#pragma once

#include <cstdint>

namespace tailrace::cuda {

// Written by kernels: begun_ns and done_ns (%globaltimer) first, then, behind __threadfence_system(), launch_plus_one.
// A ring of at least kStagingRing of them: a stamp is overwritten only when nobody waits for its launch any more.
struct StepStamp {
  volatile uint64_t launch_plus_one;  // launch + 1 of the step that wrote it; 0: none yet
  volatile uint64_t begun_ns, done_ns;
};

}  // namespace tailrace::cuda
