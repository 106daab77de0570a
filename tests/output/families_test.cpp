// Parsers of all families: what well-formed, cut, malformed and hostile answers give, however they are cut.
#include <gtest/gtest.h>

#include <random>

#include "output/families.h"

namespace tailrace::test {
namespace {

using Tokens = std::vector<std::string>;

class Families : public ::testing::TestWithParam<FamilyCorpus> {
 protected:
  const FamilyRunner runner_{GetParam().family};

  // The same result for every way to cut the text; returns it.
  Found same_for_all_cuts(const Tokens& tokens) const {
    const Found found = runner_.run(tokens);
    EXPECT_EQ(found.fault, "") << ::testing::PrintToString(tokens);
    EXPECT_EQ(shown(runner_.run(tokens, {Cut::Kind::kMerged})), shown(found)) << ::testing::PrintToString(tokens);
    EXPECT_EQ(shown(runner_.run(tokens, {Cut::Kind::kCharacters})), shown(found)) << ::testing::PrintToString(tokens);
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      EXPECT_EQ(shown(runner_.run(tokens, {Cut::Kind::kRandom, seed})), shown(found))
          << ::testing::PrintToString(tokens);
    }
    return found;
  }
};

TEST_P(Families, corpus_gives_what_it_says) {
  for (const auto& [tokens, expected] : GetParam().corpus) {
    EXPECT_EQ(shown(same_for_all_cuts(tokens)), expected) << ::testing::PrintToString(tokens);
  }
}

// Cut after every token: a call is reported as whole only where it is, and what it holds is the begin of the whole
// one's.
TEST_P(Families, cut_after_every_token) {
  for (const auto& [tokens, expected] : GetParam().corpus) {
    const Found whole = runner_.run(tokens);
    for (size_t n = 0; n < tokens.size(); ++n) {
      const Found cut = same_for_all_cuts(Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)));
      ASSERT_LE(cut.calls.size(), std::max<size_t>(whole.calls.size(), 1)) << shown(cut);
      for (size_t i = 0; i < std::min(cut.calls.size(), whole.calls.size()); ++i) {
        EXPECT_EQ(cut.calls[i].name, whole.calls[i].name);
        if (cut.calls[i].complete && whole.calls[i].complete) {
          EXPECT_EQ(cut.calls[i].arguments, whole.calls[i].arguments);
        }
      }
    }
  }
}

// Any mix of the family's pieces and of words that occur once: every cut gives the same, and each word is found
// somewhere.
TEST_P(Families, hostile_mixes_lose_nothing) {
  std::mt19937 random(5);
  const auto& pieces = GetParam().pieces;
  for (int round = 0; round < 3000; ++round) {
    Tokens tokens;
    std::vector<std::string> words;
    for (size_t n = random() % 20; n > 0; --n) {
      if (random() % 4 == 0) {
        words.push_back("q" + std::to_string(words.size()) + "q");
        tokens.push_back(words.back());
      } else {
        tokens.push_back(pieces[random() % pieces.size()]);
      }
    }
    const Found found = same_for_all_cuts(tokens);
    std::string all = found.content + found.reasoning;
    for (const auto& call : found.calls) all += call.arguments;
    // A call that the end cuts loses the member that was being written.
    const bool cut_call = !found.calls.empty() && !found.calls.back().complete;
    bool missing = false;
    for (const std::string& word : words) {
      const bool here = all.find(word) != std::string::npos;
      EXPECT_TRUE(cut_call ? !(here && missing) : here)
          << word << " of " << ::testing::PrintToString(tokens) << ": " << shown(found);
      missing |= !here;
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(all_families()),
                         [](const auto& info) { return info.param.family.name; });

}  // namespace
}  // namespace tailrace::test
