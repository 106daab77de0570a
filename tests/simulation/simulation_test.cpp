// Usage: simulation_test [gtest flags] [first_seed num_seeds]: thousands of seeds by default, more
// on demand.
#include "simulation/simulation.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/test_fault.h"

namespace tailrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kDefaultSeeds = 1000;  // about ten times slower
#else
constexpr uint64_t kDefaultSeeds = 4000;
#endif
uint64_t g_first_seed = 1;
uint64_t g_num_seeds = kDefaultSeeds;

// The sum of what so many seeds' runs were; the test fails where one breaks a rule.
SimulationReport simulate_all(uint64_t num_seeds, bool recurrent) {
  SimulationReport total;
  for (uint64_t seed = g_first_seed; seed < g_first_seed + num_seeds; ++seed) {
    const SimulationReport report = simulate(seed, recurrent);
    if (!report.violation.empty()) {
      ADD_FAILURE() << report.violation << ", seed " << seed << ": " << report.config;
      return total;
    }
    total.steps += report.steps;
    total.requests += report.requests;
    total.preemptions += report.preemptions;
    total.cached_tokens += report.cached_tokens;
    total.cancels += report.cancels;
    total.mixed_steps += report.mixed_steps;
    total.early_ends += report.early_ends;
    total.late_masks += report.late_masks;
    total.checkpoints += report.checkpoints;
    total.checkpoint_starts += report.checkpoint_starts;
  }
  std::printf(
      "%llu steps, %llu requests, %llu preemptions, %llu cancels, %llu mixed steps, %llu cached "
      "tokens, %llu lone ends, %llu checkpoints, %llu starts from one, %llu late masks\n",
      (unsigned long long)total.steps, (unsigned long long)total.requests,
      (unsigned long long)total.preemptions, (unsigned long long)total.cancels,
      (unsigned long long)total.mixed_steps, (unsigned long long)total.cached_tokens,
      (unsigned long long)total.early_ends, (unsigned long long)total.checkpoints,
      (unsigned long long)total.checkpoint_starts, (unsigned long long)total.late_masks);
  return total;
}

// A workload that never comes near a hazard proves nothing.
TEST(Simulation, every_seed_keeps_every_invariant_and_every_answer) {
  const SimulationReport total = simulate_all(g_num_seeds, false);
  EXPECT_GT(total.preemptions, g_num_seeds / 4);
  EXPECT_GT(total.cancels, g_num_seeds / 4);
  EXPECT_GT(total.mixed_steps, g_num_seeds);
  EXPECT_GT(total.cached_tokens, g_num_seeds);
  EXPECT_GT(total.late_masks, g_num_seeds / 4);
}

TEST(Simulation, recurrent_models_too) {
  const uint64_t num_seeds = g_num_seeds / 2;
  const SimulationReport total = simulate_all(num_seeds, true);
  EXPECT_GT(total.preemptions, num_seeds / 5);
  EXPECT_GT(total.cancels, num_seeds / 4);
  EXPECT_GT(total.mixed_steps, num_seeds);
  EXPECT_GT(total.checkpoints, 4 * num_seeds);
  EXPECT_GT(total.checkpoint_starts, num_seeds);
}

TEST(Simulation, the_same_seed_gives_the_same_trace) {
  for (uint64_t seed = g_first_seed; seed < g_first_seed + 50; ++seed) {
    for (const bool recurrent : {false, true}) {
      EXPECT_EQ(simulate(seed, recurrent).trace, simulate(seed, recurrent).trace) << "seed " << seed;
    }
  }
}

// The canaries: a planted bug must be caught, or the oracles are blind.
int seeds_that_catch(Fault fault, bool recurrent = false) {
  const ScopedTestFault planted(fault);
  int caught = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) caught += !simulate(seed, recurrent).violation.empty();
  return caught;
}
TEST(Simulation, a_planted_bug_is_caught) {
  EXPECT_GT(seeds_that_catch(Fault::kReleaseInFlight), 0);
  EXPECT_GT(seeds_that_catch(Fault::kWindowOffByOne), 0);
  EXPECT_GT(seeds_that_catch(Fault::kWindowMatchUnchecked), 0);
  EXPECT_GT(seeds_that_catch(Fault::kCheckpointUnchecked, true), 0);
  EXPECT_GT(seeds_that_catch(Fault::kCheckpointReusedEarly, true), 0);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) tailrace::g_first_seed = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) tailrace::g_num_seeds = std::strtoull(argv[2], nullptr, 10);
  return RUN_ALL_TESTS();
}
