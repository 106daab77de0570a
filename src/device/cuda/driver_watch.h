// The CallWatch of CUDA: CUPTI's callbacks at the driver's door, which every caller in the process goes through.
#pragma once

#include <memory>

#include "base/status.h"
#include "device/call_watch.h"

namespace tailrace::cuda {

// Loads CUPTI, by the loader's path or from a toolkit, and subscribes: one watch at a time in a process. kUnavailable
// says what is missing.
Expected<std::unique_ptr<CallWatch>> watch_driver_calls();

}  // namespace tailrace::cuda
