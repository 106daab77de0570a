#include "device/call_watch.h"

namespace tailrace {
namespace {

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }
bool starts(std::string_view name, std::string_view part) { return name.substr(0, part.size()) == part; }

}  // namespace

CallKind classify_driver_call(std::string_view name) {
  if (has(name, "Synchronize") || has(name, "(pageable)")) return CallKind::kWaits;
  if ((starts(name, "cuMemcpy") || starts(name, "cuMemset")) && !has(name, "Async")) return CallKind::kWaits;
  // Descriptors are encoded on the host; what only asks claims nothing.
  if (starts(name, "cuTensorMap") || has(name, "Get") || has(name, "IsLoaded")) return CallKind::kQueues;
  for (const char* part : {"Alloc", "Free", "Create", "Destroy", "Load", "Unload", "Instantiate", "Register", "Unregister",
                           "Map", "Unmap", "Release", "Retain", "Trim", "cuLink"}) {
    if (has(name, part)) return CallKind::kClaims;
  }
  return CallKind::kQueues;
}

}  // namespace tailrace
