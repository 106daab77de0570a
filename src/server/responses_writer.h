// The answers of /v1/responses: one JSON document, or the events by which it grows.
#pragma once

#include <memory>
#include <vector>

#include "server/answer_writer.h"
#include "server/response_items.h"
#include "server/response_store.h"

namespace tailrace {

struct ResponsesAnswer {
  Json head;  // the response before its first item: status in_progress
  ResponseItems::Rules rules;
  std::shared_ptr<ResponseStore> store;
  std::shared_ptr<PendingResponse> pending;  // what it answers; null: it is not to be stored
};

std::unique_ptr<AnswerWriter> make_responses_writer(ResponsesAnswer answer);

}  // namespace tailrace
