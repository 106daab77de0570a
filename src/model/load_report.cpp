#include "model/load_report.h"

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

}  // namespace tailrace
