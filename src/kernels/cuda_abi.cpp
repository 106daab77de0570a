#include "kernels/cuda_abi.h"

#include <string_view>

#ifndef TAILRACE_SEAM_STAMP
#error "the build passes what tools/seam_stamp.sh prints"
#endif

namespace tailrace {

uint64_t cuda_plugin_abi() {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : std::string_view(TAILRACE_SEAM_STAMP " " __VERSION__)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace tailrace
