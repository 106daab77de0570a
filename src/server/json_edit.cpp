#include "server/json_edit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/text_edits.h"

namespace tailrace {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr auto kNowhere = std::string_view::npos;

bool is_blank(char c) { return kBlanks.find(c) != kNowhere; }

// Behind the string that begins at `at`, or the text's end.
size_t string_end(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
  return std::min(at + 1, text.size());
}

// The same text with spaces for comments and for commas before a closing bracket, and where such
// commas are: what is left is JSON, every value at its place. A comment of several lines leaves one.
struct PlainJson {
  std::string text;
  std::vector<size_t> spare_commas;
};

PlainJson without_comments(std::string_view commented) {
  PlainJson out{std::string(commented), {}};
  std::string& text = out.text;
  const auto blank = [&](size_t begin, size_t end) { text.replace(begin, end - begin, end - begin, ' '); };
  char before = 0;          // the last that is neither blank nor comment
  size_t comma = kNowhere;  // it was a comma, behind a value
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (text.compare(at, 2, "//") == 0) {
      at = std::min(text.find_first_of("\r\n", at), text.size());
      blank(begin, at);
      continue;
    }
    if (const size_t end = text.find("*/", at + 2); text.compare(at, 2, "/*") == 0 && end != kNowhere) {
      blank(begin, at = end + 2);
      continue;
    }
    const char c = text[at];
    at = c == '"' ? string_end(text, at) : at + 1;
    if (is_blank(c)) continue;
    if ((c == ']' || c == '}') && comma != kNowhere) {
      text[comma] = ' ';
      out.spare_commas.push_back(comma);
    }
    comma = c == ',' && before != ',' && before != '[' && before != '{' ? begin : kNowhere;
    before = c;
  }
  std::sort(out.spare_commas.begin(), out.spare_commas.end());
  return out;
}

struct Member {
  std::string name;
  size_t begin = 0, value = 0, end = 0;  // bytes: the key begins, the value begins and ends
};

struct Object {
  size_t open = 0, close = 0;  // its braces
  std::vector<Member> members;
};

// Edits a text that is known to be JSON but for comments.
class Editor {
 public:
  Editor(std::string_view text, PlainJson plain)
      : text_(text), plain_(std::move(plain)), edits_(text), line_break_(line_break_of(text)) {}

  Expected<std::string> run(const Json& wanted) {
    const size_t root = plain_.text.find('{');
    if (const Object object = scan(root); !object.members.empty() && begins_line(object.members[0].begin)) {
      if (std::string blanks = indent_at(object.members[0].begin); !blanks.empty()) unit_ = std::move(blanks);
    }
    if (Status status = merge(wanted, "", root); !status.ok()) return fail(status);
    return edits_.apply();
  }

 private:
  size_t skip_blanks(size_t at) const { return plain_.text.find_first_not_of(kBlanks, at); }

  size_t value_end(size_t at) const {
    const std::string& text = plain_.text;
    if (text[at] == '"') return string_end(text, at);
    if (text[at] != '{' && text[at] != '[') return std::min(text.find_first_of(",]} \t\r\n", at), text.size());
    for (int depth = 0; at < text.size();) {
      const char c = text[at];
      at = c == '"' ? string_end(text, at) : at + 1;
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) break;
    }
    return at;
  }

  Json value_of(size_t begin, size_t end) const {
    return parse_json(std::string_view(plain_.text).substr(begin, end - begin)).value_or(Json());
  }

  Object scan(size_t open) const {
    Object out{open, 0, {}};
    size_t at = skip_blanks(open + 1);
    while (plain_.text[at] != '}') {
      Member member;
      member.begin = at;
      at = string_end(plain_.text, at);
      member.name = value_of(member.begin, at);
      member.value = skip_blanks(skip_blanks(at) + 1);  // behind the colon
      member.end = value_end(member.value);
      at = skip_blanks(member.end);
      if (plain_.text[at] == ',') at = skip_blanks(at + 1);
      out.members.push_back(std::move(member));
    }
    out.close = at;
    return out;
  }

  size_t line_begin(size_t at) const {
    const size_t before = at == 0 ? kNowhere : text_.rfind('\n', at - 1);
    return before == kNowhere ? byte_order_mark(text_) : before + 1;
  }
  std::string indent_at(size_t at) const {
    const size_t begin = line_begin(at);
    return std::string(text_.substr(begin, std::min(text_.find_first_not_of(" \t", begin), at) - begin));
  }
  bool begins_line(size_t at) const { return line_begin(at) + indent_at(at).size() == at; }
  // The end of the line at `at`, when nothing but blanks and comments come before it.
  size_t end_if_rest_is_blank(size_t at) const {
    const size_t end = plain_.text.find_first_not_of(" \t", at);
    return end != kNowhere && (plain_.text[end] == '\n' || plain_.text[end] == '\r') ? end : kNowhere;
  }

  // `name: value`, over several lines when `indent` is given.
  std::string spell(const std::string& name, const Json& value, const std::string* indent) const {
    const std::string key = Json(name).dump();
    if (indent == nullptr) return key + ": " + value.dump();
    std::string out = *indent + key + ": ";
    for (const char c : value.dump(static_cast<int>(unit_.size()), unit_[0])) {
      if (c == '\n') {
        out += line_break_ + *indent;
      } else {
        out += c;
      }
    }
    return out;
  }

  Status merge(const Json& wanted, const std::string& path, size_t open) {
    const Object object = scan(open);
    Json added = Json::object();
    for (const auto& [name, value] : wanted.items()) {
      const auto there = std::find_if(object.members.begin(), object.members.end(),
                                      [&name = name](const Member& member) { return member.name == name; });
      if (there == object.members.end()) {
        added[name] = value;
      } else if (!value.is_object()) {
        if (value_of(there->value, there->end) != value) edits_.replace(there->value, there->end, value.dump());
      } else if (const std::string inner = path.empty() ? name : path + "." + name; plain_.text[there->value] != '{') {
        return invalid(inner + " is no object there");
      } else if (Status status = merge(value, inner, there->value); !status.ok()) {
        return status;
      }
    }
    if (!added.empty()) object.members.empty() ? fill(object, added) : append(object, added);
    return Status();
  }

  // Members of an object that has none.
  void fill(const Object& object, const Json& added) {
    const std::string outer = indent_at(object.open), inner = outer + unit_;
    const bool own_line = begins_line(object.close);
    std::string lines;
    for (const auto& [name, value] : added.items())
      lines += (lines.empty() ? "" : "," + line_break_) + spell(name, value, &inner);
    if (own_line) return edits_.insert(line_begin(object.close), lines + line_break_);
    edits_.insert(object.close, line_break_ + lines + line_break_ + outer);
  }

  // Members behind others, as these are written: on lines of their own, or not.
  void append(const Object& object, const Json& added) {
    const Member& last = object.members.back();
    const auto spare = std::lower_bound(plain_.spare_commas.begin(), plain_.spare_commas.end(), last.end);
    const bool ends_with_comma = spare != plain_.spare_commas.end() && *spare < object.close;
    const bool lines = begins_line(object.members[0].begin);
    const std::string indent = indent_at(object.members[0].begin);
    const size_t line_end = end_if_rest_is_blank(ends_with_comma ? *spare + 1 : last.end);
    // A comment behind the last member stays on its line.
    const bool behind_line = lines && line_end < object.close;
    if (behind_line && !ends_with_comma) edits_.insert(last.end, ",");
    std::string text;
    for (const auto& [name, value] : added.items()) {
      if (!behind_line || !text.empty()) text += ",";
      text += lines ? line_break_ + spell(name, value, &indent) : " " + spell(name, value, nullptr);
    }
    if (behind_line && ends_with_comma) text += ",";
    edits_.insert(behind_line ? line_end : last.end, text);
  }

  const std::string_view text_;
  const PlainJson plain_;
  TextEdits edits_;
  const std::string line_break_;
  std::string unit_ = "  ";  // by which members are indented
};

}  // namespace

Expected<std::string> set_in_json(std::string_view text, const Json& wanted, JsonDialect dialect) {
  if (text.find_first_not_of(kBlanks, byte_order_mark(text)) == kNowhere) return wanted.dump(2) + "\n";
  PlainJson plain{std::string(text), {}};
  if (dialect == JsonDialect::kCommented) plain = without_comments(text);
  const auto parsed = parse_json(plain.text);
  if (!parsed) return fail(invalid("not JSON: " + parsed.error().message));
  if (!parsed->is_object()) return fail(invalid("not a JSON object"));
  return Editor(text, std::move(plain)).run(wanted);
}

}  // namespace tailrace
