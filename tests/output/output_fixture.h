// Runs output parsers over sequences of tokens and compares what they find.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "output/output_format.h"

namespace tailrace::test {

struct FoundCall {
  std::string name, arguments;
  bool complete = false;
  bool operator==(const FoundCall&) const = default;
};

// The joined findings of one answer.
struct Found {
  std::string content, reasoning;
  std::vector<FoundCall> calls;
  std::string fault;  // a broken rule of the interface
  bool operator==(const Found&) const = default;
};

// One line that shows all of it.
std::string shown(const Found& found);

// A model's side: its format, the tokens that are special in its vocabulary, the tools offered.
struct Family {
  std::string name;
  OutputFormat format;
  std::vector<std::string> specials;
  ThinkStart start = ThinkStart::kUnsaid;
};

// Offers get_time(tz), run(cmd), write_file(path: string, content: string, n: integer, options: object, flag: boolean).
nlohmann::ordered_json offered_tools();

// How text is handed over: token by token, all text between two special tokens at once, cut between all characters,
// or at random places drawn from `seed`.
struct Cut {
  enum class Kind { kTokens, kMerged, kCharacters, kRandom } kind = Kind::kTokens;
  uint32_t seed = 0;
};

class FamilyRunner {
 public:
  explicit FamilyRunner(Family family);

  // Tokens that are special go in by id, the others as text.
  Found run(const std::vector<std::string>& tokens, Cut cut = {}) const;
  bool is_special(const std::string& token) const;
  const Family& family() const { return family_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }

 private:
  const Family family_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const OfferedTools> tools_;
};

}  // namespace tailrace::test
