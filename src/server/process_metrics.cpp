#include "server/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/process_memory.h"

namespace tailrace {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

// Field 22 of /proc/self/stat: ticks since the machine started. The second field may hold spaces;
// it ends at the last ')'.
double start_time() {
  std::string stat;
  std::getline(std::ifstream("/proc/self/stat"), stat);
  const size_t name_end = stat.rfind(')');
  double uptime_s = 0;
  if (name_end == std::string::npos || !(std::ifstream("/proc/uptime") >> uptime_s)) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string field;
  constexpr int kStartTime = 20;  // counted from the field behind the name
  for (int i = 0; i < kStartTime; ++i) fields >> field;
  const double age_s =
      uptime_s - std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return static_cast<double>(std::time(nullptr)) - age_s;
}

}  // namespace

ProcessMetrics read_process_metrics() {
  static const double started_s = start_time();
  ProcessMetrics out;
  out.start_time_s = started_s;
  const ProcessMemory memory = read_process_memory();
  out.virtual_bytes = memory.virtual_bytes, out.resident_bytes = memory.resident_bytes;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  out.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error))
    ++out.open_fds;
  return out;
}

}  // namespace tailrace
