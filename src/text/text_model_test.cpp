#include "text/text_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/gguf_writer.h"
#include "support/text_fixture.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class TextModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = fs::temp_directory_path() / ("tailrace_" + name + "_" + std::to_string(::getpid()));
    fs::create_directories(dir_);
    write("tokenizer.json", read_fixture("bytelevel.json"));
  }
  void TearDown() override { fs::remove_all(dir_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(dir_ / name, std::ios::binary) << text; }

  std::shared_ptr<const TextModel> load() {
    const auto model = TextModel::load(dir_.string());
    if (!model) {
      ADD_FAILURE() << model.error().message();
      return nullptr;
    }
    return *model;
  }
  std::string rendered() {
    const auto model = load();
    if (!model || !model->chat_template) return model ? model->no_template_reason : "";
    return model->chat_template->render({}).value();
  }
  std::string load_error(const std::string& path) {
    const auto model = TextModel::load(path);
    return model ? "loaded" : model.error().message();
  }

  fs::path dir_;
};

TEST_F(TextModelTest, chat_template_in_its_three_places) {
  EXPECT_EQ(rendered(), "the model has no chat template");
  write("tokenizer_config.json", R"({"chat_template": "in config {{ bos_token }}", "bos_token": {"content": "<s>"}})");
  EXPECT_EQ(rendered(), "in config <s>");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "named"}]})");
  EXPECT_EQ(rendered(), "named");
  write("chat_template.json", R"({"chat_template": "in json"})");
  EXPECT_EQ(rendered(), "in json");
  write("chat_template.jinja", "in jinja");
  EXPECT_EQ(rendered(), "in jinja");
  write("chat_template.jinja", "a\n{{ x | sparkle }}");
  const std::string error = load_error(dir_.string());
  EXPECT_EQ(error.rfind(dir_.string() + ": the chat template cannot be used: line 2: unknown filter 'sparkle'", 0), 0u) << error;
}

TEST(ChatTemplate, reads_what_it_does_not_set_itself) {
  const auto compiled = ChatTemplate::compile(
      "{# comment #}{%- set own = 1 %}{%- if thinks is not defined %}{%- set thinks = true %}{%- endif %}"
      "{%- macro line(m) %}{{ m.content if inside else own }}{%- endmacro %}"
      "{%- for m in messages %}{{ line(m) ~ thinks ~ nested.member ~ 'quoted' }}{%- endfor %}", {}).value();
  for (const char* name : {"thinks", "inside", "nested", "messages"}) EXPECT_TRUE(compiled->reads(name)) << name;
  for (const char* name : {"comment", "own", "m", "line", "member", "quoted", ""}) {
    EXPECT_FALSE(compiled->reads(name)) << name;
  }
}

TEST_F(TextModelTest, what_a_template_cannot_write_is_found_out) {
  const auto habits = [&](const std::string& body) {
    write("chat_template.jinja", "{% for m in messages %}" + body + "{% endfor %}");
    const TemplateHabits found = load()->chat_template->habits();
    return std::string(found.later_system ? "system " : "") + (found.user_runs ? "runs" : "");
  };
  const auto raises = [](const std::string& when) {
    return "{% if " + when + " %}{{ raise_exception('x') }}{% endif %}";
  };
  const char* later = "m.role == 'system' and not loop.first";
  const std::string plain = "{{ m.role }}: {{ m.content | trim }}\n";
  EXPECT_EQ(habits(plain), "system runs");
  EXPECT_EQ(habits(raises(later) + plain), "runs");
  EXPECT_EQ(habits(std::string("{% if not (") + later + ") %}" + plain + "{% endif %}"), "runs") << "left out";
  EXPECT_EQ(habits(raises("not loop.first and m.role == loop.previtem.role") + plain), "system ");
  EXPECT_EQ(habits(raises("(m.role == 'user') != (loop.index0 % 2 == 0)") + plain), "");
  EXPECT_EQ(habits("{% if loop.last %}" + plain + "{% endif %}"), "system runs") << "not a conversation: nothing is known";
}

TEST_F(TextModelTest, texts_that_a_template_leaves_out_are_found) {
  const auto load_template = [&](const std::string& source) {
    write("chat_template.jinja", source);
    return load()->chat_template;
  };
  const OrderedJson call = OrderedJson::parse(
      R"([{"id":"abcDEF123","type":"function","function":{"name":"f","arguments":{}}}])");
  const OrderedJson messages = {{{"role", "system"}, {"content", "s"}},
                                {{"role", "user"}, {"content", "u"}},
                                {{"role", "assistant"}, {"content", ""}, {"tool_calls", call}},
                                {{"role", "tool"}, {"content", "t"}, {"tool_call_id", "abcDEF123"}}};
  const ChatInput input{.messages = messages};
  const auto whole = load_template("{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}");
  EXPECT_TRUE(whole->habits().system_always && whole->habits().late_results);
  EXPECT_FALSE(whole->left_out(input).message);
  // As Mistral's does.
  const auto last = load_template(
      "{% for m in messages if m.role != 'system' %}"
      "{% if loop.last and m.role == 'user' and messages[0].role == 'system' %}{{ messages[0].content }} {% endif %}"
      "{{ m.content }} {% endfor %}");
  EXPECT_FALSE(last->habits().system_always);
  EXPECT_TRUE(last->habits().late_results);
  EXPECT_EQ(last->left_out(input).message, 0u);
  EXPECT_FALSE(last->left_out({.messages = {messages[0], messages[1]}}).message);
  // As Gemma 4's does.
  const auto adjacent = load_template(
      "{% for m in messages %}{% if m.role != 'tool' or loop.previtem.role != 'user' and "
      "(loop.previtem.tool_calls is defined or loop.previtem.role == 'tool') %}{{ m.content }} {% endif %}"
      "{% endfor %}");
  EXPECT_TRUE(adjacent->habits().system_always);
  EXPECT_FALSE(adjacent->habits().late_results);
  EXPECT_FALSE(adjacent->left_out(input).message);
  EXPECT_EQ(adjacent->left_out({.messages = {messages[1], messages[2], messages[1], messages[3]}}).message, 3u);
}

TEST_F(TextModelTest, tools_that_a_template_leaves_out_are_found) {
  const auto load_template = [&](const std::string& source) {
    write("chat_template.jinja", source);
    return load()->chat_template;
  };
  const OrderedJson tools = OrderedJson::parse(
      R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}])");
  const OrderedJson system = {{"role", "system"}, {"content", "s"}}, user = {{"role", "user"}, {"content", "f g"}};
  const std::string texts = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}";
  const auto without = load_template(texts);
  EXPECT_FALSE(without->habits().tools);
  EXPECT_TRUE(without->left_out({.messages = {user}, .tools = tools}).tool);
  EXPECT_FALSE(without->left_out({.messages = {user}}).tool) << "none are offered";
  const OrderedJson call = {{"id", "abcDEF123"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  const OrderedJson calls = {{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call, call})}};
  EXPECT_EQ(without->left_out({.messages = {user, calls, user}}).call, 1u);
  EXPECT_FALSE(without->left_out({.messages = {user}}).call);
  const std::string names = "{% for t in tools %}{{ t.function.name }} {% endfor %}";
  EXPECT_TRUE(load_template(names + texts)->habits().tools);
  EXPECT_TRUE(load_template(names + "{{ messages[-1].content }}")->habits().tools) << "not a conversation";
  EXPECT_FALSE(load_template("{{ messages[-1].content }}")->habits().tools);
  const auto first = load_template("{% if tools %}{{ tools[0].function.name }}{% endif %}" + texts);
  EXPECT_TRUE(first->habits().tools);
  EXPECT_TRUE(first->left_out({.messages = {user}, .tools = tools}).tool);
  const auto either = load_template("{% if messages[0].role != 'system' %}" + names + "{% endif %}" + texts);
  EXPECT_TRUE(either->habits().tools);
  EXPECT_FALSE(either->left_out({.messages = {user}, .tools = tools}).tool);
  EXPECT_TRUE(either->left_out({.messages = {system, user}, .tools = tools}).tool);
}

TEST_F(TextModelTest, a_template_that_refuses_a_short_chat_is_found_out_without_a_client) {
  EXPECT_TRUE(load()->try_chat().ok()) << "no template: nothing to try";
  write("chat_template.jinja", "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}");
  EXPECT_TRUE(load()->try_chat().ok());
  write("chat_template.jinja", "{{ raise_exception('say ' ~ messages[0].content ~ ' to a system') }}");
  EXPECT_NE(load()->try_chat().message().find("say Hello to a system"), std::string::npos) << load()->try_chat().message();
  write("chat_template.jinja", "{# nothing #}");
  EXPECT_FALSE(load()->try_chat().ok());
}

TEST_F(TextModelTest, ids_are_the_union_and_defaults_come_from_generation_config) {
  write("config.json", R"({"eos_token_id": 5, "bos_token_id": 7, "text_config": {"eos_token_id": [6]}})");
  write("generation_config.json", R"({"eos_token_id": [5, 9], "temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.1,
         "repetition_penalty": 1.1, "max_new_tokens": 99, "suppress_tokens": [3, 1]})");
  write("tokenizer_config.json", R"({"eos_token": "<|im_end|>", "bos_token": null})");
  const auto model = load();
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->eos_ids, (std::vector<TokenId>{5, 6, 9, 263}));
  EXPECT_EQ(model->bos_id, 7);
  EXPECT_FALSE(model->add_bos);
  EXPECT_EQ(model->sampling.temperature, 0.5f);
  EXPECT_EQ(model->sampling.top_k, 20);
  EXPECT_EQ(model->sampling.top_p, 0.9f);
  EXPECT_EQ(model->sampling.min_p, 0.1f);
  EXPECT_EQ(model->sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(model->sampling.max_new_tokens, 99);
  EXPECT_FALSE(model->sampling.presence_penalty.has_value());
  EXPECT_EQ(model->sampling.suppress_tokens, (std::vector<TokenId>{1, 3}));
}

TEST_F(TextModelTest, a_wrong_type_is_an_error_that_names_the_field) {
  const std::pair<const char*, const char*> fields[] = {
      {"temperature", "\"hot\""}, {"top_k", "[1]"}, {"top_p", "true"}, {"max_new_tokens", "{}"}, {"min_p", "2"},
      {"eos_token_id", "\"2\""}, {"eos_token_id", "[1, null]"}, {"eos_token_id", "1.5"}, {"suppress_tokens", "[-2]"}};
  for (const auto& [key, value] : fields) {
    write("generation_config.json", "{\"" + std::string(key) + "\": " + value + "}");
    EXPECT_NE(load_error(dir_.string()).find("generation_config.json: " + std::string(key) + " is "), std::string::npos) << key << value;
  }
  write("generation_config.json", R"({"temperature": null, "top_k": null, "eos_token_id": null, "suppress_tokens": -1})");
  EXPECT_NE(load(), nullptr);
  write("config.json", R"({"text_config": {"eos_token_id": "x"}})");
  EXPECT_NE(load_error(dir_.string()).find("config.json: text_config: eos_token_id is \"x\""), std::string::npos);
  write("config.json", "{}");
  for (const char* value : {"7", "{}", "[7]", R"([{"name": "default"}])", R"([{"name": "a", "template": 1}])"}) {
    for (const char* file : {"tokenizer_config.json", "chat_template.json"}) {
      write(file, R"({"chat_template": )" + std::string(value) + "}");
      EXPECT_NE(load_error(dir_.string()).find(std::string(file) + ": chat_template is "), std::string::npos) << value;
      fs::remove(dir_ / file);
    }
  }
}

TEST_F(TextModelTest, broken_files_name_themselves) {
  write("config.json", "{");
  EXPECT_NE(load_error(dir_.string()).find("config.json"), std::string::npos);
  fs::remove(dir_ / "config.json");
  write("tokenizer.json", R"({"model": {"type": "Oracle"}})");
  EXPECT_NE(load_error(dir_.string()).find("tokenizer.json: model: component 'Oracle'"), std::string::npos);
  fs::remove(dir_ / "tokenizer.json");
  EXPECT_NE(load_error(dir_.string()).find("neither tokenizer.json nor a .gguf file"), std::string::npos);
  EXPECT_NE(load_error((dir_ / "gone").string()).find("no such file"), std::string::npos);
}

GgufWriter small_gguf() {
  GgufWriter file;
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types = {3, 3, 3};
  for (char c = '!'; c < 0x7F; ++c) tokens.emplace_back(1, c), types.push_back(1);
  file.string("tokenizer.ggml.model", "gpt2");
  file.string("tokenizer.ggml.pre", "smollm");
  file.strings("tokenizer.ggml.tokens", tokens);
  file.i32s("tokenizer.ggml.token_type", types);
  file.strings("tokenizer.ggml.merges", {});
  file.u32("tokenizer.ggml.bos_token_id", 1);
  file.u32("tokenizer.ggml.eos_token_id", 2);
  return file;
}

TEST_F(TextModelTest, gguf_metadata) {
  fs::remove(dir_ / "tokenizer.json");
  GgufWriter file = small_gguf();
  file.boolean("tokenizer.ggml.add_bos_token", true);
  file.string("tokenizer.chat_template", "{{ bos_token }}x{{ eos_token }}");
  file.write((dir_ / "m.gguf").string());
  const auto model = load();  // the directory holds one .gguf
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->eos_ids, (std::vector<TokenId>{0, 2}));
  EXPECT_EQ(model->bos_id, 1);
  EXPECT_TRUE(model->add_bos);
  EXPECT_EQ(model->chat_template->render({}).value(), "<|im_start|>x<|im_end|>");
  const TokenId x = 3 + 'x' - '!';
  EXPECT_EQ(model->chat_template->render_ids({}, *model->tokenizer, model->eos_ids).value().ids,
            (std::vector<TokenId>{1, x, 2}));
  EXPECT_EQ(model->tokenizer->encode("x", true, true).value(), (std::vector<TokenId>{1, x}));
}

TEST_F(TextModelTest, gguf_errors_name_the_key) {
  const std::string path = (dir_ / "bad.gguf").string();
  GgufWriter file = small_gguf();
  file.u32("tokenizer.ggml.eot_token_id", 4000);
  file.write(path);
  EXPECT_NE(load_error(path).find("eot_token_id"), std::string::npos);
  GgufWriter empty;
  empty.string("general.architecture", "llama");
  empty.write(path);
  EXPECT_NE(load_error(path).find("tokenizer.ggml.model"), std::string::npos);
  GgufWriter wrong;
  wrong.string("tokenizer.ggml.model", "gpt2");
  wrong.string("tokenizer.ggml.tokens", "not an array");
  wrong.write(path);
  EXPECT_NE(load_error(path).find("tokenizer.ggml.tokens"), std::string::npos);
}

TEST_F(TextModelTest, threads_share_one_model) {
  write("tokenizer_config.json",
        R"({"chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"})");
  const auto model = load();
  ASSERT_NE(model, nullptr);
  const auto work = [&](int seed) {
    std::vector<TokenId> all;
    for (int i = 0; i < 50; ++i) {
      const std::string content = "thread " + std::to_string(seed) + " <|im_end|> hello world " + std::to_string(i);
      const auto prompt =
          model->chat_template->render_ids(chat_of({{{"role", "user"}, {"content", content}}}), *model->tokenizer, {});
      all.insert(all.end(), prompt->ids.begin(), prompt->ids.end());
    }
    return all;
  };
  std::vector<std::vector<TokenId>> results(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { results[static_cast<size_t>(i)] = work(i); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(results[static_cast<size_t>(i)], work(i));
}

}  // namespace
}  // namespace tailrace
