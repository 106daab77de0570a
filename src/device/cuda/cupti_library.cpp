#include "device/cuda/cupti_library.h"

namespace tailrace::cuda {
namespace {

constexpr const char* kFiles[] = {"libcupti.so.13",
                                  "libcupti.so.12",
                                  "libcupti.so",
                                  "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so",
                                  "/usr/local/cuda/lib64/libcupti.so",
                                  "/usr/local/cuda/targets/x86_64-linux/lib/libcupti.so"};

}  // namespace

void* cupti_library() {
  for (const char* file : kFiles) {
    if (void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  }
  return nullptr;
}

}  // namespace tailrace::cuda
