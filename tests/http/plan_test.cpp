// From checked requests to engine requests: defaults, seeds, stop tokens, choices.
#include <gtest/gtest.h>

#include "http/scripted_text.h"
#include "server/generation_plan.h"

namespace tailrace::test {
namespace {

struct Plan : testing::Test {
  Plan() {
    model.name = "m";
    model.text = scripted.text;
    model.context_length = 100;
    model.vocab_size = scripted.vocab_size;
    model.max_running_requests = 4;
  }
  GenerationPlan chat(const std::string& more) {
    auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"abc"}])" + more + "}", bounds_of(model, 64));
    EXPECT_TRUE(request.has_value()) << more;
    auto plan = plan_chat(model, *request, seeds);
    EXPECT_TRUE(plan.has_value()) << more;
    return std::move(*plan);
  }
  ScriptedText scripted = make_scripted_text();
  ServedModel model;
  SeedSource seeds{5};
};

TEST_F(Plan, generation_config_gives_the_defaults_and_the_request_wins) {
  scripted.text->sampling.temperature = 0.6f;
  scripted.text->sampling.top_k = 20;
  scripted.text->sampling.top_p = 0.95f;
  scripted.text->sampling.max_new_tokens = 50;
  scripted.text->sampling.suppress_tokens = {7};
  const auto by_model = chat("").requests[0];
  EXPECT_EQ(by_model->sampling.temperature, 0.6f);
  EXPECT_EQ(by_model->sampling.top_k, 20);
  EXPECT_EQ(by_model->sampling.top_p, 0.95f);
  EXPECT_EQ(by_model->max_tokens, 50);
  EXPECT_EQ(by_model->sampling.logit_bias, (std::vector<std::pair<TokenId, float>>{{7, -100.0f}}));
  const auto by_request = chat(R"(,"temperature":0,"top_k":0,"max_tokens":60)").requests[0];
  EXPECT_EQ(by_request->sampling.temperature, 0.0f);
  EXPECT_EQ(by_request->sampling.top_k, 0);
  EXPECT_EQ(by_request->max_tokens, 60);
}

TEST_F(Plan, without_max_tokens_the_rest_of_the_context) { EXPECT_EQ(chat("").requests[0]->max_tokens, 99); }

TEST_F(Plan, stop_tokens) {
  EXPECT_EQ(chat("").requests[0]->stop_token_ids, (std::vector<TokenId>{scripted.eos}));
  EXPECT_EQ(chat(R"(,"stop_token_ids":[9,3])").requests[0]->stop_token_ids, (std::vector<TokenId>{3, 9, scripted.eos}));
  EXPECT_EQ(chat(R"(,"ignore_eos":true,"stop_token_ids":[9])").requests[0]->stop_token_ids, (std::vector<TokenId>{9}));
}

// SMP-2: seeds belong to their request.
TEST_F(Plan, seeds) {
  EXPECT_EQ(chat(R"(,"seed":42)").requests[0]->sampling.seed, 42u);
  EXPECT_NE(chat("").requests[0]->sampling.seed, chat("").requests[0]->sampling.seed);
  const auto choices = chat(R"(,"seed":42,"n":3)").requests;
  ASSERT_EQ(choices.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(choices[i]->sampling.seed, 42u);
    EXPECT_EQ(choices[i]->sampling.choice_index, i);
  }
  SeedSource one(9), same(9);
  EXPECT_EQ(one.next(), same.next());
}

TEST_F(Plan, ids_are_nobodys_before_whatever_the_seed_is) {
  const auto id_of = [this] {
    SeedSource same(5);  // as after a start with the same --random-seed
    const auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"abc"}]})", bounds_of(model, 64));
    return plan_chat(model, *request, same)->id;
  };
  const std::string first = id_of(), again = id_of();
  EXPECT_EQ(first.rfind("chatcmpl-", 0), 0u) << first;
  EXPECT_EQ(first.size(), 9u + 22u);
  EXPECT_NE(first, again);
}

TEST_F(Plan, a_seed_draws_alike_at_any_place_in_a_list_of_prompts) {
  const auto completion = [this](const std::string& body) {
    auto request = parse_completion_request(body, bounds_of(model, 64));
    EXPECT_TRUE(request.has_value()) << body;
    return plan_completion(model, *request, seeds)->requests;
  };
  const auto alone = completion(R"({"prompt":"b","n":2,"seed":7})");
  const auto listed = completion(R"({"prompt":["a","b"],"n":2,"seed":7})");
  ASSERT_EQ(listed.size(), 4u);
  for (size_t j = 0; j < 2; ++j) {
    EXPECT_EQ(listed[2 + j]->prompt_ids, alone[j]->prompt_ids);
    EXPECT_EQ(listed[2 + j]->sampling.seed, alone[j]->sampling.seed);
    EXPECT_EQ(listed[2 + j]->sampling.choice_index, alone[j]->sampling.choice_index);
  }
  EXPECT_NE(alone[0]->sampling.choice_index, alone[1]->sampling.choice_index);
  const auto unseeded = completion(R"({"prompt":["a","a"],"n":2})");
  EXPECT_NE(unseeded[0]->sampling.seed, unseeded[2]->sampling.seed);
  EXPECT_EQ(unseeded[0]->sampling.seed, unseeded[1]->sampling.seed);
}

TEST_F(Plan, template_variables_that_the_template_does_not_read_are_refused_by_name) {
  const auto fault = [this](const std::string& kwargs) {
    const std::string body = R"({"messages":[{"role":"user","content":"abc"}],"chat_template_kwargs":)" + kwargs + "}";
    const auto request = parse_chat_request(body, bounds_of(model, 64));
    const auto plan = plan_chat(model, *request, seeds);
    return plan ? "" : plan.error().param;
  };
  EXPECT_EQ(fault(R"({"note":1})"), "");
  EXPECT_EQ(fault(R"({"note":1,"enable_thinking":false})"), "chat_template_kwargs.enable_thinking");
}

TEST_F(Plan, a_model_without_a_template_refuses_chat_with_the_reason) {
  scripted.text->chat_template = nullptr;
  scripted.text->no_template_reason = "it has no chat template";
  auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"abc"}]})", bounds_of(model, 64));
  auto plan = plan_chat(model, *request, seeds);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().http_status, 400);
  EXPECT_NE(plan.error().message.find("it has no chat template"), std::string::npos);
}

}  // namespace
}  // namespace tailrace::test
