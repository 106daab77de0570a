// TPL-1: tojson is json.dumps as Hugging Face defines it, and key order survives from the request to the prompt.
#include <gtest/gtest.h>

#include "support/text_fixture.h"

namespace tailrace {
namespace {

OrderedJson parsed(const char* text) { return OrderedJson::parse(text); }

TEST(Tpl1, rows_of_the_oracle) {
  const OrderedJson tool = parsed(
      R"j({"tool":{"name":"cmp","description":"a > 1 & b < 2 (user's é世/😀)","parameters":{"type":"object",)j"
      R"j("properties":{"zeta":{"type":"string"},"alpha":{"type":"integer"}}}}})j");
  EXPECT_EQ(render_with("{{ tool | tojson }}", tool),
            R"j({"name": "cmp", "description": "a > 1 & b < 2 (user's é世/😀)", "parameters": {"type": "object", )j"
            R"j("properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}}}})j");
  EXPECT_EQ(render_with("{{ tool | tojson(ensure_ascii=True) }}", parsed(R"({"tool":{"d":"é"}})")),
            R"({"d": "\u00e9"})");
  EXPECT_EQ(render_with("{{ tool | tojson(indent=2) }}", parsed(R"({"tool":{"b":[1,2],"a":{}}})")),
            "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\": {}\n}");
  EXPECT_EQ(render_with("{{ [true, none, 1.0, 1e20, 0.1, 'a/b'] | tojson }}"),
            R"([true, null, 1.0, 1e+20, 0.1, "a/b"])");
}

TEST(Tpl1, every_argument_passes_through) {
  const OrderedJson x = parsed(R"({"x":{"b":1,"a":"😀\u007f\u0001\n"}})");
  EXPECT_EQ(render_with("{{ x | tojson(separators=(',', ':')) }}", x), "{\"b\":1,\"a\":\"😀\x7f\\u0001\\n\"}");
  EXPECT_EQ(render_with("{{ x | tojson(sort_keys=true) }}", x), "{\"a\": \"😀\x7f\\u0001\\n\", \"b\": 1}");
  EXPECT_EQ(render_with("{{ x | tojson(ensure_ascii=true) }}", x),
            R"({"b": 1, "a": "\ud83d\ude00\u007f\u0001\n"})");
  EXPECT_EQ(render_with("{{ x.b | tojson(True, 4) }}", x), "1");
  EXPECT_EQ(render_with("{{ [1] | tojson(indent='\t') }}"), "[\n\t1\n]");
  EXPECT_EQ(render_with("{{ [] | tojson(indent=4) }}"), "[]");
  EXPECT_NE(render_with("{{ 1 | tojson(colour=1) }}").find("render:"), std::string::npos);
}

TEST(Tpl1, numbers_as_on_the_wire) {
  const OrderedJson n = parsed(R"({"n":[1, 1.0, -0.0, 1e16, 123456789012345680.0, 1e-5, 0.0001, 18446744073709551615,
                                     -9223372036854775808, 5e-324, 1.7976931348623157e308]})");
  EXPECT_EQ(render_with("{{ n | tojson }}", n),
            "[1, 1.0, -0.0, 1e+16, 1.2345678901234568e+17, 1e-05, 0.0001, 18446744073709551615, "
            "-9223372036854775808, 5e-324, 1.7976931348623157e+308]");
}

}  // namespace
}  // namespace tailrace
