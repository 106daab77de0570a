// Requests for hand-written scenarios, whose answers on the FakeDevice are known beforehand.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/request.h"
#include "scheduler/scheduler.h"

namespace tailrace {

// `count` prompt tokens that differ between families: prompts of one family share all of their
// shorter one's tokens.
std::vector<TokenId> family_tokens(int32_t family, int32_t count);
std::shared_ptr<Request> make_request(std::vector<TokenId> prompt, int32_t max_tokens);
// The same question once more, with a stream of its own.
std::shared_ptr<Request> copy_of(const Request& request);
// The first `count` tokens of the answer, as if nothing ever stopped it.
std::vector<TokenId> predict_answer(const Request& request, int32_t count);
// Makes the answer's token number `index` (from 0) its stop token; needs that it does not occur
// before.
void stop_at(Request& request, int32_t index);
// prompt, answer, then `tail`: the next turn of a conversation.
std::vector<TokenId> next_turn(const Request& request, const std::vector<TokenId>& answer,
                               const std::vector<TokenId>& tail);

// One full group, no room for surprises: block 8, 4 rows, context 256, chunk 16.
SchedulerConfig scenario_config(int32_t num_blocks);

}  // namespace tailrace
