// Output parsers of all families: any tokens; every cut gives the same findings, whose arguments a request may hold.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "output/families.h"

using namespace tailrace;
using namespace tailrace::test;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const families = new std::vector<FamilyCorpus>(all_families());
  static const auto* const runners = [] {
    auto* out = new std::vector<std::unique_ptr<FamilyRunner>>();
    for (const auto& family : *families) out->push_back(std::make_unique<FamilyRunner>(family.family));
    return out;
  }();
  if (size < 2) return 0;
  const size_t which = data[0] % families->size();
  const auto& pieces = (*families)[which].pieces;
  std::vector<std::string> tokens;
  for (size_t i = 2; i < size && tokens.size() < 512; ++i) {
    const size_t piece = data[i];
    if (piece < 128 && piece >= pieces.size()) {
      tokens.emplace_back(1, static_cast<char>(piece));
    } else {
      tokens.push_back(pieces[piece % pieces.size()]);
    }
  }
  const FamilyRunner& runner = *(*runners)[which];
  const Found found = runner.run(tokens);
  CHECK(found.fault.empty());
  CHECK(runner.run(tokens, {Cut::Kind::kMerged}) == found);
  CHECK(runner.run(tokens, {Cut::Kind::kCharacters}) == found);
  CHECK(runner.run(tokens, {Cut::Kind::kRandom, data[1]}) == found);
  return 0;
}
