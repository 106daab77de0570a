#include "text/text_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "base/read_whole_file.h"
#include "text/text_model_gguf.h"

namespace tailrace {

namespace {

namespace fs = std::filesystem;

constexpr const char* kGenerationFile = "generation_config.json";

// The largest tokenizer.json in use is about 40 MB.
constexpr size_t kMaxFileBytes = size_t{512} << 20;

// An absent file is an empty object; a file that is no JSON object is an error.
Expected<OrderedJson> read_json(const fs::path& path) {
  if (!fs::exists(path)) return OrderedJson::object();
  Expected<std::string> text = read_whole_file(path, kMaxFileBytes);
  if (!text) return fail(text.error());
  OrderedJson json = OrderedJson::parse(*text, nullptr, false);
  if (!json.is_object()) return fail(StatusCode::kDataLoss, path.string() + ": not a JSON object");
  return json;
}

Status prefixed(const fs::path& path, const Status& status) {
  return Status(status.code(), path.string() + ": " + status.message());
}

// "<s>" or {"content": "<s>", ...}; empty when absent or null.
std::string token_text(const OrderedJson& json, const char* key) {
  const auto it = json.find(key);
  if (it == json.end()) return {};
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) return (*it)["content"];
  return {};
}

// "FILE: KEY is VALUE, WHY", with no more of the value than a line holds.
Status bad_value(const char* file, const char* key, const OrderedJson& value, const char* why) {
  constexpr size_t kShown = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, OrderedJson::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return Status(StatusCode::kDataLoss, std::string(file) + ": " + key + " is " + text + ", " + why);
}

// A single id or a list of them; null and absent are none. -1 is how some say "none" where one must stand.
Status collect_ids(const OrderedJson& json, const char* file, const char* key, std::set<TokenId>* ids) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return Status();
  const OrderedJson list = it->is_array() ? *it : OrderedJson::array({*it});
  for (const OrderedJson& value : list) {
    if (!value.is_number_integer() || value.get<int64_t>() < -1 || value.get<int64_t>() > INT32_MAX) {
      return bad_value(file, key, *it, "not a token's id or a list of them");
    }
    if (value.get<int64_t>() >= 0) ids->insert(value.get<TokenId>());
  }
  return Status();
}

// Reads a number within [low, high]; a value outside is the file's fault, not something to sample with.
template <typename T>
Status read_number(const OrderedJson& json, const char* key, double low, double high, std::optional<T>* out) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null()) return Status();
  if (!it->is_number()) return bad_value(kGenerationFile, key, *it, "not a number");
  const double value = it->get<double>();
  if (!(value >= low && value <= high) || (std::is_integral_v<T> && value != std::floor(value))) {
    return bad_value(kGenerationFile, key, *it, "which is out of range");
  }
  *out = static_cast<T>(value);
  return Status();
}

Expected<SamplingDefaults> sampling_defaults(const OrderedJson& generation) {
  constexpr double kMaxInt = std::numeric_limits<int32_t>::max();
  SamplingDefaults defaults;
  for (const Status& status :
       {read_number(generation, "temperature", 0, 100, &defaults.temperature),
        read_number(generation, "top_p", 1e-9, 1, &defaults.top_p), read_number(generation, "min_p", 0, 1, &defaults.min_p),
        read_number(generation, "repetition_penalty", 1e-3, 100, &defaults.repetition_penalty),
        read_number(generation, "presence_penalty", -2, 2, &defaults.presence_penalty),
        read_number(generation, "frequency_penalty", -2, 2, &defaults.frequency_penalty),
        read_number(generation, "top_k", 0, kMaxInt, &defaults.top_k),
        read_number(generation, "max_new_tokens", 1, kMaxInt, &defaults.max_new_tokens)}) {
    if (!status.ok()) return fail(status);
  }
  std::set<TokenId> suppressed;
  if (Status status = collect_ids(generation, kGenerationFile, "suppress_tokens", &suppressed); !status.ok()) return fail(status);
  if (suppressed.size() > static_cast<size_t>(kMaxLogitBias) / 2) {
    return fail(StatusCode::kUnsupported, "generation_config.json: suppress_tokens names " +
                                              std::to_string(suppressed.size()) + " tokens, more than " +
                                              std::to_string(kMaxLogitBias / 2));
  }
  defaults.suppress_tokens.assign(suppressed.begin(), suppressed.end());
  return defaults;
}

// A template, or that of the name "default" in a list of named ones.
Expected<std::optional<std::string>> template_of(const OrderedJson& value, const char* file) {
  if (value.is_string()) return std::optional<std::string>(value.get<std::string>());
  const auto is_named = [](const OrderedJson& entry) {
    return entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") &&
           entry["template"].is_string();
  };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_named)) {
    return fail(bad_value(file, "chat_template", value, "not a text or a list of {\"name\", \"template\"}"));
  }
  for (const OrderedJson& entry : value) {
    if (entry["name"] == "default") return std::optional<std::string>(entry["template"].get<std::string>());
  }
  return std::optional<std::string>();
}

// The three places of a template, the file of its own first, as Hugging Face looks them up.
Expected<std::optional<std::string>> find_template(const fs::path& dir, const OrderedJson& tokenizer_config) {
  if (fs::exists(dir / "chat_template.jinja")) {
    Expected<std::string> text = read_whole_file(dir / "chat_template.jinja", kMaxFileBytes);
    if (!text) return fail(text.error());
    return std::optional<std::string>(std::move(*text));
  }
  const Expected<OrderedJson> own = read_json(dir / "chat_template.json");
  if (!own) return fail(own.error());
  const std::pair<const char*, const OrderedJson*> files[] = {{"chat_template.json", &*own},
                                                              {"tokenizer_config.json", &tokenizer_config}};
  for (const auto& [file, json] : files) {
    const auto it = json->find("chat_template");
    if (it != json->end() && !it->is_null()) return template_of(*it, file);
  }
  return std::optional<std::string>();
}

// The special tokens that a template may name, by their name in tokenizer_config.json.
OrderedJson special_names(const OrderedJson& tokenizer_config) {
  OrderedJson names = OrderedJson::object();
  for (const auto& [key, value] : tokenizer_config.items()) {
    if (!key.ends_with("_token")) continue;
    std::string text = token_text(tokenizer_config, key.c_str());
    if (!text.empty()) names[key] = std::move(text);
  }
  return names;
}

// Whether a plain encode starts with the BOS token is what the tokenizer does, not what some flag says.
bool adds_bos(const Tokenizer& tokenizer, std::optional<TokenId> bos) {
  if (!bos) return false;
  const Expected<std::vector<TokenId>> ids = tokenizer.encode("a", true, true);
  return ids && !ids->empty() && ids->front() == *bos;
}

Expected<std::shared_ptr<const TextModel>> load_directory(const fs::path& dir) {
  if (!fs::exists(dir / "tokenizer.json")) {
    return fail(StatusCode::kNotFound, (dir / "tokenizer.json").string() + ": no such file");
  }
  Expected<std::string> text = read_whole_file(dir / "tokenizer.json", kMaxFileBytes);
  if (!text) return fail(text.error());
  Expected<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::from_json(*text);
  if (!tokenizer) return fail(prefixed(dir / "tokenizer.json", tokenizer.error()));
  Expected<OrderedJson> config = read_json(dir / "config.json");
  if (!config) return fail(config.error());
  Expected<OrderedJson> generation = read_json(dir / "generation_config.json");
  if (!generation) return fail(generation.error());
  Expected<OrderedJson> tokenizer_config = read_json(dir / "tokenizer_config.json");
  if (!tokenizer_config) return fail(tokenizer_config.error());

  TextModel model;
  model.tokenizer = *tokenizer;
  auto defaults = sampling_defaults(*generation);
  if (!defaults) return fail(defaults.error());
  model.sampling = std::move(*defaults);
  std::set<TokenId> eos, bos;
  const OrderedJson inner = config->value("text_config", OrderedJson::object());
  for (const Status& status : {collect_ids(*config, "config.json", "eos_token_id", &eos),
                               collect_ids(inner, "config.json: text_config", "eos_token_id", &eos),
                               collect_ids(*generation, kGenerationFile, "eos_token_id", &eos),
                               collect_ids(*config, "config.json", "bos_token_id", &bos)}) {
    if (!status.ok()) return fail(status);
  }
  const std::string eos_token = token_text(*tokenizer_config, "eos_token");
  if (const auto id = model.tokenizer->token_to_id(eos_token)) eos.insert(*id);
  if (eos.size() > static_cast<size_t>(kMaxStopTokenIds) / 2) {
    return fail(StatusCode::kUnsupported, dir.string() + ": names " + std::to_string(eos.size()) + " end-of-sequence tokens, more than " +
                                              std::to_string(kMaxStopTokenIds / 2));
  }
  model.eos_ids.assign(eos.begin(), eos.end());
  model.bos_id = model.tokenizer->token_to_id(token_text(*tokenizer_config, "bos_token"));
  if (!model.bos_id && !bos.empty()) model.bos_id = *bos.begin();
  model.add_bos = adds_bos(*model.tokenizer, model.bos_id);

  Expected<std::optional<std::string>> source = find_template(dir, *tokenizer_config);
  if (!source) return fail(source.error());
  ChatTemplateOptions options;
  options.extra = special_names(*tokenizer_config);
  if (Status status = set_chat_template(*source, options, dir.string(), &model); !status.ok()) return fail(status);
  return std::make_shared<const TextModel>(std::move(model));
}

}  // namespace

Status set_chat_template(const std::optional<std::string>& source, const ChatTemplateOptions& options,
                         const std::string& path, TextModel* model) {
  if (!source) {
    model->no_template_reason = "the model has no chat template";
    return Status();
  }
  Expected<std::shared_ptr<const ChatTemplate>> compiled = ChatTemplate::compile(*source, options);
  if (!compiled) {
    return Status(compiled.error().code(), path + ": the chat template cannot be used: " + compiled.error().message() +
                                               "; mend it, or take it out to serve /v1/completions alone");
  }
  model->chat_template = *compiled;
  return Status();
}

Status TextModel::try_chat() const {
  if (!chat_template) return Status();
  ChatInput input;
  input.messages.push_back({{"role", "user"}, {"content", "Hello"}});
  auto prompt = chat_template->render_ids(input, *tokenizer, eos_ids);
  if (!prompt) return prompt.error();
  return prompt->ids.empty() ? invalid("the prompt has no tokens") : Status();
}

Expected<std::shared_ptr<const TextModel>> TextModel::load(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return load_text_model_gguf(path);
  if (!fs::is_directory(path, error)) return fail(StatusCode::kNotFound, path + ": no such file or directory");
  if (fs::exists(fs::path(path) / "tokenizer.json")) return load_directory(path);
  std::vector<std::string> ggufs;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".gguf") ggufs.push_back(entry.path().string());
  }
  if (ggufs.size() == 1) return load_text_model_gguf(ggufs[0]);
  return fail(StatusCode::kNotFound, path + (ggufs.empty() ? ": holds neither tokenizer.json nor a .gguf file"
                                                           : ": holds several .gguf files; name one of them"));
}

}  // namespace tailrace
