// Ids of requests, answers and their items: nobody can guess one, and none comes again after a restart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tailrace {

// From the system's source of randomness; any thread.
uint64_t random_bits();
// `prefix` and 128 random bits, as 22 letters and digits.
std::string random_id(std::string_view prefix);

}  // namespace tailrace
