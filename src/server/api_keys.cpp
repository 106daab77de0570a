#include "server/api_keys.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>

#include "base/read_whole_file.h"

namespace tailrace {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

std::string_view bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const auto same = [](char want, char got) {
    return want == (got >= 'A' && got <= 'Z' ? got - 'A' + 'a' : got);
  };
  const bool scheme = authorization.size() >= kScheme.size() &&
                      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), same);
  return scheme ? authorization.substr(kScheme.size()) : std::string_view();
}

// As long for a match as for any other text of the same length.
bool equal(std::string_view secret, std::string_view given) {
  volatile unsigned char difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i) {
    const char other = given.empty() ? '\0' : given[i % given.size()];
    difference = difference | static_cast<unsigned char>(secret[i] ^ other);
  }
  return difference == 0;
}

Status read_word(const std::string& word, ApiKey& key) {
  constexpr std::string_view kBound = "max_running=";
  if (word.rfind(kBound, 0) != 0)
    return invalid("unknown word behind the key; max_running=N is known");
  const char* begin = word.data() + kBound.size();
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(begin, end, key.max_running);
  if (error != std::errc() || stop != end || key.max_running < 1)
    return invalid("max_running is a number from 1");
  return Status();
}

Status read_line(const std::string& line, ApiKey& key) {
  std::istringstream words(line);
  std::string first, word;
  words >> first;
  const size_t colon = first.find(':');
  key.named = colon != std::string::npos;
  if (key.named) key.name = first.substr(0, colon);
  key.secret = colon == std::string::npos ? first : first.substr(colon + 1);
  const auto printable = [](char c) { return c > ' ' && c <= '~'; };  // it stands in logs and metrics
  if (!std::all_of(key.name.begin(), key.name.end(), printable)) return invalid("a name is printable ASCII");
  if (key.name.empty() || key.secret.empty())
    return invalid("a line is KEY or NAME:KEY, neither part empty");
  while (words >> word) {
    if (Status status = read_word(word, key); !status.ok()) return status;
  }
  return Status();
}

// Adds `key`, or says which of the others it cannot stand beside.
Status add_key(std::vector<ApiKey>& keys, ApiKey key) {
  for (const ApiKey& other : keys) {
    if (other.name == key.name) return invalid("the name " + key.name + " comes twice");
    if (other.secret == key.secret) return invalid("the same key as " + other.name + "'s");
  }
  keys.push_back(std::move(key));
  return Status();
}

using Keys = std::vector<std::shared_ptr<const ApiKey>>;

// The key of `before` whose use `key` goes on with; null: a new one. `now`: all keys that are read.
const ApiKey* predecessor(const ApiKey& key, const Keys& before, const std::vector<ApiKey>& now) {
  const auto is_named = [](const std::string& name) { return [&name](const auto& other) { return other.named && other.name == name; }; };
  const ApiKey* same_secret = nullptr;
  for (const auto& old : before) {
    if (key.named && is_named(key.name)(*old)) return old.get();
    if (old->secret == key.secret) same_secret = old.get();
  }
  // A key that is still there by its name keeps what it owns, also where its old secret is another's now.
  const bool taken = same_secret != nullptr && same_secret->named && std::any_of(now.begin(), now.end(), is_named(same_secret->name));
  return taken ? nullptr : same_secret;
}

}  // namespace

Expected<std::vector<ApiKey>> parse_key_file(std::string_view text, const std::string& path) {
  std::vector<ApiKey> keys;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const size_t start = line.find_first_not_of(" \t\r");
    if (start == std::string::npos || line[start] == '#') continue;
    ApiKey key{.name = "line-" + std::to_string(number)};
    Status status = read_line(line, key);
    if (status.ok()) status = add_key(keys, std::move(key));
    if (!status.ok())
      return fail(invalid("--api-key-file " + path + ", line " + std::to_string(number) + ": " +
                          status.message()));
  }
  if (keys.empty())
    return fail(
        invalid("--api-key-file " + path + " holds no key, which would leave the server open"));
  return keys;
}

Expected<std::unique_ptr<ApiKeys>> ApiKeys::load(const HttpOptions& options) {
  std::unique_ptr<ApiKeys> keys(new ApiKeys(options));
  if (Status status = keys->reload(); !status.ok()) return fail(status);
  return keys;
}

Status ApiKeys::reload() {
  std::vector<ApiKey> read;
  for (const std::string& secret : options_.api_keys) {
    const Status status =
        add_key(read, {.name = "key-" + std::to_string(read.size() + 1), .secret = secret});
    if (!status.ok()) return invalid("--api-key: " + status.message());
  }
  if (const std::string& path = options_.api_key_file; !path.empty()) {
    std::error_code error;
    if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
      return invalid("--api-key-file " + path + " is no regular file, and what it holds could not be read again");
    }
    const auto text = read_whole_file(path, kMaxFileBytes);
    if (!text || text->empty()) return invalid("--api-key-file " + path + " cannot be read, or is empty");
    auto keys = parse_key_file(*text, path);
    if (!keys) return keys.error();
    for (ApiKey& key : *keys) {
      if (Status status = add_key(read, std::move(key)); !status.ok())
        return invalid("--api-key-file " + path + ": " + status.message());
    }
  }
  const auto before = keys();
  auto now = std::make_shared<Keys>();
  for (ApiKey& key : read) {
    if (key.max_running == 0) key.max_running = options_.max_running_per_key;
    if (const ApiKey* old = predecessor(key, *before, read)) key.use = old->use;
  }
  for (ApiKey& key : read) now->push_back(std::make_shared<const ApiKey>(std::move(key)));
  std::lock_guard lock(mutex_);
  keys_ = std::move(now);
  return Status();
}

std::shared_ptr<const ApiKeys::Keys> ApiKeys::keys() const {
  std::lock_guard lock(mutex_);
  return keys_;
}

std::vector<std::shared_ptr<const ApiKey>> ApiKeys::all() const { return *keys(); }

bool ApiKeys::required() const { return !keys()->empty(); }

std::shared_ptr<const ApiKey> ApiKeys::find(std::string_view authorization,
                                            std::string_view x_api_key) const {
  const std::string_view given = authorization.empty() ? x_api_key : bearer(authorization);
  std::shared_ptr<const ApiKey> found;
  for (const auto& key : *keys()) {
    if (equal(key->secret, given)) found = key;
  }
  return found;
}

namespace {

std::optional<ApiError> refusal(const ApiKey& key, int32_t held, int32_t sequences, const char* param) {
  const int32_t most = key.max_running;
  if (most == 0 || sequences <= most - held) return std::nullopt;
  const std::string bound = "this key may have " + std::to_string(most) + " answers generated at a time";
  if (sequences <= most) return ApiError{429, bound + "; try again when one of them has ended", "", "rate_limit_exceeded"};
  return ApiError{400, bound + ", and this request alone asks for " + std::to_string(sequences), param, "invalid_value"};
}

}  // namespace

std::optional<ApiError> share_refusal(const std::shared_ptr<const ApiKey>& key, int32_t sequences, const char* param) {
  return key ? refusal(*key, key->use->running.load(), sequences, param) : std::nullopt;
}

ApiExpected<std::shared_ptr<void>> take_share(const std::shared_ptr<const ApiKey>& key,
                                              int32_t sequences, const char* param) {
  if (!key) return std::shared_ptr<void>();
  // Nothing is added where it does not fit: others, who would fit, could meet it there.
  int32_t held = key->use->running.load();
  do {
    if (auto refused = refusal(*key, held, sequences, param)) return api_fail(std::move(*refused));
  } while (!key->use->running.compare_exchange_weak(held, held + sequences));
  return std::shared_ptr<void>(
      nullptr, [use = key->use, sequences](void*) { use->running.fetch_sub(sequences); });
}

}  // namespace tailrace
