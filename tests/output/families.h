// The corpus: what each family's models write, and what is to be found in it.
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "output/output_fixture.h"

namespace tailrace::test {

struct FamilyCorpus {
  Family family;
  // Token sequences and shown() of what they give.
  std::vector<std::pair<std::vector<std::string>, std::string>> corpus;
  std::vector<std::string> pieces;  // for hostile mixes
};

inline void PrintTo(const FamilyCorpus& corpus, std::ostream* out) { *out << corpus.family.name; }

std::vector<FamilyCorpus> all_families();

FamilyCorpus qwen_corpus();
FamilyCorpus qwen_coder_corpus();
FamilyCorpus llama_corpus();
FamilyCorpus mistral_corpus();
FamilyCorpus gemma_corpus();
FamilyCorpus harmony_corpus();

}  // namespace tailrace::test
