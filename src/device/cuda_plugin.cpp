#include "device/cuda_plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>

namespace tailrace {
namespace {

std::string beside_executable() {
  std::error_code error;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  const auto library = executable.parent_path() / kCudaPluginFile;
  return std::filesystem::exists(library, error) ? library.string() : "";
}

Expected<const CudaPlugin*> load(uint64_t abi) {
  // Kernels are loaded with the library's context, not when a step first launches them: that would block it (hazard 7).
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  // Two long mixed steps are more launches than a queue of usual size holds: the engine thread then waited in a launch, up to 25 ms.
  setenv("CUDA_SCALE_LAUNCH_QUEUES", "4x", 0);
  const std::string beside = beside_executable();
  void* library = dlopen(beside.empty() ? kCudaPluginFile : beside.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    if (beside.empty()) {
      return fail(StatusCode::kUnavailable, std::string("there is no ") + kCudaPluginFile +
                                                " beside the executable or in the loader's path: `make gpu` builds it");
    }
    const char* reason = dlerror();
    return fail(StatusCode::kUnavailable, beside + " cannot be loaded: " + (reason ? reason : "no reason given"));
  }
  const auto entry = reinterpret_cast<const CudaPlugin* (*)()>(dlsym(library, "tailrace_cuda_plugin"));
  const CudaPlugin* plugin = entry ? entry() : nullptr;
  if (plugin == nullptr || plugin->abi != abi) {
    return fail(StatusCode::kUnavailable,
                std::string(kCudaPluginFile) +
                    " is of another build than this binary: build both from one checkout, with one compiler");
  }
  return plugin;
}

}  // namespace

Expected<const CudaPlugin*> load_cuda_plugin(uint64_t abi) {
  static std::mutex mutex;
  static const CudaPlugin* loaded = nullptr;
  std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  auto plugin = load(abi);
  if (plugin) loaded = *plugin;
  return plugin;
}

}  // namespace tailrace
