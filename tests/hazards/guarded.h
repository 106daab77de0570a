// A scenario returns what went wrong, "" if nothing. With its guard it must pass, with the guard's
// fault it must not.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/test_fault.h"

namespace tailrace {

inline void expect_guarded(Fault fault, const std::function<std::string()>& scenario) {
  EXPECT_EQ(scenario(), "");
  const ScopedTestFault taken_out(fault);
  EXPECT_NE(scenario(), "") << "the scenario does not need the guard of hazard "
                            << static_cast<uint32_t>(fault);
}

}  // namespace tailrace
