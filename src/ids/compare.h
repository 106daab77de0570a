// Contract 4 on a real model: the same greedy answers alone, batched, mixed, chunked, cached (at each boundary length, too), preempted
// and without overlap.
#pragma once

#include "ids/ids_options.h"

namespace tailrace {

// Prints a line a path: same, DIFFERENT, or NOT TRIED where the prompts never took the engine that way (a single prompt is
// no batch), or "cannot be" where the model or its context rule one out (nobody is preempted whose layers all have windows). True
// when every other path was tried and gave the reference's answers (ids/same_answer.h). The model is loaded once
// for each set of engine options.
Expected<bool> run_compare(const IdsOptions& options);

}  // namespace tailrace
