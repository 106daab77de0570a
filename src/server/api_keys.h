// ApiKeys: who may ask: the keys of --api-key and --api-key-file, and how many sequences each of them runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/config.h"

namespace tailrace {

// One client's key. What it owns (running requests, stored answers) is told apart by `use`. When the file is read again a key
// that has a name there keeps its use with the name, whatever its secret, and any other with the secret.
struct ApiKey {
  struct Use {
    std::atomic<int32_t> running{0};  // sequences: choices of requests that are not answered yet
  };
  std::string name;                   // in logs, metrics and /v1/requests; never the secret
  bool named = false;                 // by the file; else the name says where the key stands
  std::string secret;
  int32_t max_running = 0;            // sequences at a time; 0: no bound
  std::shared_ptr<Use> use = std::make_shared<Use>();
};

// Lines `KEY` or `NAME:KEY`, each with `max_running=N` behind it or not; blank lines and those that begin with # are left
// out. Keys without a name are called after their line ("line-3"). Errors name the line, never the key: an empty key or
// name, a name twice, a key twice, an unknown word, no key at all.
Expected<std::vector<ApiKey>> parse_key_file(std::string_view text, const std::string& path);

// Thread-safe.
class ApiKeys {
 public:
  // Reads the file, if one is configured. kInvalidArgument: it cannot be read, or as parse_key_file's.
  static Expected<std::unique_ptr<ApiKeys>> load(const HttpOptions& options);

  // Reads the file again; on an error the keys stay as they are. Requests of keys that are gone run to their end.
  Status reload();

  bool required() const;  // false: no key is configured, everybody may ask

  // The key that `authorization` ("Bearer KEY", the scheme in any case: RFC 9110, 11.1) or, where that is empty, the header
  // x-api-key holds; null for none. All keys are compared in full: the time taken depends on lengths and their number only.
  std::shared_ptr<const ApiKey> find(std::string_view authorization, std::string_view x_api_key) const;

  // Keys as they are now, for metrics.
  std::vector<std::shared_ptr<const ApiKey>> all() const;

 private:
  using Keys = std::vector<std::shared_ptr<const ApiKey>>;
  explicit ApiKeys(const HttpOptions& options) : options_(options) {}
  std::shared_ptr<const Keys> keys() const;

  const HttpOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Keys> keys_ = std::make_shared<Keys>();  // guarded by mutex_; the vector itself never changes
};

// Why take_share would refuse now, if it would; nothing is taken.
std::optional<ApiError> share_refusal(const std::shared_ptr<const ApiKey>& key, int32_t sequences, const char* param);

// Counts `sequences` against the key's bound until the last holder lets go. A null key has no bound, and gets null. 429
// when others leave no room, 400 when they would not fit alone (`param` is the field to lower).
ApiExpected<std::shared_ptr<void>> take_share(const std::shared_ptr<const ApiKey>& key, int32_t sequences,
                                              const char* param);

}  // namespace tailrace
