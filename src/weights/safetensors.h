// One safetensors file: its tensors, with every offset, shape and size checked at open.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "weights/mapped_file.h"
#include "weights/tensor.h"

namespace tailrace {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Buffers that older exporters saved though every loader computes them: rotary_emb.inv_freq, position_ids, ...
bool is_known_buffer(std::string_view name);

class SafetensorsFile {
 public:
  // kDataLoss when the file is truncated, oversized or inconsistent, kUnsupported for a data type other than F32, F16,
  // BF16, F8_E4M3 and U8; the message names the file, the tensor and the reason.
  static Expected<std::shared_ptr<SafetensorsFile>> open(const std::string& path);
  // `bytes` must outlive the object.
  static Expected<std::shared_ptr<SafetensorsFile>> open_memory(std::span<const std::byte> bytes,
                                                                const std::string& name);

  const std::string& name() const { return file_->name(); }
  const std::shared_ptr<MappedFile>& file() const { return file_; }
  // In file order, with the file's names. Known buffers are checked like the rest but not listed.
  const std::vector<TensorView>& tensors() const { return tensors_; }

 private:
  SafetensorsFile() = default;
  static Expected<std::shared_ptr<SafetensorsFile>> parse(std::shared_ptr<MappedFile> file);

  std::shared_ptr<MappedFile> file_;
  std::vector<TensorView> tensors_;
};

}  // namespace tailrace
