#include "server/toml_edit.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

std::string edited(const std::string& text) {
  const auto out = set_in_toml(text, {{"model", "\"m\""}}, {"providers", "here"},
                               {{"url", "\"u\""}, {"port", "7"}});
  return out ? *out : "fault: " + out.error().message();
}

TEST(TomlEdit, an_empty_file_gets_all) {
  EXPECT_EQ(edited(""), "model = \"m\"\n\n[providers.here]\nurl = \"u\"\nport = 7\n");
}

TEST(TomlEdit, everything_else_stays_byte_by_byte) {
  EXPECT_EQ(edited("# mine\nother = [\n  1, # one ]\n  2\n]\nmodel = 'old' # why\ntext = "
                   "\"\"\"\n[providers.here]\nmodel = 1\n\"\"\"\"\n"
                   "\n[a]\nmodel = 5\n\n[providers.here] # kept\nport = 1\nmine = { x = \"]\" "
                   "}\n\n[[b]]\nurl = 2"),
            "# mine\nother = [\n  1, # one ]\n  2\n]\nmodel = \"m\" # why\ntext = "
            "\"\"\"\n[providers.here]\nmodel = 1\n\"\"\"\"\n"
            "\n[a]\nmodel = 5\n\n[providers.here] # kept\nurl = \"u\"\nport = 7\nmine = { x = "
            "\"]\" }\n\n[[b]]\nurl = 2");
}

TEST(TomlEdit, a_changed_line_keeps_all_but_its_value) {
  EXPECT_EQ(edited("  \"model\"\t= 'old'\t# why\r\n\r\n[providers . 'here']\r\nport= [ # one\r\n"
                   " 1 ]\t\r\nurl = 'u' # q"),
            "  \"model\"\t= \"m\"\t# why\r\n\r\n[providers . 'here']\r\nport= 7\t\r\nurl = \"u\" # q");
}

TEST(TomlEdit, added_lines_break_as_the_others) {
  EXPECT_EQ(edited("\xEF\xBB\xBF[a]\r\nx = 1"),
            "\xEF\xBB\xBFmodel = \"m\"\r\n\r\n[a]\r\nx = 1\r\n\r\n[providers.here]\r\n"
            "url = \"u\"\r\nport = 7\r\n");
  EXPECT_EQ(edited("x = 1"), "x = 1\nmodel = \"m\"\n\n[providers.here]\nurl = \"u\"\nport = 7\n");
  EXPECT_EQ(edited("model = 2\n[providers.here]"), "model = \"m\"\n[providers.here]\nurl = \"u\"\nport = 7\n");
}

TEST(TomlEdit, top_level_members_come_before_the_first_table) {
  EXPECT_EQ(edited("# first\n[a]\nx = 1\n"),
            "model = \"m\"\n\n# first\n[a]\nx = 1\n\n[providers.here]\nurl = \"u\"\nport = 7\n");
}

TEST(TomlEdit, twice_is_the_same_as_once) {
  const std::string once = edited("x = 1\r\n[ \"providers\" . other ]\r\nurl = 3\r\n");
  EXPECT_EQ(edited(once), once);
  EXPECT_NE(once.find("x = 1\r\n"), std::string::npos);
}

TEST(TomlEdit, other_spellings_of_the_table_are_refused_by_line) {
  for (const char* text : {"x = 1\nproviders = { here = {} }\n", "x = 1\nproviders.here.url = 1\n",
                           "[providers]\nhere = {}\n", "[providers]\nhere.url = 1\n",
                           "\n[[providers]]\n", "[providers.here]\n[providers.here]\n",
                           "\n[providers.here.url]\n", "\n[[providers.here]]\n"}) {
    EXPECT_EQ(edited(text).rfind("fault: line ", 0), 0u) << text << edited(text);
  }
  EXPECT_EQ(edited("[providers.here]\nurl = 1\nurl = 2\n").rfind("fault: line 3", 0), 0u);
  EXPECT_EQ(edited("model.x = 1\n").rfind("fault: line 1", 0), 0u);
  EXPECT_NE(edited("[providers.hereafter]\nurl = 1\n").rfind("fault", 0), 0u);
}

TEST(TomlEdit, what_is_no_toml_is_refused_by_line) {
  for (const char* text :
       {"a = 1\nb\n", "a = 1\nb =\n", "a = 1\n[b\n", "a = 1\n[b] c\n", "a = 1\nb = \"c\n",
        "a = 1\nb = [1,\n", "a = 1\nb = }\n", "a = 1\n= 2\n", "a = 1\n\"b = 2\n"}) {
    EXPECT_EQ(edited(text).rfind("fault: line ", 0), 0u) << text << edited(text);
  }
}

TEST(TomlEdit, strings_are_escaped) {
  EXPECT_EQ(toml_string("a\"b\\c\n\x7f"), "\"a\\\"b\\\\c\\u000A\\u007F\"");
}

}  // namespace
}  // namespace tailrace
