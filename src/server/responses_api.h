// ResponsesApi: /v1/responses: requests become plans, and stored answers are read, listed and deleted.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/generation_plan.h"
#include "server/http_exchange.h"
#include "server/response_store.h"
#include "server/responses_request.h"

namespace tailrace {

// Thread-safe. `owner` tells the holders of different API keys apart: nobody finds what another has stored.
class ResponsesApi {
 public:
  using Owner = StoredResponse::Owner;

  // max_stored 0: nothing is stored.
  ResponsesApi(int64_t max_stored, int64_t max_stored_bytes)
      : store_(std::make_shared<ResponseStore>(max_stored, max_stored_bytes)) {}

  // Errors: as plan_chat's, in this API's words; 404 for a previous_response_id that is not stored.
  ApiExpected<GenerationPlan> plan(const ServedModel& model, std::string_view body, const Owner& owner,
                                   const RequestBounds& bounds, const JsonLimits& limits, SeedSource& seeds);

  // The answer of POST /v1/responses/input_tokens: how many tokens the prompt has that plan() would make. Errors: as
  // plan's.
  ApiExpected<Json> count_input(const ServedModel& model, std::string_view body, const Owner& owner,
                                const JsonLimits& limits);

  // GET and DELETE of /v1/responses/ID, GET of its /input_items, POST of its /cancel (which only says why not).
  // `query`: as it stands behind the '?'.
  ApiExpected<HttpResponse> answer(std::string_view method, std::string_view path, std::string_view query,
                                   const Owner& owner);

  const ResponseStore& store() const { return *store_; }
  void keep_only(const std::vector<Owner>& owners) { store_->keep_only(owners); }

 private:
  ApiExpected<std::shared_ptr<const StoredResponse>> previous_of(const ResponsesRequest& request, const Owner& owner);

  const std::shared_ptr<ResponseStore> store_;
};

}  // namespace tailrace
