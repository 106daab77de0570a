// Detokenizer: any token ids; deltas join to the full decode, hold back at most an incomplete tail, and are valid UTF-8.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "support/small_tokenizers.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

using namespace tailrace;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const Tokenizer> tokenizers[] = {Tokenizer::from_gguf(small_byte_level()).value(),
                                                                Tokenizer::from_gguf(small_sentence_piece()).value()};
  if (size < 2) return 0;
  const auto& tokenizer = tokenizers[data[0] & 1];
  const bool skip_special = data[0] & 2;
  std::vector<TokenId> ids;
  for (size_t i = 1; i + 1 < size; i += 2) ids.push_back((data[i] | data[i + 1] << 8) % (tokenizer->vocab_size() + 1));
  Detokenizer detokenizer(tokenizer, skip_special);
  StopMatcher matcher({"hi", "\xC3\xA9\x31", "aab"});
  std::string joined, visible;
  for (const TokenId id : ids) {
    const std::string delta = detokenizer.push(id);
    joined += delta;
    visible += matcher.push(delta);
    CHECK(detokenizer.held_bytes() <= 3);
  }
  const std::string last = detokenizer.flush();
  joined += last;
  visible += matcher.push(last) + matcher.finish();
  CHECK(joined == tokenizer->decode(ids, skip_special));
  CHECK(joined.compare(0, visible.size(), visible) == 0);
  CHECK(matcher.matched() || visible.size() == joined.size());
  const std::string strict = nlohmann::json(joined).dump();  // throws on anything that is not UTF-8
  CHECK(!strict.empty());
  return 0;
}
