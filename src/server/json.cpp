#include "server/json.h"

#include <unordered_set>
#include <vector>

namespace tailrace {
namespace {

constexpr size_t kMemoryStep = size_t{1} << 16;  // take_memory is asked once for so many bytes

// What parts of a document take of the heap, an allocation's header included. Arrays and objects double: half may be spare.
constexpr size_t kAllocation = 16;
constexpr size_t kElementBytes = 2 * sizeof(Json);
constexpr size_t kMemberBytes = 2 * sizeof(Json::object_t::value_type);
constexpr size_t kContainerBytes = kAllocation + sizeof(Json::object_t);
constexpr size_t kSeenKeyBytes = 2 * kAllocation + sizeof(std::string) + 3 * sizeof(void*);
// Text is held twice while a request is read: by the document, and by what was asked.
size_t held_bytes(const std::string& text) { return 2 * (kAllocation + sizeof(std::string) + text.size()); }

// Builds the document while it is read, and gives up at the first bound that is exceeded.
class BoundedBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit BoundedBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override {
    const size_t bytes = held_bytes(value);
    return take(bytes) && add(Json(std::move(value)));
  }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (stack_.size() == 1) error_.top_level_key = name;
    if (!count() || !take(kMemberBytes + kSeenKeyBytes + 2 * name.size())) return false;
    auto& seen = keys_.back();
    if (!seen.insert(name).second) return refuse("duplicate key '" + name.substr(0, 100) + "'");
    if (seen.size() > limits_.max_members) return refuse("an object has too many members");
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const bool number = error.id == 406;
    return refuse(number ? "a number is out of range"
                         : "not valid JSON at byte " + std::to_string(position));
  }

  Json root;
  JsonError error_;

 private:
  bool take(size_t bytes) {
    document_bytes_ += bytes;
    if (!limits_.take_memory || document_bytes_ < taken_bytes_ + kMemoryStep) return true;
    taken_bytes_ = document_bytes_;
    Status taken = limits_.take_memory(document_bytes_);
    if (taken.ok()) return true;
    error_.code = taken.code();
    return refuse(taken.message());
  }

  bool refuse(std::string message) {
    if (error_.message.empty()) error_.message = std::move(message);
    return false;
  }

  bool count() {
    if (++values_ > limits_.max_values) return refuse("too many values in one JSON document");
    return true;
  }

  Json* place(Json value) {
    if (stack_.empty()) {
      root = std::move(value);
      return &root;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // Keys are known to be new, so append without ordered_map's linear search.
    auto& members = *parent.get_ptr<Json::object_t*>();
    static_cast<Json::object_t::Container&>(members).emplace_back(key_, std::move(value));
    return &members.back().second;
  }

  bool add(Json value) {
    if (!count() || !take(kElementBytes)) return false;
    place(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (!count() || !take(kElementBytes + kContainerBytes)) return false;
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      return refuse("nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    stack_.push_back(place(std::move(value)));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    if (stack_.empty()) error_.top_level_key.clear();
    return true;
  }

  const JsonLimits& limits_;
  std::vector<Json*> stack_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;
  size_t values_ = 0;
  size_t document_bytes_ = 0, taken_bytes_ = 0;
};

}  // namespace

tl::expected<Json, JsonError> parse_json(std::string_view text, const JsonLimits& limits) {
  BoundedBuilder builder(limits);
  if (text.empty()) return tl::unexpected<JsonError>(JsonError{"the body is empty; JSON is expected"});
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    if (builder.error_.message.empty()) builder.error_.message = "not valid JSON";
    return tl::unexpected<JsonError>(std::move(builder.error_));
  }
  return std::move(builder.root);
}

size_t text_bytes(const Json& json) {
  constexpr size_t kScalarBytes = 2;  // and a comma; or a string's quotes
  if (json.is_string()) return json.get_ref<const std::string&>().size() + kScalarBytes;
  size_t bytes = kScalarBytes;
  if (!json.is_structured()) return bytes;
  for (const auto& [key, value] : json.items()) bytes += text_bytes(value) + (json.is_object() ? key.size() + 3 : 0);
  return bytes;
}

std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tailrace
