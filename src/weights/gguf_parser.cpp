// Reads a GGUF file's header into a GgufFile. Nothing is allocated for a count before the file is known to hold it.
#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "weights/gguf.h"
#include "weights/gguf_types.h"

namespace tailrace {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxKeyLength = 65535;
constexpr uint64_t kMaxTensorNameLength = 1024;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 65536;
// The least that a metadata entry and a tensor's description take.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

// Reads forward through bytes; once a read fails, ok() stays false and all reads give zeros.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  uint64_t remaining() const { return bytes_.size() - at_; }
  uint64_t offset() const { return at_; }
  const std::byte* here() const { return bytes_.data() + at_; }

  bool skip(uint64_t size) {
    if (!ok_ || size > remaining()) return ok_ = false;
    at_ += size;
    return true;
  }
  template <typename T>
  T read() {
    T value{};
    const std::byte* from = here();
    if (skip(sizeof value)) std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::string_view read_string() {
    const uint64_t length = read<uint64_t>();
    const char* text = reinterpret_cast<const char*>(here());
    return skip(length) ? std::string_view(text, length) : std::string_view();
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  bool ok_ = true;
};

uint64_t align_up(uint64_t value, uint64_t alignment) { return (value + alignment - 1) & ~(alignment - 1); }

}  // namespace

const GgmlType* find_ggml_type(uint32_t number) {
  static constexpr struct {
    uint32_t number;
    GgmlType type;
  } kTypes[] = {
      {0, {"F32", Format::kF32}},         {1, {"F16", Format::kF16}},         {2, {"Q4_0", Format::kQ4_0}},
      {3, {"Q4_1", Format::kQ4_1}},       {6, {"Q5_0", Format::kQ5_0}},       {7, {"Q5_1", Format::kQ5_1}},
      {8, {"Q8_0", Format::kQ8_0}},       {9, {"Q8_1", std::nullopt}},        {10, {"Q2_K", std::nullopt}},
      {11, {"Q3_K", std::nullopt}},       {12, {"Q4_K", Format::kQ4_K}},      {13, {"Q5_K", Format::kQ5_K}},
      {14, {"Q6_K", Format::kQ6_K}},      {15, {"Q8_K", std::nullopt}},       {16, {"IQ2_XXS", std::nullopt}},
      {17, {"IQ2_XS", std::nullopt}},     {18, {"IQ3_XXS", std::nullopt}},    {19, {"IQ1_S", std::nullopt}},
      {20, {"IQ4_NL", std::nullopt}},     {21, {"IQ3_S", std::nullopt}},      {22, {"IQ2_S", std::nullopt}},
      {23, {"IQ4_XS", std::nullopt}},     {24, {"I8", std::nullopt}},         {25, {"I16", std::nullopt}},
      {26, {"I32", std::nullopt}},        {27, {"I64", std::nullopt}},        {28, {"F64", std::nullopt}},
      {29, {"IQ1_M", std::nullopt}},      {30, {"BF16", Format::kBF16}},      {34, {"TQ1_0", std::nullopt}},
      {35, {"TQ2_0", std::nullopt}},      {39, {"MXFP4", Format::kMXFP4}},
  };
  for (const auto& entry : kTypes) {
    if (entry.number == number) return &entry.type;
  }
  return nullptr;
}

class GgufParser {
 public:
  explicit GgufParser(std::shared_ptr<MappedFile> file) : cursor_(file->bytes()), gguf_(new GgufFile) {
    gguf_->file_ = std::move(file);
  }

  Expected<std::shared_ptr<GgufFile>> parse() {
    Status status = header();
    for (uint64_t i = 0; status.ok() && i < num_entries_; ++i) status = entry();
    if (status.ok()) status = read_alignment();
    for (uint64_t i = 0; status.ok() && i < num_tensors_; ++i) status = tensor();
    if (status.ok()) status = place_tensors();
    if (!status.ok()) return fail(status);
    return gguf_;
  }

 private:
  Status bad(const std::string& reason, StatusCode code = StatusCode::kDataLoss) const {
    return Status(code, gguf_->name() + ": " + reason);
  }

  Status header() {
    if (cursor_.read<uint32_t>() != kMagic) return bad("not a GGUF file");
    gguf_->version_ = cursor_.read<uint32_t>();
    if (gguf_->version_ != 2 && gguf_->version_ != 3) {
      const bool swapped = gguf_->version_ != 0 && (gguf_->version_ & 0xffffff) == 0;
      return bad(swapped ? "big-endian GGUF files are not supported"
                         : "GGUF version " + std::to_string(gguf_->version_) + " is not supported (2 and 3 are)",
                 StatusCode::kUnsupported);
    }
    num_tensors_ = cursor_.read<uint64_t>();
    num_entries_ = cursor_.read<uint64_t>();
    if (!cursor_.ok()) return bad("the file ends within its header (truncated?)");
    if (num_entries_ > cursor_.remaining() / kMinEntryBytes || num_tensors_ > cursor_.remaining() / kMinTensorBytes) {
      return bad("the header claims " + std::to_string(num_tensors_) + " tensors and " + std::to_string(num_entries_) +
                 " metadata entries, more than the file can hold");
    }
    return Status();
  }

  Status entry() {
    const std::string_view key = cursor_.read_string();
    const uint32_t type = cursor_.read<uint32_t>();
    if (!cursor_.ok()) return bad("the file ends within its metadata (truncated?)");
    if (key.empty() || key.size() > kMaxKeyLength) return bad("a metadata key is empty or too long");
    const std::string name = "metadata key " + printable(key);
    if (type >= kNumGgufTypes) return bad(name + " has the unknown type " + std::to_string(type));

    GgufFile::Value value;
    value.type = static_cast<GgufType>(type);
    if (value.type == GgufType::kArray) {
      value.is_array = true;
      const uint32_t element = cursor_.read<uint32_t>();
      value.count = cursor_.read<uint64_t>();
      if (element >= kNumGgufTypes) return bad(name + " is an array of the unknown type " + std::to_string(element));
      value.type = static_cast<GgufType>(element);
      if (value.type == GgufType::kArray) return bad(name + " is an array of arrays", StatusCode::kUnsupported);
    }
    value.data = cursor_.here();
    if (!skip_values(value)) return bad(name + " reaches past the end of the file (truncated?)");
    if (!gguf_->values_.emplace(std::string(key), value).second) return bad(name + " appears twice");
    return Status();
  }

  bool skip_values(const GgufFile::Value& value) {
    const size_t size = gguf_type_bytes(value.type);
    if (!cursor_.ok()) return false;
    if (size > 0) return value.count <= cursor_.remaining() / size && cursor_.skip(value.count * size);
    if (value.count > cursor_.remaining() / 8) return false;  // a string takes 8 bytes at least
    for (uint64_t i = 0; i < value.count && cursor_.ok(); ++i) cursor_.read_string();
    return cursor_.ok();
  }

  Status read_alignment() {
    const Expected<uint64_t> alignment = gguf_->get_u64_or("general.alignment", kDefaultAlignment);
    if (!alignment) return alignment.error();
    if (!std::has_single_bit(*alignment) || *alignment < 8 || *alignment > kMaxAlignment) {
      return bad("general.alignment is " + std::to_string(*alignment) + ", not a power of two from 8 to 65536");
    }
    alignment_ = *alignment;
    return Status();
  }

  // Leaves the tensor's offset (from the start of the data section) in offsets_.
  Status tensor() {
    TensorView view;
    const std::string_view name = cursor_.read_string();
    const uint32_t num_dims = cursor_.read<uint32_t>();
    if (!cursor_.ok()) return bad("the file ends within its list of tensors (truncated?)");
    if (name.empty() || name.size() > kMaxTensorNameLength) return bad("a tensor's name is empty or too long");
    view.name = std::string(name);
    const std::string label = "tensor " + printable(name) + ": ";
    if (num_dims > kMaxDims) return bad(label + std::to_string(num_dims) + " dimensions, at most 4 are allowed");
    uint64_t elements = 1;
    for (uint32_t i = 0; i < num_dims; ++i) {
      const uint64_t dim = cursor_.read<uint64_t>();
      if (dim > INT64_MAX || __builtin_mul_overflow(elements, dim, &elements) || elements > INT64_MAX / 8) {
        return bad(label + "its shape is too large");
      }
      view.shape.insert(view.shape.begin(), static_cast<int64_t>(dim));  // stored innermost first
    }
    const uint32_t type_number = cursor_.read<uint32_t>();
    const uint64_t offset = cursor_.read<uint64_t>();
    if (!cursor_.ok()) return bad(label + "the file ends within its description (truncated?)");

    const GgmlType* type = find_ggml_type(type_number);
    if (!type) {
      return bad(label + "type number " + std::to_string(type_number) + " is unknown", StatusCode::kUnsupported);
    }
    if (!type->format) {
      return bad(label + "type " + type->name + " is not supported (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
                 "Q4_K, Q5_K, Q6_K and MXFP4 are)", StatusCode::kUnsupported);
    }
    view.format = *type->format;
    const FormatTraits traits = format_traits(view.format);
    const int64_t cols = view.shape.empty() ? 1 : view.shape.back();
    if (cols % traits.block_elems != 0) {
      return bad(label + "its rows of " + std::to_string(cols) + " elements are not whole blocks of " + traits.name);
    }
    view.bytes = elements / traits.block_elems * traits.block_bytes;
    if (offset % alignment_ != 0) return bad(label + "its offset is not a multiple of the alignment");
    if (!names_.insert(view.name).second) return bad(label + "appears twice");
    gguf_->tensors_.push_back(std::move(view));
    offsets_.push_back(offset);
    return Status();
  }

  // The data section holds the tensors, each padded to the alignment, in any order but without overlap, hole or rest.
  Status place_tensors() {
    const uint64_t data_start = align_up(cursor_.offset(), alignment_);
    const std::span<const std::byte> bytes = gguf_->file_->bytes();
    if (num_tensors_ == 0) return Status();
    if (data_start > bytes.size()) return bad("the file ends before its tensors (truncated?)");
    const uint64_t data_bytes = bytes.size() - data_start;

    std::vector<size_t> order(offsets_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return std::pair(offsets_[a], gguf_->tensors_[a].bytes) < std::pair(offsets_[b], gguf_->tensors_[b].bytes);
    });
    uint64_t at = 0;
    for (const size_t i : order) {
      TensorView& view = gguf_->tensors_[i];
      const std::string label = "tensor " + printable(view.name) + ": ";
      if (offsets_[i] > data_bytes || view.bytes > data_bytes - offsets_[i]) {
        return bad(label + std::to_string(view.bytes) + " bytes at offset " + std::to_string(offsets_[i]) +
                   " reach past the end of the file, which holds " + std::to_string(data_bytes) +
                   " bytes of tensors (truncated?)");
      }
      if (offsets_[i] != at) {
        return bad(label + "starts at " + std::to_string(offsets_[i]) + ", " +
                   (offsets_[i] < at ? "overlapping the one before" : "leaving a hole") + " (that ends at " +
                   std::to_string(at) + ")");
      }
      view.data = bytes.data() + data_start + offsets_[i];
      at = align_up(offsets_[i] + view.bytes, alignment_);
    }
    if (data_bytes <= at) return Status();
    return bad("the file holds " + std::to_string(data_bytes - at) + " bytes after its last tensor");
  }

  Cursor cursor_;
  std::shared_ptr<GgufFile> gguf_;
  uint64_t num_tensors_ = 0, num_entries_ = 0, alignment_ = kDefaultAlignment;
  std::vector<uint64_t> offsets_;
  std::set<std::string> names_;
};

Expected<std::shared_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  Expected<std::shared_ptr<MappedFile>> file = MappedFile::open(path);
  if (!file) return fail(file.error());
  return GgufParser(std::move(*file)).parse();
}

Expected<std::shared_ptr<GgufFile>> GgufFile::open_memory(std::span<const std::byte> bytes, const std::string& name) {
  return GgufParser(MappedFile::from_memory(bytes, name)).parse();
}

}  // namespace tailrace
