#include "model/load_report.h"

#include <unistd.h>

#include <cstdio>

namespace tailrace {

std::string format_load(const LoadReport& report) {
  if (report.bytes == 0) return "";
  const double gb = static_cast<double>(report.bytes) / 1e9;
  char text[160];
  std::snprintf(text, sizeof text, "%.2f GB in %.1f s, %.2f GB/s, at most %.2f GB resident", gb, report.seconds,
                report.seconds > 0 ? gb / report.seconds : 0, static_cast<double>(report.peak_resident) / 1e9);
  return text;
}

size_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  unsigned long long total = 0, resident = 0;
  const int found = std::fscanf(file, "%llu %llu", &total, &resident);
  std::fclose(file);
  return found == 2 ? static_cast<size_t>(resident) * static_cast<size_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace tailrace
