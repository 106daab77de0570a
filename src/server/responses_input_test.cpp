#include "server/responses_input.h"

#include <gtest/gtest.h>

#include "server/reasoning_seal.h"

namespace tailrace {
namespace {

Json messages_of(const char* items, const std::string& instructions = "") {
  ResponsesConversation conversation;
  conversation.add_instructions(instructions);
  const auto error = conversation.add_items(Json::parse(items), "input");
  EXPECT_FALSE(error) << error->message;
  return conversation.take_messages();
}

// The path of the fault in the item behind a call named f.
std::string fault_of(const std::string& item) {
  ResponsesConversation conversation;
  const auto error = conversation.add_items(
      Json::parse(R"([{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},)" + item + "]"), "input");
  return error ? error->param : "";
}

TEST(ResponsesInput, messages_with_parts) {
  EXPECT_EQ(
      messages_of(R"([{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
                            {"type":"message","id":"msg_1","role":"assistant","status":"completed","phase":"final_answer",
                             "content":[{"type":"output_text","text":"c","annotations":[],"logprobs":[]}]},
                            {"type":"message","role":"user","content":"d"}])"),
      Json::parse(
          R"([{"role":"user","content":"ab"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}])"));
}

TEST(ResponsesInput, system_messages_at_the_beginning_become_one) {
  EXPECT_EQ(
      messages_of(R"([{"role":"developer","content":"b"},{"role":"system","content":"c"},{"role":"user","content":"d"},
                            {"role":"developer","content":"e"}])",
                  "a"),
      Json::parse(
          R"([{"role":"system","content":"a\n\nb\n\nc"},{"role":"user","content":"d"},{"role":"system","content":"e"}])"));
}

TEST(ResponsesInput, reasoning_text_and_calls_are_one_message_and_outputs_follow) {
  EXPECT_EQ(
      messages_of(R"([{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},
                      {"role":"assistant","content":"t"},
                      {"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"a\":1}","status":"completed",
                       "parsed_arguments":null},
                      {"type":"function_call","call_id":"c2","name":"g","arguments":""},
                      {"type":"function_call_output","call_id":"c2","output":"2"},
                      {"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"1"}]},
                      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"s"}]},
                      {"role":"assistant","content":"u"}])"),
      Json::parse(R"([{"role":"assistant","content":"t","reasoning_content":"r","tool_calls":[
                        {"id":"c1","type":"function","function":{"name":"f","arguments":{"a":1}}},
                        {"id":"c2","type":"function","function":{"name":"g","arguments":{}}}]},
                      {"role":"tool","content":"2","tool_call_id":"c2"},{"role":"tool","content":"1","tool_call_id":"c1"},
                      {"role":"assistant","content":"u","reasoning_content":"s"}])"));
}

TEST(ResponsesInput, what_follows_a_call_or_a_text_begins_a_new_message) {
  EXPECT_EQ(messages_of(R"([{"role":"assistant","content":"a"},{"role":"assistant","content":"b"},
                            {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
                            {"type":"reasoning","summary":[{"type":"summary_text","text":"r"}]},
                            {"type":"reasoning","content":[{"type":"reasoning_text","text":"s"}]}])"),
            Json::parse(R"([{"role":"assistant","content":"a"},
                            {"role":"assistant","content":"b","tool_calls":[
                               {"id":"c","type":"function","function":{"name":"f","arguments":{}}}]},
                            {"role":"assistant","content":"","reasoning_content":"r\n\ns"}])"));
}

TEST(ResponsesInput, sealed_reasoning_comes_back) {
  for (const std::string text : {"", "a", "ab", "abc", "\xc3\xa9\n{}"})
    EXPECT_EQ(open_reasoning(seal_reasoning(text)), text);
  const std::string sealed = seal_reasoning("why");
  EXPECT_EQ(sealed.find("why"), std::string::npos);
  const Json item = {
      {"type", "reasoning"}, {"summary", Json::array()}, {"content", nullptr}, {"encrypted_content", sealed}};
  EXPECT_EQ(messages_of(Json::array({item}).dump().c_str())[0]["reasoning_content"], "why");
  for (const char* other : {"", "gAAAAB", "tailrace1.a", "tailrace1.ab*=", "tailrace1./w==", "tailrace2.YQ=="}) {
    EXPECT_FALSE(open_reasoning(other)) << other;
  }
}

TEST(ResponsesInput, a_call_of_a_namespace_has_its_joined_name) {
  ResponsesConversation conversation;
  const Json items = Json::parse(
      R"([{"type":"function_call","call_id":"a","name":"close","namespace":"agents","arguments":"{}"}])");
  EXPECT_FALSE(conversation.add_items(items, "input").has_value());
  EXPECT_EQ(conversation.take_messages()[0]["tool_calls"][0]["function"]["name"], "agents__close");
}

TEST(ResponsesInput, faults_name_their_path) {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {R"("text")", "input[1]"},
      {R"({"type":"item_reference","id":"x"})", "input[1].type"},
      {R"({"type":"custom_tool_call","call_id":"x"})", "input[1].type"},
      {R"({"type":7})", "input[1].type"},
      {R"({"role":"tool","content":"x"})", "input[1].role"},
      {R"({"content":"x"})", "input[1].role"},
      {R"({"role":"user"})", "input[1].content"},
      {R"({"role":"user","content":"x","weight":1})", "input[1].weight"},
      {R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})", "input[1].content[0].type"},
      {R"({"role":"assistant","content":[{"type":"refusal","refusal":"x"}]})", "input[1].content[0].type"},
      {R"({"role":"user","content":[{"type":"input_text"}]})", "input[1].content[0].text"},
      {R"({"role":"user","content":["x"]})", "input[1].content[0]"},
      {R"({"type":"function_call","call_id":"a","name":"f","arguments":"no"})", "input[1].arguments"},
      {R"({"type":"function_call","call_id":"a","name":"f","arguments":"[]"})", "input[1].arguments"},
      {R"({"type":"function_call","call_id":"a","name":"","arguments":"{}"})", "input[1].name"},
      {R"({"type":"function_call","name":"f","arguments":"{}"})", "input[1].call_id"},
      {R"({"type":"function_call","call_id":"a","name":"f","arguments":"{}","namespace":7})", "input[1].namespace"},
      {R"({"type":"function_call_output","call_id":"a","output":"x"})", "input[1].call_id"},
      {R"({"type":"function_call_output","call_id":"c1"})", "input[1].output"},
      {R"({"type":"reasoning","summary":[],"encrypted_content":"gAAAA"})", "input[1].encrypted_content"},
      {R"({"type":"reasoning","content":"x","weight":1})", "input[1].weight"},
      {R"({"role":"user","content":"x","id":5})", "input[1].id"},
      {R"({"role":"user","content":"x","status":"done"})", "input[1].status"},
      {R"({"role":"assistant","content":"x","phase":1})", "input[1].phase"},
      {R"({"role":"assistant","content":[{"type":"output_text","text":"x","annotations":{}}]})",
       "input[1].content[0].annotations"},
      {R"({"type":"function_call_output","call_id":"c1","output":"x","name":1})", "input[1].name"},
  };
  for (const auto& [item, path] : faults) EXPECT_EQ(fault_of(item), path) << item;
  EXPECT_EQ(fault_of(R"({"type":"function_call_output","call_id":"c1","output":"x"})"), "");
}

TEST(ResponsesInput, stored_items_have_ids_and_parts) {
  const Json text = input_items("hello", "T");
  EXPECT_EQ(
      text,
      Json::parse(
          R"([{"type":"message","id":"msg_in_T0","role":"user","content":[{"type":"input_text","text":"hello"}]}])"));
  const Json items = input_items(Json::parse(R"([{"role":"assistant","content":"a","id":"mine"},
                                                 {"type":"function_call_output","call_id":"c","output":"x"}])"),
                                 "T");
  EXPECT_EQ(
      items,
      Json::parse(R"([{"type":"message","id":"mine","role":"assistant","content":[{"type":"output_text","text":"a"}]},
                                   {"type":"function_call_output","id":"item_in_T1","call_id":"c","output":"x"}])"));
}

}  // namespace
}  // namespace tailrace
