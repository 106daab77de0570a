#include "server/model_list.h"

#include <utility>

#include "server/json.h"

namespace tailrace {
namespace {

std::string words_of_error(const Json& json) {
  const Json error = json.is_object() ? json.value("error", Json()) : Json();
  return error.is_object() && error.contains("message") && error["message"].is_string()
             ? error["message"].get<std::string>()
             : "";
}

}  // namespace

Expected<std::vector<ListedModel>> list_models(const ServerAddress& address,
                                               std::function<bool()> stop) {
  ChatConnection connection(address, std::move(stop));
  auto reply = connection.get("/v1/models");
  if (!reply) return fail(reply.error());
  const Json json = parse_json(reply->body).value_or(Json());
  if (reply->status != 200) {
    const std::string words = words_of_error(json);
    return fail(StatusCode::kUnavailable,
                words.empty() ? "/v1/models answered " + std::to_string(reply->status) : words);
  }
  std::vector<ListedModel> out;
  const Json data = json.is_object() ? json.value("data", Json()) : Json();
  for (const Json& entry : data.is_array() ? data : Json::array()) {
    if (!entry.is_object() || !entry.contains("id") || !entry["id"].is_string()) continue;
    const Json length = entry.value("max_model_len", Json());
    const bool known = length.is_number_unsigned() && length <= INT32_MAX;
    out.push_back({entry["id"].get<std::string>(), known ? length.get<int32_t>() : 0});
  }
  if (out.empty()) return fail(StatusCode::kUnavailable, "this is not an OpenAI-compatible server");
  return out;
}

}  // namespace tailrace
