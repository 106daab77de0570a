// How much freed memory the process keeps: glibc by itself keeps up to 64 MiB in each of its arenas, for ever.
#pragma once

#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tailrace {

// Allocations from 1 MiB on are pages of their own, and an arena keeps no more than that at its end. Whole process.
inline void bound_free_heap() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

// Gives the pages within the arenas back too. Takes milliseconds, in which other threads' allocations may have to wait.
inline void return_free_heap() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace tailrace
