// CHECK: assertions for what only our own bug can cause. On in release builds; a failure prints and aborts.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tailrace {

[[noreturn]] inline void check_failed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what);
  std::fflush(stderr);
  std::abort();
}

}  // namespace tailrace

#define CHECK(condition) \
  (__builtin_expect(!!(condition), 1) ? (void)0 : ::tailrace::check_failed(__FILE__, __LINE__, #condition))
#define CHECK_MSG(condition, message) \
  (__builtin_expect(!!(condition), 1) ? (void)0 : ::tailrace::check_failed(__FILE__, __LINE__, message))
