// Tuning tables as files: configs/tuning/GPU.json, by the GPU's name. "measured_on" names another GPU where a table was
// not made on its own; the table's source says so.
#pragma once

#include <string>

#include "base/status.h"
#include "kernels/tuning.h"

namespace tailrace {

// "NVIDIA H200" -> "nvidia-h200.json"
std::string tuning_file_name(const std::string& gpu_name);

// kDataLoss, naming file, key and reason: not JSON, unknown or missing keys, values that no kernel runs, a shape twice.
Expected<TuningTable> read_tuning_file(const std::string& path);
// The table of configs/tuning beside the executable or beside its folder; where there is none for this GPU, an empty
// one, which stands for the built-in defaults. Errors as read_tuning_file's.
Expected<TuningTable> find_tuning(const std::string& gpu_name);
Status write_tuning_file(const std::string& path, const std::string& gpu_name, const TuningTable& table);

}  // namespace tailrace
