// A model on disk, whatever its container: a Hugging Face directory or a GGUF file, with tensors under canonical names.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "weights/gguf.h"
#include "weights/mapped_file.h"
#include "weights/tensor.h"

namespace tailrace {

class Checkpoint {
 public:
  // `path`: a .gguf file; a directory with config.json and model.safetensors or model.safetensors.index.json with its
  // shards; or a directory that holds exactly one .gguf file. Reads headers only, never the weights.
  // Errors name the file, the tensor and the reason.
  static Expected<std::shared_ptr<Checkpoint>> open(const std::string& path);
  // For its configuration alone, as dummy weights need it: a directory with config.json, without tensors; else as open.
  static Expected<std::shared_ptr<Checkpoint>> open_config(const std::string& path);
  // `path` is what messages call it.
  static Expected<std::shared_ptr<Checkpoint>> from_gguf(std::shared_ptr<GgufFile> gguf, const std::string& path);

  const std::string& path() const { return path_; }            // as given
  const std::string& directory() const { return directory_; }  // where companion files (tokenizer.json) lie

  // Parsed config.json (a JSON object); null for GGUF.
  const nlohmann::json* config() const { return config_.is_null() ? nullptr : &config_; }
  // Parsed generation_config.json; null when there is none, and for GGUF.
  const nlohmann::json* generation_config() const {
    return generation_config_.is_null() ? nullptr : &generation_config_;
  }
  // Null for a Hugging Face directory.
  const GgufFile* gguf() const { return gguf_.get(); }

  // Sorted by canonical name, e.g. model.layers.0.self_attn.q_proj.weight, model.norm.weight, lm_head.weight. GGUF
  // names without a Hugging Face equivalent are kept as they are (rope_freqs.weight).
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Null when absent. The view lives as long as the checkpoint.
  const TensorView* find(std::string_view canonical_name) const;
  size_t tensor_bytes() const;  // sum over tensors()

  // Reads the bytes that `tensor`, or a part of one, views into `out`, as MappedFile::read. Any thread; two read at a
  // time. kDataLoss names file and tensor.
  Status read(const TensorView& tensor, std::byte* out) const;

 private:
  Checkpoint() = default;
  static Expected<std::shared_ptr<Checkpoint>> open_gguf(const std::string& path, const std::string& file);
  static Expected<std::shared_ptr<Checkpoint>> read_config(const std::string& directory);
  static Expected<std::shared_ptr<Checkpoint>> open_directory(const std::string& path);
  Status add_modelopt_file();
  Status add_shards();
  Status finish();  // sorts, indexes and rejects duplicates
  const MappedFile* file_of(const TensorView& tensor) const;

  std::string path_, directory_;
  nlohmann::json config_, generation_config_;
  std::shared_ptr<GgufFile> gguf_;
  std::vector<std::shared_ptr<MappedFile>> files_;
  // More reads at once make a disk's work less sequential: 16 were a quarter slower than one (bench/BASELINES.md).
  mutable std::counting_semaphore<2> reads_{2};
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // keys point into tensors_
};

}  // namespace tailrace
