#include "weights/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "weights/json_file.h"
#include "weights/safetensors.h"
#include "weights/tensor_names.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxShards = 10'000;

bool is_directory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}
bool is_present(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<std::string> gguf_files_in(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".gguf") files.push_back(it->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// model.safetensors.index.json: which file holds which tensor. Files are plain names beside the index.
Expected<std::map<std::string, std::string>> read_index(const std::string& path) {
  Expected<nlohmann::json> index = read_json_file(path);
  if (!index) return fail(index.error());
  const auto bad = [&](const std::string& reason) { return fail(StatusCode::kDataLoss, path + ": " + reason); };
  const auto weight_map = index->find("weight_map");
  if (weight_map == index->end() || !weight_map->is_object() || weight_map->empty()) {
    return bad("weight_map is missing, empty or not an object");
  }
  std::map<std::string, std::string> file_of;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string()) return bad("tensor " + printable(tensor) + ": its file is not a string");
    const std::string name = file.get<std::string>();
    if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos || name == "..") {
      return bad("tensor " + printable(tensor) + ": '" + printable(name) + "' is not a plain file name");
    }
    file_of.emplace(tensor, name);
  }
  return file_of;
}

// The number of rows of a head, needed to undo the pairwise order of GGUF's llama q and k.
Expected<int64_t> gguf_head_dim(const GgufFile& gguf, const std::string& architecture) {
  if (gguf.has(architecture + ".attention.key_length")) {
    const Expected<uint64_t> length = gguf.get_u64(architecture + ".attention.key_length");
    if (!length) return fail(length.error());
    return static_cast<int64_t>(*length);
  }
  const Expected<uint64_t> hidden = gguf.get_u64(architecture + ".embedding_length");
  if (!hidden) return fail(hidden.error());
  const Expected<uint64_t> heads = gguf.get_u64(architecture + ".attention.head_count");
  if (!heads) return fail(heads.error());
  if (*heads == 0) return fail(StatusCode::kDataLoss, gguf.name() + ": " + architecture + ".attention.head_count is 0");
  return static_cast<int64_t>(*hidden / *heads);
}

bool is_rotated(std::string_view canonical) {
  return canonical.find(".self_attn.q_proj.") != std::string_view::npos ||
         canonical.find(".self_attn.k_proj.") != std::string_view::npos;
}

}  // namespace

Expected<std::shared_ptr<Checkpoint>> Checkpoint::open(const std::string& path) {
  if (!is_present(path)) return fail(StatusCode::kNotFound, path + ": no such file or directory");
  if (!is_directory(path)) {
    if (fs::path(path).extension() == ".safetensors") {
      return fail(StatusCode::kInvalidArgument,
                  path + ": give the directory that holds config.json and the .safetensors files instead");
    }
    return open_gguf(path, path);
  }
  const bool has_weights = is_present(fs::path(path) / "model.safetensors") ||
                           is_present(fs::path(path) / "model.safetensors.index.json");
  const std::vector<std::string> ggufs = gguf_files_in(path);
  if (has_weights || ggufs.empty()) return open_directory(path);
  if (ggufs.size() == 1) return open_gguf(path, ggufs[0]);
  return fail(StatusCode::kInvalidArgument, path + ": holds " + std::to_string(ggufs.size()) +
                                                " .gguf files; name one of them, for example " + ggufs[0]);
}

Expected<std::shared_ptr<Checkpoint>> Checkpoint::open_gguf(const std::string& path, const std::string& file) {
  Expected<std::shared_ptr<GgufFile>> gguf = GgufFile::open(file);
  if (!gguf) return fail(gguf.error());
  return from_gguf(std::move(*gguf), path);
}

Expected<std::shared_ptr<Checkpoint>> Checkpoint::from_gguf(std::shared_ptr<GgufFile> gguf, const std::string& path) {
  std::shared_ptr<Checkpoint> result(new Checkpoint);
  result->path_ = path;
  result->directory_ = fs::path(gguf->name()).parent_path().string();
  const Expected<uint64_t> parts = gguf->get_u64_or("split.count", 1);
  if (!parts) return fail(parts.error());
  if (*parts > 1) {
    return fail(StatusCode::kUnsupported, gguf->name() + ": is one of " + std::to_string(*parts) +
                                              " parts; merge them into one file (llama.cpp's gguf-split --merge)");
  }
  const Expected<std::string> architecture = gguf->get_string("general.architecture");
  if (!architecture) return fail(architecture.error());

  const bool interleaved = *architecture == "llama";
  int64_t head_dim = 0;
  if (interleaved) {
    const Expected<int64_t> rows = gguf_head_dim(*gguf, *architecture);
    if (!rows) return fail(rows.error());
    head_dim = *rows;
  }
  for (TensorView view : gguf->tensors()) {
    view.name = canonical_gguf_name(view.name, *architecture);
    if (interleaved && is_rotated(view.name)) {
      if (head_dim <= 0 || head_dim % 2 != 0 || view.shape.empty() || view.shape[0] % head_dim != 0) {
        return fail(StatusCode::kDataLoss, gguf->name() + ": tensor " + printable(view.name) + ": its shape " +
                                               shape_text(view.shape) + " is not made of heads of " +
                                               std::to_string(head_dim) + " rows");
      }
      view.rope_interleaved = true;
      view.head_dim = head_dim;
    }
    result->tensors_.push_back(std::move(view));
  }
  result->files_.push_back(gguf->file());
  result->gguf_ = std::move(gguf);
  if (Status status = result->finish(); !status.ok()) return fail(status);
  return result;
}

Expected<std::shared_ptr<Checkpoint>> Checkpoint::open_directory(const std::string& path) {
  auto result = read_config(path);
  if (!result) return result;
  if (Status status = (*result)->add_shards(); !status.ok()) return fail(status);
  if (Status status = (*result)->finish(); !status.ok()) return fail(status);
  return result;
}

Expected<std::shared_ptr<Checkpoint>> Checkpoint::open_config(const std::string& path) {
  return is_present(fs::path(path) / "config.json") ? read_config(path) : open(path);
}

Expected<std::shared_ptr<Checkpoint>> Checkpoint::read_config(const std::string& path) {
  std::shared_ptr<Checkpoint> result(new Checkpoint);
  result->path_ = result->directory_ = path;
  const fs::path directory(path);
  if (!is_present(directory / "config.json")) {
    return fail(StatusCode::kNotFound, path + ": holds neither config.json nor a .gguf file");
  }
  Expected<nlohmann::json> config = read_json_file((directory / "config.json").string());
  if (!config) return fail(config.error());
  result->config_ = std::move(*config);
  if (Status status = result->add_modelopt_file(); !status.ok()) return fail(status);
  Expected<nlohmann::json> generation = read_json_file((directory / "generation_config.json").string());
  if (generation) {
    result->generation_config_ = std::move(*generation);
  } else if (generation.error().code() != StatusCode::kNotFound) {
    return fail(generation.error());
  }
  return result;
}

// Older ModelOpt exports describe the quantisation in a file of its own.
Status Checkpoint::add_modelopt_file() {
  const std::string path = (fs::path(path_) / "hf_quant_config.json").string();
  if (config_.contains("quantization_config") || !is_present(path)) return Status();
  Expected<nlohmann::json> file = read_json_file(path);
  if (!file) return file.error();
  const auto found = file->find("quantization");
  if (found == file->end() || !found->is_object()) {
    return Status(StatusCode::kDataLoss, path + ": quantization is missing or not an object");
  }
  nlohmann::json quantization = *found;
  quantization["quant_method"] = "modelopt";
  config_["quantization_config"] = std::move(quantization);
  return Status();
}

Status Checkpoint::add_shards() {
  const fs::path directory(path_);
  std::map<std::string, std::string> file_of;  // by the file's own tensor name; empty without an index
  std::vector<std::string> names = {"model.safetensors"};
  const fs::path index_path = directory / "model.safetensors.index.json";
  if (!is_present(directory / names[0])) {
    if (!is_present(index_path)) {
      const bool has_bin = is_present(directory / "pytorch_model.bin");
      return Status(StatusCode::kNotFound,
                    path_ + ": holds neither model.safetensors nor model.safetensors.index.json" +
                        (has_bin ? " (pytorch_model.bin is not supported: convert it to safetensors)" : ""));
    }
    Expected<std::map<std::string, std::string>> index = read_index(index_path.string());
    if (!index) return index.error();
    file_of = std::move(*index);
    names.clear();
    for (const auto& [tensor, file] : file_of) names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.size() > kMaxShards) return Status(StatusCode::kDataLoss, index_path.string() + ": names too many files");
  }
  std::map<std::string, std::string> missing = file_of;
  for (const std::string& name : names) {
    Expected<std::shared_ptr<SafetensorsFile>> file = SafetensorsFile::open((directory / name).string());
    if (!file && file.error().code() == StatusCode::kNotFound) {
      return Status(StatusCode::kDataLoss, file.error().message() + ", though " + index_path.string() + " needs it");
    }
    if (!file) return file.error();
    for (const TensorView& tensor : (*file)->tensors()) {
      const auto indexed = file_of.find(tensor.name);
      if (indexed != file_of.end() && indexed->second != name) continue;  // the index names another file for it
      missing.erase(tensor.name);
      tensors_.push_back(tensor);
      tensors_.back().name = canonical_hf_name(tensor.name);
    }
    files_.push_back((*file)->file());
  }
  for (const auto& [tensor, file] : missing) {
    if (is_known_buffer(tensor)) continue;
    return Status(StatusCode::kDataLoss, (directory / file).string() + ": tensor " + printable(tensor) +
                                             ": the index says it is in this file, but it is not");
  }
  return Status();
}

Status Checkpoint::finish() {
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!index_.emplace(tensors_[i].name, i).second) {
      return Status(StatusCode::kDataLoss, path_ + ": tensor " + printable(tensors_[i].name) + ": appears twice");
    }
  }
  return Status();
}

const TensorView* Checkpoint::find(std::string_view canonical_name) const {
  const auto it = index_.find(canonical_name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

size_t Checkpoint::tensor_bytes() const {
  size_t sum = 0;
  for (const TensorView& tensor : tensors_) sum += tensor.bytes;
  return sum;
}

const MappedFile* Checkpoint::file_of(const TensorView& tensor) const {
  for (const auto& file : files_) {
    if (file->contains(tensor.data)) return file.get();
  }
  return nullptr;
}

Status Checkpoint::read(const TensorView& tensor, std::byte* out) const {
  const MappedFile* file = file_of(tensor);
  if (!file) return Status();  // an empty tensor at the very end of its file
  reads_.acquire();
  const Status status = file->read(tensor.data, tensor.bytes, out);
  reads_.release();
  if (status.ok()) return status;
  return Status(status.code(), status.message() + " (tensor " + printable(tensor.name) + ")");
}

}  // namespace tailrace
