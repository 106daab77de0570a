#include "server/toml_edit.h"

#include <algorithm>
#include <cstdio>

#include "server/text_edits.h"

namespace tailrace {
namespace {

using Path = std::vector<std::string>;

struct Statement {
  enum class Kind { kBlank, kTable, kArrayOfTables, kMember };
  Kind kind = Kind::kBlank;
  Path path;                  // of a header, or of a member within its table
  size_t begin = 0, end = 0;  // bytes; the line break included
  size_t value_begin = 0, value_end = 0;
  int line = 1;
};

tl::unexpected<Status> fault(int line, const std::string& message) {
  return fail(StatusCode::kInvalidArgument, "line " + std::to_string(line) + ": " + message);
}

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// Cuts a text into statements; values are skipped over, not read.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), at_(byte_order_mark(text)) {}

  Expected<std::vector<Statement>> run() {
    std::vector<Statement> out;
    while (at_ < text_.size()) {
      Statement statement;
      statement.begin = at_;
      statement.line = line_;
      skip_blanks();
      if (Status status = take(statement); !status.ok()) return fail(status);
      statement.end = at_;
      out.push_back(std::move(statement));
    }
    return out;
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\n';
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  Status wrong(const std::string& message) const { return fault(line_, message).value(); }

  Status take(Statement& statement) {
    using Kind = Statement::Kind;
    if (peek() == '[') {
      statement.kind = peek(1) == '[' ? Kind::kArrayOfTables : Kind::kTable;
      const size_t brackets = statement.kind == Kind::kTable ? 1 : 2;
      at_ += brackets;
      if (Status status = take_path(statement.path); !status.ok()) return status;
      for (size_t i = 0; i < brackets; ++i, ++at_) {
        if (peek() != ']') return wrong("a table's header without its end");
      }
    } else if (peek() != '#' && peek() != '\n') {
      statement.kind = Kind::kMember;
      if (Status status = take_path(statement.path); !status.ok()) return status;
      if (peek() != '=') return wrong("neither a table nor a key with its value");
      ++at_;
      skip_blanks();
      if (peek() == '\n' || peek() == '#') return wrong("a key without a value");
      statement.value_begin = at_;
      if (Status status = skip_value(); !status.ok()) return status;
      statement.value_end = text_.find_last_not_of(" \t\r", at_ - 1) + 1;
    }
    return end_of_line();
  }

  Status take_path(Path& path) {
    for (;; ++at_) {
      skip_blanks();
      const char quote = peek();
      const size_t begin = quote == '"' || quote == '\'' ? ++at_ : at_;
      if (begin == at_ && (quote == '"' || quote == '\'')) {
        while (peek() != quote && peek() != '\n' && peek() != '\\') ++at_;
        if (peek() != quote) return wrong("a quoted key that this does not understand");
        path.emplace_back(text_.substr(begin, at_++ - begin));
      } else {
        while (is_bare(peek())) ++at_;
        if (at_ == begin) return wrong("a key is missing");
        path.emplace_back(text_.substr(begin, at_ - begin));
      }
      skip_blanks();
      if (peek() != '.') return Status();
    }
  }

  // To the end of the line on which all brackets and strings are closed, or to a comment there.
  Status skip_value() {
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"' || c == '\'') {
        if (Status status = skip_string(c); !status.ok()) return status;
        continue;
      }
      if (c == '[' || c == '{') ++depth;
      if ((c == ']' || c == '}') && --depth < 0) return wrong("a bracket too many");
      if ((c == '\n' || c == '#') && depth == 0) return Status();
      if (c == '#') {
        while (peek() != '\n') ++at_;
        continue;
      }
      line_ += c == '\n' ? 1 : 0;
      ++at_;
    }
    return depth == 0 ? Status() : wrong("a bracket is not closed");
  }

  Status skip_string(char quote) {
    const bool lines = peek(1) == quote && peek(2) == quote;
    at_ += lines ? 3 : 1;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\\' && quote == '"') {
        line_ += peek(1) == '\n' ? 1 : 0;
        at_ += 2;
      } else if (c == quote && (!lines || (peek(1) == quote && peek(2) == quote))) {
        at_ += lines ? 3 : 1;
        while (lines && peek() == quote)
          ++at_;  // up to two quotes may stand before the closing ones
        return Status();
      } else {
        if (c == '\n' && !lines) break;
        line_ += c == '\n' ? 1 : 0;
        ++at_;
      }
    }
    return wrong("a string is not closed");
  }

  Status end_of_line() {
    skip_blanks();
    if (peek() == '#') {
      while (peek() != '\n') ++at_;
    }
    if (peek() != '\n') return wrong("something follows that this does not understand");
    at_ = std::min(at_ + 1, text_.size());
    ++line_;
    return Status();
  }

  const std::string_view text_;
  size_t at_;
  int line_ = 1;
};

bool begins_with(const Path& path, const Path& start) {
  return path.size() >= start.size() && std::equal(start.begin(), start.end(), path.begin());
}

std::string lines_of(const std::vector<TomlMember>& members, const std::string& line_break) {
  std::string out;
  for (const TomlMember& member : members) out += member.key + " = " + member.value + line_break;
  return out;
}

// The statements of one table, [first, last): members get their values where they are. Returns those
// that are not there.
Expected<std::vector<TomlMember>> set_members(const std::vector<Statement>& all, size_t first, size_t last,
                                              const std::vector<TomlMember>& members, TextEdits& edits) {
  std::vector<TomlMember> absent;
  for (const TomlMember& member : members) {
    const Statement* found = nullptr;
    for (size_t i = first; i < last; ++i) {
      const Statement& statement = all[i];
      if (statement.kind != Statement::Kind::kMember || statement.path[0] != member.key) continue;
      if (found != nullptr || statement.path.size() > 1)
        return fault(statement.line, member.key + " is written in a way that this does not understand");
      found = &statement;
    }
    if (found == nullptr) {
      absent.push_back(member);
    } else {
      edits.replace(found->value_begin, found->value_end, member.value);
    }
  }
  return absent;
}

bool is_header(const Statement& statement) {
  return statement.kind == Statement::Kind::kTable ||
         statement.kind == Statement::Kind::kArrayOfTables;
}

// Every way to write (a part of) `table` but under [its.name]; 0 for none, else the line.
int other_spelling(const std::vector<Statement>& all, const Path& table,
                   const std::vector<TomlMember>& members) {
  Path open;
  int headers = 0;
  for (const Statement& statement : all) {
    if (is_header(statement)) open = statement.path;
    if (statement.kind == Statement::Kind::kTable && statement.path == table && ++headers > 1)
      return statement.line;
    if (statement.kind == Statement::Kind::kArrayOfTables && begins_with(table, statement.path))
      return statement.line;
    if (is_header(statement) && begins_with(statement.path, table) &&
        statement.path.size() > table.size()) {
      const auto same = [&](const TomlMember& member) {
        return member.key == statement.path[table.size()];
      };
      if (std::any_of(members.begin(), members.end(), same)) return statement.line;
    }
    if (statement.kind != Statement::Kind::kMember || open == table) continue;
    Path whole = open;
    whole.insert(whole.end(), statement.path.begin(), statement.path.end());
    if (begins_with(whole, table) || begins_with(table, whole)) return statement.line;
  }
  return 0;
}

std::string header_of(const Path& table) {
  std::string out = "[";
  for (const auto& part : table) out += (out.size() > 1 ? "." : "") + part;
  return out + "]";
}

}  // namespace

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04X", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Expected<std::string> set_in_toml(std::string_view text, const std::vector<TomlMember>& top,
                                  const std::vector<std::string>& table,
                                  const std::vector<TomlMember>& members) {
  const size_t beginning = byte_order_mark(text);
  const std::string line_break = line_break_of(text);
  const bool open_end = text.size() > beginning && text.back() != '\n';
  const std::string whole = std::string(text) + (open_end ? line_break : "");
  const auto scanned = Scanner(whole).run();
  if (!scanned) return fail(scanned.error());
  const std::vector<Statement>& all = *scanned;
  if (const int line = other_spelling(all, table, members); line > 0)
    return fault(line, header_of(table) + " is written in a way that this does not understand");
  const auto next_header = [&](size_t from) {
    return static_cast<size_t>(
        std::find_if(all.begin() + static_cast<long>(from), all.end(), is_header) - all.begin());
  };
  TextEdits edits(whole);
  bool appended = false;
  const auto insert = [&](size_t place, const std::string& lines) {
    appended |= place == whole.size();
    edits.insert(place, lines);
  };
  const size_t first_header = next_header(0);
  size_t place = beginning;
  for (size_t i = 0; i < first_header; ++i) {
    if (all[i].kind == Statement::Kind::kMember) place = all[i].end;
  }
  auto absent = set_members(all, 0, first_header, top, edits);
  if (!absent) return fail(absent.error());
  const bool ahead_of_all = place == beginning && whole.size() > beginning;
  if (!absent->empty()) insert(place, lines_of(*absent, line_break) + (ahead_of_all ? line_break : ""));
  const auto header = std::find_if(all.begin(), all.end(), [&](const Statement& statement) {
    return statement.kind == Statement::Kind::kTable && statement.path == table;
  });
  if (header == all.end()) {
    insert(whole.size(), line_break + header_of(table) + line_break + lines_of(members, line_break));
    return edits.apply();
  }
  const auto first = static_cast<size_t>(header - all.begin()) + 1;
  absent = set_members(all, first, next_header(first), members, edits);
  if (!absent) return fail(absent.error());
  if (!absent->empty()) insert(header->end, lines_of(*absent, line_break));
  std::string out = edits.apply();
  if (open_end && !appended) out.resize(out.size() - line_break.size());
  return out;
}

}  // namespace tailrace
