// CUPTI, loaded at run time by the loader's path or from a toolkit: only tools need it.
#pragma once

#include <dlfcn.h>

namespace tailrace::cuda {

// Its handle, of dlopen, or null. It stays loaded.
void* cupti_library();

// The library's entry of that name; null where there is none.
template <typename Entry>
void find_entry(void* library, const char* name, Entry& entry) {
  entry = reinterpret_cast<Entry>(dlsym(library, name));
}

}  // namespace tailrace::cuda
