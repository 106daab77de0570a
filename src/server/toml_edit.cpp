#include "server/toml_edit.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tailrace {
namespace {

using Path = std::vector<std::string>;

struct Statement {
  enum class Kind { kBlank, kTable, kArrayOfTables, kMember };
  Kind kind = Kind::kBlank;
  Path path;                  // of a header, or of a member within its table
  size_t begin = 0, end = 0;  // bytes; the line break included
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
  explicit Scanner(std::string_view text) : text_(text) {}

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
      if (Status status = skip_value(); !status.ok()) return status;
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
  size_t at_ = 0;
  int line_ = 1;
};

bool begins_with(const Path& path, const Path& start) {
  return path.size() >= start.size() && std::equal(start.begin(), start.end(), path.begin());
}

struct Edit {
  size_t begin, end;
  std::string text;
};

std::string line_of(const TomlMember& member) { return member.key + " = " + member.value + "\n"; }

// The statements of one table, [first, last): members get their values where they are, the rest
// goes to `place`.
Status set_members(const std::vector<Statement>& all, size_t first, size_t last,
                   const std::vector<TomlMember>& members, size_t place, std::vector<Edit>& edits) {
  std::string added;
  for (const TomlMember& member : members) {
    const Statement* found = nullptr;
    for (size_t i = first; i < last; ++i) {
      const Statement& statement = all[i];
      if (statement.kind != Statement::Kind::kMember || statement.path[0] != member.key) continue;
      if (found != nullptr || statement.path.size() > 1)
        return fault(statement.line,
                     member.key + " is written in a way that this does not understand")
            .value();
      found = &statement;
    }
    if (found != nullptr) {
      edits.push_back({found->begin, found->end, line_of(member)});
    } else {
      added += line_of(member);
    }
  }
  if (!added.empty()) edits.push_back({place, place, added});
  return Status();
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
  return out + "]\n";
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
  std::string whole(text);
  if (!whole.empty() && whole.back() != '\n') whole += '\n';
  const auto scanned = Scanner(whole).run();
  if (!scanned) return fail(scanned.error());
  const std::vector<Statement>& all = *scanned;
  if (const int line = other_spelling(all, table, members); line > 0) {
    return fault(line, header_of(table).substr(0, header_of(table).size() - 1) +
                           " is written in a way that this does not understand");
  }
  const auto next_header = [&](size_t from) {
    return static_cast<size_t>(
        std::find_if(all.begin() + static_cast<long>(from), all.end(), is_header) - all.begin());
  };
  std::vector<Edit> edits;
  const size_t first_header = next_header(0);
  size_t place = 0;
  for (size_t i = 0; i < first_header; ++i) {
    if (all[i].kind == Statement::Kind::kMember) place = all[i].end;
  }
  if (Status status = set_members(all, 0, first_header, top, place, edits); !status.ok())
    return fail(status);
  if (place == 0 && !whole.empty() && !edits.empty()) edits.back().text += "\n";
  const auto header = std::find_if(all.begin(), all.end(), [&](const Statement& statement) {
    return statement.kind == Statement::Kind::kTable && statement.path == table;
  });
  const auto first = static_cast<size_t>(header - all.begin()) + 1;
  const bool there = header != all.end();
  const size_t end_of_table = there ? header->end : whole.size();
  if (!there) edits.push_back({whole.size(), whole.size(), "\n" + header_of(table)});
  if (Status status = set_members(all, there ? first : 0, there ? next_header(first) : 0, members,
                                  end_of_table, edits);
      !status.ok()) {
    return fail(status);
  }
  // What is added stands before what is replaced at the same place.
  std::stable_sort(edits.begin(), edits.end(), [](const Edit& a, const Edit& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::string out;
  size_t at = 0;
  for (const Edit& edit : edits) {
    out += whole.substr(at, edit.begin - at) + edit.text;
    at = edit.end;
  }
  return out + whole.substr(at);
}

}  // namespace tailrace
