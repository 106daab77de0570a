// The CUDA device against its contract (`check`) and what its parts cost (`bench`). The other modes are children of
// `check`: they must abort.
#include <sys/wait.h>

#include <cstring>
#include <string>

#include "base/clock.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/gpu_workbench.h"

using namespace tailrace;
using cuda::CudaDevice;
using cuda::StepStamp;

namespace {

int g_failed = 0;

void expect(bool ok, const std::string& what) {
  std::printf("%s  %s\n", ok ? "ok  " : "FAIL", what.c_str());
  g_failed += ok ? 0 : 1;
}

__device__ uint64_t globaltimer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// Runs for spin_ns, then stamps as a step does; `word` (device memory) gets `value` before the stamp.
__global__ void step_kernel(StepStamp* stamp, uint64_t launch, uint64_t spin_ns, int* word, int value) {
  const uint64_t begun = globaltimer_ns();
  while (globaltimer_ns() - begun < spin_ns) {
  }
  if (word != nullptr) *word = value;
  if (stamp == nullptr) return;
  stamp->begun_ns = begun;
  stamp->done_ns = globaltimer_ns();
  __threadfence_system();
  stamp->launch_plus_one = launch + 1;
}

__global__ void fault_kernel(int* nowhere) { *nowhere = 1; }

struct Fixture {
  explicit Fixture(bool timed) {
    auto made = cuda::create_cuda_device({.index = 0, .timed_events = timed});
    if (!made) {
      std::fprintf(stderr, "%s\n", made.error().message().c_str());
      std::exit(1);
    }
    owned = std::move(*made);
    device = static_cast<CudaDevice*>(owned.get());
    a = device->create_stream("a");
    b = device->create_stream("b");
    stamps = static_cast<StepStamp*>(device->alloc_pinned(sizeof(StepStamp) * 4));
    word = static_cast<int*>(claim(sizeof(int)));
    seen = static_cast<int*>(device->alloc_pinned(sizeof(int)));
  }
  void* claim(size_t bytes) { return device->alloc_device(bytes, FirstTouch::kAtBoot); }
  // Queues a step of `us` microseconds; returns its begun and done events.
  std::pair<std::shared_ptr<Event>, std::shared_ptr<Event>> step(Stream& stream, int us, int value = 0) {
    const uint64_t launch = launches++;
    StepStamp* stamp = stamps + launch % 4;
    step_kernel<<<1, 1, 0, device->cuda_stream(stream)>>>(stamp, launch, us * uint64_t{1000}, word, value);
    GPU_CHECK(cudaGetLastError());
    return {device->stamped_event(stamp, launch, true), device->stamped_event(stamp, launch, false)};
  }

  std::unique_ptr<Device> owned;
  CudaDevice* device;
  std::unique_ptr<Stream> a, b;
  StepStamp* stamps;
  int *word, *seen;
  uint64_t launches = 0;
};

void check_memory(Fixture& f) {
  auto* first = static_cast<std::byte*>(f.claim(768));
  auto* second = static_cast<std::byte*>(f.claim(1 << 20));
  expect(second == first + 768, "claims of whole 256 bytes are adjacent");
  const size_t bytes = (3 << 20) + 1;
  auto* memory = static_cast<uint8_t*>(f.claim(bytes));
  auto* back = static_cast<uint8_t*>(f.device->alloc_pinned(bytes));
  std::memset(back, 0xff, bytes);
  f.a->copy(back, memory, bytes);
  f.a->record()->wait("check");
  expect(std::count(back, back + bytes, 0) == static_cast<std::ptrdiff_t>(bytes), "device memory is zeroed");
  std::vector<uint8_t> host(bytes);
  std::mt19937 random(3);
  for (auto& byte : host) byte = static_cast<uint8_t>(random());
  f.device->upload(memory, host.data(), bytes);
  f.a->copy(back, memory, bytes);
  f.a->record()->wait("check");
  expect(std::memcmp(back, host.data(), bytes) == 0, "an upload is there when the call returns");
  expect(f.claim(f.device->memory_bytes() * 2) == nullptr, "a claim beyond the memory is null");
  expect(f.claim(size_t{3} << 30) != nullptr, "and the next one that fits is not");
  const auto* after = static_cast<std::byte*>(f.claim(256));
  expect(after > second && after < first + (size_t{1} << 30), "a chunk that has room goes on after a larger claim");
}

void check_order(Fixture& f) {
  f.step(*f.a, 20'000, 41);
  const auto done = f.a->record();
  expect(!done->done(), "an event is not set before its stream reaches it");
  f.b->wait_for(done);
  f.b->copy(f.seen, f.word, sizeof(int));
  f.b->record()->wait("check");
  expect(*f.seen == 41, "a stream waits for another's event on the device");

  const auto [begun, stamped] = f.step(*f.a, 20'000, 42);
  expect(!stamped->done() && !begun->done(), "a stamp is not set before its step ends");
  f.b->wait_for(stamped);
  f.b->copy(f.seen, f.word, sizeof(int));
  const auto second = f.step(*f.b, 0, 43);
  second.second->wait("check");
  expect(*f.seen == 42 && stamped->done(), "a stream waits for a stamp on the device");
  expect(second.first->device_ns() >= stamped->device_ns(), "what waited began after the step had ended");

  bool ran = false;
  f.a->run([&] { ran = true; });
  f.a->record()->wait("check");
  expect(ran, "host work runs in stream order");
}

void check_clock(Fixture& f) {
  int64_t least = INT64_MAX, most = 0;
  bool early = false;
  double length_error_us = 0;
  for (int i = 0; i < 2000; ++i) {
    const int64_t before = now_ns();
    const auto [begun, done] = f.step(*f.a, 20);
    done->wait("check");
    const int64_t lag = now_ns() - done->device_ns();
    least = std::min(least, lag);
    most = std::max(most, lag);
    early |= begun->device_ns() < before - 2000;
    length_error_us = std::max(length_error_us, std::abs((done->device_ns() - begun->device_ns()) / 1e3 - 20));
  }
  char text[160];
  std::snprintf(text, sizeof text, "steps are seen %.2f to %.2f us after their stamp, none begins before its launch",
                least / 1e3, most / 1e3);
  expect(least > -2000 && least < 5000 && !early, text);
  std::snprintf(text, sizeof text, "a step of 20 us is measured as such (largest error %.2f us)", length_error_us);
  expect(length_error_us < 20, text);
}

void check_timed() {
  Fixture f(true);
  const int64_t before = now_ns();
  const auto first = f.a->record();
  f.step(*f.a, 3000);
  const auto last = f.a->record();
  last->wait("check");
  const double us = (last->device_ns() - first->device_ns()) / 1e3;
  char text[160];
  std::snprintf(text, sizeof text, "timed events around a step of 3000 us are %.1f us apart, %.1f us after the call",
                us, (first->device_ns() - before) / 1e3);
  expect(us > 2999 && us < 3300 && first->device_ns() > before - 20'000 && first->device_ns() < now_ns(), text);
}

void check_counters(Fixture& f) {
  f.device->set_ready();
  const DeviceCounters before = f.device->counters();
  f.step(*f.a, 2000).second->wait("step_result");
  expect(f.device->counters().host_blocks == before.host_blocks, "waiting for a step's result is allowed");
  f.step(*f.a, 2000).second->wait("elsewhere");
  expect(f.device->counters().host_blocks == before.host_blocks + 1, "waiting elsewhere is counted");
  for (int i = 0; i < 1000; ++i) f.a->record();
  expect(f.device->counters().allocs_after_ready == before.allocs_after_ready, "a thousand records take pooled events");
  std::vector<std::shared_ptr<Event>> held;
  for (int i = 0; i < 200; ++i) held.push_back(f.a->record());
  const uint64_t grown = f.device->counters().allocs_after_ready - before.allocs_after_ready;
  expect(grown > 0 && grown < 200, "holding 200 events grows the pool, and that is counted: " + std::to_string(grown));
  held.clear();
  for (int i = 0; i < 200; ++i) held.push_back(f.a->record());
  expect(f.device->counters().allocs_after_ready - before.allocs_after_ready == grown,
         "the pool keeps what it grew by");
  f.device->alloc_pinned(64);
  expect(f.device->counters().allocs_after_ready - before.allocs_after_ready == grown + 1,
         "a claim after ready is counted");
}

// A child process must abort, and say `words`.
void check_aborts(const char* program, const char* mode, const char* words) {
  FILE* pipe = popen((std::string(program) + " " + mode + " 2>&1").c_str(), "r");
  std::string text;
  char buffer[512];
  while (pipe && std::fgets(buffer, sizeof buffer, pipe)) text += buffer;
  const int status = pipe ? pclose(pipe) : 0;
  const bool aborted = WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) > 128);
  expect(aborted && text.find(words) != std::string::npos, std::string(mode) + ": " + text.substr(0, text.find('\n')));
}

int check(const char* program) {
  const auto bad = cuda::create_cuda_device({.index = 99});
  expect(!bad && bad.error().message().find("there is no GPU 99") == 0, bad ? "GPU 99 opened" : bad.error().message());
  {
    Fixture f(false);
    std::printf("      %s, %.1f GiB free\n", f.device->description().c_str(), f.device->memory_bytes() / 1073741824.0);
    check_memory(f);
    check_order(f);
    check_clock(f);
    check_counters(f);
  }
  check_timed();
  check_aborts(program, "fault", "CUDA failed");
  check_aborts(program, "lost", "run dry");
  std::printf("%s\n", g_failed ? "FAILED" : "all passed");
  return g_failed ? 1 : 0;
}

int bench() {
  Fixture f(false);
  std::vector<double> launch_us, seen_us, record_us;
  for (int i = 0; i < 2000; ++i) {
    const int64_t begun = now_ns();
    const auto done = f.step(*f.a, 0).second;
    const int64_t launched = now_ns();
    done->wait("bench");
    seen_us.push_back((now_ns() - begun) / 1e3);
    launch_us.push_back((launched - begun) / 1e3);
    const int64_t recording = now_ns();
    f.b->record();
    record_us.push_back((now_ns() - recording) / 1e3);
  }
  const auto median = [](std::vector<double>& v) {
    std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
    return v[v.size() / 2];
  };
  std::printf("launch of an empty step %.2f us, until the host sees its stamp %.2f us, record %.2f us (medians)\n",
              median(launch_us), median(seen_us), median(record_us));
  const size_t bytes = size_t{512} << 20;
  void* memory = f.claim(bytes);
  std::vector<char> host(bytes, 1);
  f.device->upload(memory, host.data(), bytes);
  const int64_t begun = now_ns();
  f.device->upload(memory, host.data(), bytes);
  std::printf("upload %.2f GB/s\n", static_cast<double>(bytes) / (now_ns() - begun));
  return 0;
}

int fault() {
  Fixture f(false);
  auto done = f.device->stamped_event(f.stamps, 0, false);
  fault_kernel<<<1, 1, 0, f.device->cuda_stream(*f.a)>>>(reinterpret_cast<int*>(64));
  done->wait("step_result");
  return 0;
}

int lost() {
  Fixture f(false);
  f.device->stamped_event(f.stamps, 0, false)->wait("step_result");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "check") return check(argv[0]);
  if (mode == "bench") return bench();
  if (mode == "fault") return fault();
  if (mode == "lost") return lost();
  std::fprintf(stderr, "say check or bench\n");
  return 2;
}
