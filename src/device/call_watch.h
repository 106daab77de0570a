// CallWatch: counts the calls that one thread makes into a device's driver, by name: the proof of contracts 1 and 2
// that sees through libraries and static runtimes.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tailrace {

struct DriverCall {
  std::string name;  // the driver's function; a copy from or to pageable memory is "NAME (pageable)"
  uint64_t count = 0;
};

class CallWatch {
 public:
  virtual ~CallWatch() = default;
  // Counts the calls that `thread` makes from now on, from zero.
  virtual void begin(pthread_t thread) = 0;
  // What was called since begin(), by name; counting stops.
  virtual std::vector<DriverCall> end() = 0;
};

enum class CallKind {
  kQueues,  // neither of the two below: launches, asynchronous copies, events, queries
  kWaits,   // keeps the host until the device has done something
  kClaims,  // claims, gives back or maps memory, loads code, makes or destroys objects of the driver
};
// By the driver API's own naming; an unknown name that says none of it is kQueues, so callers print the names, too.
CallKind classify_driver_call(std::string_view name);

}  // namespace tailrace
