// JsonStream: reads one JSON value as it is generated and writes it again as JSON that every client accepts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace tailrace {

// What it writes is compact and, once close() was called, always one whole value that this server takes back in a
// request: within its depth, no key twice (the first one counts), no number beyond a double (null instead), no lone
// surrogates (U+FFFD), control characters escaped. It forgives what models get wrong (a comma before a bracket, raw
// line breaks in strings, True, False, None) and gives strings out in pieces. Costs O(bytes).
class JsonStream {
 public:
  enum class State { kOpen, kDone, kBroken };
  static constexpr size_t kMaxDepth = 60;  // JsonLimits has 64

  // object_only: any other value breaks it at once.
  explicit JsonStream(bool object_only, size_t max_depth = kMaxDepth)
      : object_only_(object_only), max_depth_(max_depth) {}

  // Appends what became certain; returns how many bytes belong to the value: all while it is open.
  size_t push(std::string_view text, std::string* out);
  // The input is over. A number at the outermost level ends here; anything else that is open breaks.
  void end_of_input(std::string* out);
  // Completes what was written to valid JSON ("null" or, for objects, "{}" when that was nothing).
  void close(std::string* out);

  State state() const { return state_; }
  // What was read and is in nothing that was written: an unfinished member, white space, a member that was skipped.
  const std::string& unwritten() const { return unwritten_; }
  bool in_string() const {
    return state_ == State::kOpen && (expect_ == Expect::kString || expect_ == Expect::kKeyText);
  }

 private:
  enum class Expect { kValue, kValueOrEnd, kKeyOrEnd, kColon, kCommaOrEnd, kString, kKeyText, kScalar };
  struct Frame {
    bool object = false;
    bool empty = true;        // nothing written yet
    std::unordered_set<std::string> keys;
  };

  bool step(char c, std::string* out);  // false: `c` does not belong to the value
  bool begin_value(char c, std::string* out);
  bool string_byte(char c, std::string* out);
  void escape_byte(char c, std::string* out);
  void code_unit(uint32_t unit, std::string* out);
  void flush_surrogate(std::string* out);
  void put_code_point(uint32_t code, std::string* out);
  size_t plain_run(std::string_view text, std::string* out);
  bool end_scalar(std::string* out);
  bool end_container(char c, std::string* out);
  void end_value();
  void end_key();
  void announce(std::string* out);  // the comma and key before a value
  void write(std::string_view text, std::string* out);
  void put(std::string_view text, std::string* out);  // to the key or the value being read
  void put_byte(char c, std::string* out);
  bool broken();

  const bool object_only_;
  const size_t max_depth_;
  State state_ = State::kOpen;
  Expect expect_ = Expect::kValue;
  std::vector<Frame> stack_;
  std::string scalar_;          // a number or a word, until it ends
  std::string key_;             // raw JSON of the key being read, or of the member to announce
  std::string unwritten_;
  std::string escape_;          // an escape sequence that is not complete
  uint32_t high_surrogate_ = 0; // waits for its other half
  size_t muted_depth_ = 0;      // a repeated key's value is skipped until the stack is this high; 0: not
  bool wrote_ = false;
};

}  // namespace tailrace
