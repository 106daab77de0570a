// `tailrace tune`: measures what a tuning table holds, on this GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/tuning.h"

namespace tailrace::cuda {

// Tries every candidate on the shapes, which share a key where the kernels cannot tell them apart; one line per candidate to
// `print`, in us. The table holds only what differs from the defaults by more than noise. Takes about ten seconds a key.
// kUnsupported where the GPU runs the portable kernels, which no table tunes, or a shape has no kernel.
Expected<TuningTable> tune_attention(Device& device, const std::vector<TuneShape>& shapes,
                                     const std::function<void(const std::string&)>& print);

}  // namespace tailrace::cuda
