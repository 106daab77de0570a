#include "ids/contracts.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

PhaseCounts good() {
  return {.steps = 640,
          .slabs = 20,
          .watched = true,
          .calls = {{"cuGraphLaunch", 640}, {"cuMemcpyAsync", 20}, {"cuStreamWaitEvent", 20}}};
}

TEST(Contracts, a_phase_that_keeps_them) {
  EXPECT_EQ(contract_breach(good(), {}), "");
  PhaseCounts mixed = good();
  mixed.mixed_steps = 3;
  mixed.slabs = 600;  // no bound where requests come and go
  EXPECT_EQ(contract_breach(mixed, {.arrivals = true}), "");
}

TEST(Contracts, each_breach_is_named) {
  const auto breach = [](auto change) {
    PhaseCounts counts = good();
    change(counts);
    return contract_breach(counts, {});
  };
  EXPECT_EQ(breach([](PhaseCounts& c) { c.host_blocks = 3; }), "3 host blocks");
  EXPECT_EQ(breach([](PhaseCounts& c) { c.allocations = 1; }), "1 allocations after ready");
  EXPECT_EQ(breach([](PhaseCounts& c) { c.claimed_bytes = 64; }), "64 bytes more are claimed");
  EXPECT_EQ(breach([](PhaseCounts& c) { c.calls.push_back({"cuStreamSynchronize", 2}); }),
            "driver calls that wait: 2 cuStreamSynchronize");
  EXPECT_EQ(breach([](PhaseCounts& c) { c.calls.push_back({"cuMemcpyAsync (pageable)", 1}); }),
            "driver calls that wait: 1 cuMemcpyAsync (pageable)");
  EXPECT_EQ(breach([](PhaseCounts& c) { c.calls.push_back({"cuMemAlloc_v2", 1}); }),
            "driver calls that claim: 1 cuMemAlloc_v2");
  EXPECT_NE(breach([](PhaseCounts& c) { c.calls.clear(); }).find("blind"), std::string::npos);
  EXPECT_EQ(breach([](PhaseCounts& c) {
              c.host_blocks = 2;
              c.calls.push_back({"cuStreamSynchronize", 2});
            }),
            "2 host blocks; driver calls that wait: 2 cuStreamSynchronize");
  EXPECT_EQ(breach([](PhaseCounts& c) { c.slabs = 21; }), "21 slabs, more than 20");
  EXPECT_NE(breach([](PhaseCounts& c) { c.mixed_steps = 1; }), "");
  EXPECT_NE(contract_breach(good(), {.arrivals = true}), "") << "without a mixed step the phase shows nothing";
}

}  // namespace
}  // namespace tailrace
