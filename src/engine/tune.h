// `tailrace tune`: measures the tuning table of this machine's GPU and writes it.
#pragma once

#include <string>

#include "base/status.h"

namespace tailrace {

struct TuneOptions {
  int device_index = 0;
  std::string model;  // its shapes of attention; empty: those of gpt-oss, Gemma 4, Qwen3.6 and Llama
  std::string out;    // file to write; empty: named after the GPU, in the current folder
};

// Prints a line per candidate to stdout. Errors: no GPU, one without tuned kernels, a model or a file that cannot be had.
Status run_tune(const TuneOptions& options);

}  // namespace tailrace
