#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"

namespace tailrace {
namespace {

// Shared by a device, its streams and its events.
struct Counters {
  std::atomic<bool> ready{false};
  std::atomic<uint64_t> host_blocks{0}, allocs_after_ready{0};
  std::atomic<size_t> device_bytes{0}, pinned_bytes{0};

  void count_wait(const char* site) {
    if (ready.load() && std::strcmp(site, "step_result") != 0) host_blocks++;
  }
};

class CpuEvent : public Event {
 public:
  explicit CpuEvent(std::shared_ptr<Counters> counters) : counters_(std::move(counters)) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }

  void wait(const char* site) override {
    if (done()) return;
    counters_->count_wait(site);
    wait_on_device();
  }

  // A stream's worker waiting for another stream, or a wait that is counted already.
  void wait_on_device() {
    std::unique_lock lock(mutex_);
    set_.wait(lock, [&] { return done(); });
  }

  int64_t device_ns() const override { return time_ns_; }

  void set() {
    std::lock_guard lock(mutex_);
    time_ns_ = now_ns();
    done_.store(true, std::memory_order_release);
    set_.notify_all();
  }

 private:
  std::shared_ptr<Counters> counters_;
  std::atomic<bool> done_{false};
  int64_t time_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable set_;
};

// One queued piece of a stream: work, or a wait for another stream's event.
struct Item {
  std::function<void()> work;
  std::shared_ptr<CpuEvent> wait_for;
};

// Memory ranges that the device handed out: copies may only touch these (anything else would be pageable on a GPU).
class Ranges {
 public:
  void add(const void* base, size_t bytes) {
    std::lock_guard lock(mutex_);
    ranges_.push_back({reinterpret_cast<uintptr_t>(base), bytes});
  }
  bool contains(const void* p, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(p);
    std::lock_guard lock(mutex_);
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& r) {
      return address >= r.first && address + bytes <= r.first + r.second;
    });
  }
  template <typename F>
  void for_each(const F& fn) {
    for (auto& [base, bytes] : ranges_) fn(reinterpret_cast<void*>(base), bytes);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<uintptr_t, size_t>> ranges_;
};

class CpuStream;

// Runs the items of one or several streams, each stream in order.
class Worker {
 public:
  Worker(uint64_t delay_seed, int max_delay_us) : random_(delay_seed), max_delay_us_(delay_seed ? max_delay_us : 0) {
    thread_ = std::thread([this] { loop(); });
  }
  ~Worker() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // Returns the queue's index.
  size_t add_queue() {
    std::lock_guard lock(mutex_);
    queues_.emplace_back();
    return queues_.size() - 1;
  }

  void push(size_t queue, Item item) {
    {
      std::lock_guard lock(mutex_);
      queues_[queue].push_back(std::move(item));
    }
    changed_.notify_all();
  }

 private:
  // Takes the first runnable item: heads that wait for an unset event are passed over, the oldest queue first.
  bool take(Item* out) {
    for (auto& queue : queues_) {
      while (!queue.empty()) {
        Item& head = queue.front();
        if (head.wait_for && !head.wait_for->done()) {
          if (queues_.size() > 1) break;
          *out = std::move(head);  // the only queue of this worker: wait for it outside the lock
          queue.pop_front();
          return true;
        }
        const bool was_wait = head.wait_for != nullptr;
        *out = std::move(head);
        queue.pop_front();
        if (was_wait) continue;
        return true;
      }
    }
    return false;
  }

  void loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Item item;
      if (take(&item)) {
        lock.unlock();
        if (max_delay_us_ > 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random_() % (max_delay_us_ + 1)));
        }
        if (item.work) {
          item.work();
        } else if (item.wait_for) {
          item.wait_for->wait_on_device();
        }
        lock.lock();
        continue;
      }
      const bool empty = std::all_of(queues_.begin(), queues_.end(), [](const auto& q) { return q.empty(); });
      if (stop_ && empty) return;
      changed_.wait(lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::deque<Item>> queues_;
  std::mt19937_64 random_;
  int max_delay_us_;
  bool stop_ = false;
  std::thread thread_;
};

class CpuStream : public Stream {
 public:
  CpuStream(std::shared_ptr<Worker> worker, std::shared_ptr<Counters> counters, std::shared_ptr<Ranges> ranges)
      : worker_(std::move(worker)),
        queue_(worker_->add_queue()),
        counters_(std::move(counters)),
        ranges_(std::move(ranges)) {}

  void run(std::function<void()> work) override { worker_->push(queue_, Item{std::move(work), nullptr}); }

  void copy(void* dst, const void* src, size_t bytes) override {
    CHECK_MSG(ranges_->contains(dst, bytes) && ranges_->contains(src, bytes),
              "a stream copy must stay within device or pinned memory");
    run([=] { std::memcpy(dst, src, bytes); });
  }

  void copy_blocking(void* dst, const void* src, size_t bytes, const char* site) override {
    CHECK_MSG(ranges_->contains(dst, bytes), "a blocking copy must go to device memory");
    counters_->count_wait(site);
    run([=] { std::memcpy(dst, src, bytes); });
    const auto event = std::make_shared<CpuEvent>(counters_);
    run([event] { event->set(); });
    event->wait_on_device();
  }

  std::shared_ptr<Event> record() override {
    auto event = std::make_shared<CpuEvent>(counters_);
    run([event] { event->set(); });
    return event;
  }

  void wait_for(const std::shared_ptr<Event>& event) override {
    if (event->done()) return;
    worker_->push(queue_, Item{nullptr, std::static_pointer_cast<CpuEvent>(event)});
  }

 private:
  std::shared_ptr<Worker> worker_;
  size_t queue_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<Ranges> ranges_;
};

// The first number (kB) after `key` in /proc/meminfo, in bytes; 0 when absent.
size_t meminfo_bytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(key + ":", 0) == 0) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

// A container's memory limit less what it uses (page cache that can be given up not counted), if it has one.
std::optional<size_t> cgroup_available_bytes() {
  std::ifstream max_file("/sys/fs/cgroup/memory.max"), current_file("/sys/fs/cgroup/memory.current");
  size_t max = 0, current = 0;
  if (!(max_file >> max) || !(current_file >> current)) return std::nullopt;
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::string name;
  for (size_t bytes = 0; stat >> name >> bytes;) {
    if (name == "inactive_file") current -= std::min(current, bytes);
  }
  return max > current ? max - current : 0;
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : options_(options) {
    if (!options_.thread_per_stream) shared_worker_ = std::make_shared<Worker>(0, 0);
    memory_bytes_ = options.memory_bytes;
    if (memory_bytes_ == 0) {
      memory_bytes_ = meminfo_bytes("MemAvailable");
      if (const auto limit = cgroup_available_bytes()) memory_bytes_ = std::min(memory_bytes_, *limit);
    }
  }

  ~CpuDevice() override {
    shared_worker_.reset();
    ranges_->for_each([](void* base, size_t bytes) { munmap(base, bytes); });
  }

  const char* kind() const override { return "cpu"; }
  std::string description() const override {
    return "CPU, " + std::to_string(std::thread::hardware_concurrency()) + " threads";
  }
  size_t memory_bytes() const override { return memory_bytes_; }

  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    std::shared_ptr<Worker> worker = shared_worker_;
    if (!worker) {
      const uint64_t seed = options_.delay_seed ? options_.delay_seed + std::hash<std::string>()(name) : 0;
      worker = std::make_shared<Worker>(seed, options_.max_delay_us);
    }
    return std::make_unique<CpuStream>(worker, counters_, ranges_);
  }

  void* alloc_device(size_t bytes, FirstTouch touch) override { return alloc(bytes, touch, counters_->device_bytes); }
  void* alloc_pinned(size_t bytes) override { return alloc(bytes, FirstTouch::kAtBoot, counters_->pinned_bytes); }

  void upload(void* dst, const void* src, size_t bytes) override { std::memcpy(dst, src, bytes); }
  void set_ready() override { counters_->ready = true; }

  DeviceCounters counters() const override {
    return {counters_->host_blocks, counters_->allocs_after_ready, counters_->device_bytes, counters_->pinned_bytes};
  }

 private:
  void* alloc(size_t bytes, FirstTouch touch, std::atomic<size_t>& total) {
    if (counters_->ready.load()) counters_->allocs_after_ready++;
    bytes = std::max<size_t>((bytes + 4095) & ~size_t{4095}, 4096);
    if (counters_->device_bytes + counters_->pinned_bytes + bytes > memory_bytes_) return nullptr;
    void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return nullptr;
    const bool huge = touch == FirstTouch::kAtBoot && bytes >= (size_t{4} << 20);  // fewer TLB misses when streaming weights
    madvise(base, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    ranges_->add(base, bytes);
    total += bytes;
    return base;
  }

  CpuDeviceOptions options_;
  size_t memory_bytes_;
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::shared_ptr<Ranges> ranges_ = std::make_shared<Ranges>();
  std::shared_ptr<Worker> shared_worker_;
};

}  // namespace

std::unique_ptr<Device> create_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace tailrace
