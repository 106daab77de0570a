// TPL-2: template features of the Hugging Face environment, and what happens when a template refuses.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "support/text_fixture.h"

namespace tailrace {
namespace {

OrderedJson parsed(const char* text) { return OrderedJson::parse(text); }

TEST(Tpl2, rows_of_the_oracle) {
  EXPECT_EQ(render_with("{%- for m in messages %}{%- if m.role == 'user' %}{{ m.content }}{%- break %}{%- endif %}"
                        "{%- endfor %}",
                        parsed(R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"A"},
                                   {"role":"user","content":"B"}]})")),
            "A");
  EXPECT_EQ(render_with("{% for i in range(5) %}{% if i % 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"), "024");
  EXPECT_EQ(render_with("{% set ns = namespace(found=false, n=0) %}{% for m in messages %}{% if m.role == 'tool' %}"
                        "{% set ns.found = true %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
                        "{{ ns.found }}|{{ ns.n }}",
                        parsed(R"({"messages":[{"role":"tool"},{"role":"user"},{"role":"tool"}]})")),
            "True|2");
  EXPECT_EQ(render_with("{% set x = 0 %}{% for i in range(3) %}{% set x = x + 1 %}{% endfor %}{{ x }}"), "0");
  EXPECT_EQ(render_with("{{ messages[::-1] | map(attribute='content') | join(',') }}|{{ 'hello'[:-1] }}",
                        parsed(R"({"messages":[{"content":"a"},{"content":"b"}]})")),
            "b,a|hell");
  EXPECT_EQ(render_with("{{ ('x</think>\n\nhi').split('</think>')[-1].lstrip('\n') }}|{{ '  a '.strip() }}|"
                        "{{ 'ab'.startswith('a') }}"),
            "hi|a|True");
  EXPECT_EQ(render_with("A\n  {% if true %}\nB\n  {% endif %}\nC\n{{ 'x' }}\n"), "A\nB\nC\nx");
  EXPECT_EQ(render_with("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|items %}{{ k }}"
                        "{% endfor %}",
                        parsed(R"({"d":{"z":1,"a":"q"}})")),
            "z=1;a=q;za");
  EXPECT_EQ(render_with("{{ true }} {{ none }} {{ [1,'a'] }} {{ {'k': 'v'} }} {{ 1.0 }}"),
            "True None [1, 'a'] {'k': 'v'} 1.0");
  EXPECT_EQ(render_with("A\r\n{% if true %}\r\nB\r{% endif %}C"), "A\nB\nC");
  EXPECT_EQ(render_with("{{ 1e20 }} {{ 1e-5 }} {{ 0.1 }}"), "1e+20 1e-05 0.1");
}

// Qwen3-Coder's template asks `tools is iterable and tools | length > 0` of tools that are none.
TEST(Tpl2, tests_of_kinds_as_in_python) {
  const char* kinds = "{% for v in [none, 1, 'a', [1], {'k': 1}] %}{{ v is iterable }} {{ v is sequence }},{% endfor %}"
                      "{{ missing is iterable }} {{ missing is sequence }}";
  EXPECT_EQ(render_with(kinds), "False False,False False,True True,True True,True True,True True");
}

TEST(Tpl2, strftime_now_is_local_time) {
  std::tm when{};
  when.tm_year = 125, when.tm_mon = 0, when.tm_mday = 2, when.tm_hour = 3, when.tm_min = 4, when.tm_sec = 5;
  when.tm_isdst = -1;
  ChatInput input;
  input.now_s = std::mktime(&when);
  const auto compiled = compile_or_fail("{{ strftime_now('%d %B %Y %H:%M:%S') }}{{ strftime_now('') }}");
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->render(input).value(), "02 January 2025 03:04:05");
}

TEST(Tpl2, generation_tag_is_a_scope_and_nothing_else) {
  EXPECT_EQ(render_with("a\n  {% generation %}\nb{% set x = 1 %}\n  {%- endgeneration -%}\n c{{ x is defined }}"),
            "a\nbcFalse");
  EXPECT_EQ(render_with("{{ '{% generation %}' }}{# {% generation %} #}{% raw %}{% generation %}{% endraw %}"),
            "{% generation %}{% generation %}");
}

TEST(Tpl2, refusal_has_the_templates_words) {
  const auto compiled = compile_or_fail("{{ raise_exception('roles must alternate') }}");
  ASSERT_NE(compiled, nullptr);
  const auto text = compiled->render({});
  ASSERT_FALSE(text.has_value());
  EXPECT_EQ(text.error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(text.error().message(), "roles must alternate");
  const auto in_macro = compile_or_fail("{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}");
  EXPECT_EQ(in_macro->render({}).error().message(), "no");
}

TEST(Tpl2, unusable_templates_fail_at_load_naming_line_and_construct) {
  const auto error_of = [](const char* source) {
    const auto compiled = ChatTemplate::compile(source, {});
    return compiled ? std::string("compiled") : compiled.error().message();
  };
  EXPECT_NE(error_of("a\n\n{% trans %}x{% endtrans %}").find("line 3"), std::string::npos);
  EXPECT_NE(error_of("a\n\n{% trans %}x{% endtrans %}").find("trans"), std::string::npos);
  EXPECT_NE(error_of("a\n{{ x | sparkle }}").find("line 2: unknown filter 'sparkle'"), std::string::npos);
  EXPECT_NE(error_of("{{ x is shiny }}").find("unknown test 'shiny'"), std::string::npos);
  EXPECT_NE(error_of("{% include 'other' %}").find("include"), std::string::npos);
  EXPECT_NE(error_of("{% for x in y %}").find("line 1"), std::string::npos);
}

TEST(Tpl2, rendering_is_bounded) {
  const auto code_of = [](const char* source, ChatTemplateOptions options = {}) {
    const auto text = compile_or_fail(source, options)->render({});
    return text ? StatusCode::kOk : text.error().code();
  };
  EXPECT_NE(code_of("{% for i in range(999999999) %}x{% endfor %}"), StatusCode::kOk);
  EXPECT_EQ(code_of("{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}"),
            StatusCode::kTooLarge);
  EXPECT_EQ(code_of("{{ 'x' * 99999999999 }}"), StatusCode::kTooLarge);
  EXPECT_EQ(code_of("{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
                    "{% endfor %}{{ ns.x }}"),
            StatusCode::kTooLarge);
  ChatTemplateOptions small;
  small.max_output_bytes = 10;
  EXPECT_EQ(code_of("{{ 'x' * 11 }}", small), StatusCode::kTooLarge);
  EXPECT_EQ(code_of("{{ 'x' * 10 }}", small), StatusCode::kOk);
  EXPECT_NE(code_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), StatusCode::kOk);
}

TEST(Tpl2, names_that_every_template_sees) {
  ChatTemplateOptions options;
  options.bos_token = "<s>";
  ChatInput input;
  input.kwargs = {{"enable_thinking", false}, {"messages", "no"}};
  const auto compiled = compile_or_fail(
      "{{ bos_token }}{{ eos_token is defined }}{{ tools is none }}{{ documents is none }}{{ enable_thinking }}"
      "{{ messages | length }}{{ add_generation_prompt }}",
      options);
  ASSERT_NE(compiled, nullptr);
  EXPECT_EQ(compiled->render(input).value(), "<s>FalseTrueTrueFalse0True");
}

}  // namespace
}  // namespace tailrace
