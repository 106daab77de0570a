// Named faults that tests switch on to show that a guard matters: the hazard's test passes with the guard and fails with the
// fault. Never set outside tests; reading one costs a relaxed load.
#pragma once

#include <atomic>
#include <cstdint>

namespace tailrace {

// Numbers are those of the hazards in docs/ARCHITECTURE.md.
enum class Fault : uint32_t {
  kNone = 0,
  kReleaseInFlight = 1,         // 1: a row and its blocks are reused while a launched step uses them
  kSlabReuseEarly = 2,          // 2: a pinned slab is refilled before its copy ended
  kPatchRaces = 3,              // 3: block-table patches are applied without ordering against the running forward
  kInsertUnwritten = 4,         // 4: the tree gets the last sampled token, whose KV was never written
  kSampleMiddleChunk = 5,       // 5: a middle chunk is sampled from
  kKeepDuplicateBlocks = 6,     // 6: blocks that duplicate the tree's are kept in the tree and freed twice
  kWindowOffByOne = 8,          // 8: the window does not count the query
  kMergeEmptySplit = 9,         // 9: an empty split's garbage is merged
  kDerivedStride = 10,          // 10: one group's scratch stride is used for another's
  kWindowMatchUnchecked = 12,   // 12: a prefix match ignores what the window groups still hold
  kCheckpointUnchecked = 112,   // 12: a prefix match of a model with recurrent layers ends at no checkpoint
  kCheckpointReusedEarly = 113, // 1: a checkpoint is overwritten while a launched step starts from it
  kIndex32Bit = 13,             // 13: index times stride in 32 bits
  kPaddedRowLive = 14,          // 14: a row gets the block that padded rows write
  kAbortLeaks = 15,             // 15: an abort forgets blocks
  kAdmitByTokens = 16,          // 16: admission counts tokens instead of blocks per group
  kNoPreemptBackoff = 17,       // 17: admission ignores preemptions
  kInlineTokenize = 18,         // 18: tokenizing runs on the I/O threads
  kStaleMask = 102,             // no hazard: a row is sampled under whatever mask its slot holds (host backends)
  kIgnoreStopFlags = 101,       // no hazard: a row whose stop id was sampled runs once more (host backends)
};

inline std::atomic<uint32_t> g_test_fault{0};

inline bool test_fault(Fault fault) {
  return __builtin_expect(g_test_fault.load(std::memory_order_relaxed) == static_cast<uint32_t>(fault), 0);
}

// Some faults are data races by design; under ThreadSanitizer their halves of a test are left out.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kRacingFaults = false;
#else
inline constexpr bool kRacingFaults = true;
#endif

// Sets one fault for a scope.
class ScopedTestFault {
 public:
  explicit ScopedTestFault(Fault fault) { g_test_fault.store(static_cast<uint32_t>(fault)); }
  ~ScopedTestFault() { g_test_fault.store(0); }
};

}  // namespace tailrace
