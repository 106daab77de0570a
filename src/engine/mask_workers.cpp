#include "engine/mask_workers.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tailrace {

// One answer's state, which the engine thread and at most one worker hold. The mutex is held for copies alone, never
// while a mask is computed.
class MaskWorkers::Answer {
 public:
  Answer(MaskWorkers& owner, std::shared_ptr<const Request> request)
      : table_(owner.table_), request_(std::move(request)), mask_(table_.num_words), work_(table_.num_words) {}

  // True: nobody is at work for it, so it has to be queued.
  bool push(TokenId token) {
    std::lock_guard lock(mutex_);
    pending_.push_back(token);
    return !std::exchange(queued_, true);
  }
  void bind(int32_t slot) {
    std::lock_guard lock(mutex_);
    slot_ = slot;
    if (slot < 0) return;
    __atomic_store_n(table_.len + slot * kMaskLenStride, -1, __ATOMIC_RELEASE);  // the last occupant's mask is nobody's
    if (ready_len() >= 0) publish(ready_len());
  }
  void close() { closed_.store(true, std::memory_order_relaxed); }
  int32_t ready_len() const { return ready_len_.load(std::memory_order_acquire); }
  Status failure() const {
    if (!failed_.load(std::memory_order_acquire)) return {};
    return failure_;
  }

  // Computes until no token is pending. Returns the masks that were computed.
  uint64_t compute() {
    uint64_t computed = 0;
    for (;;) {
      std::vector<TokenId> tokens;
      {
        std::lock_guard lock(mutex_);
        tokens.swap(pending_);
      }
      if (closed_.load(std::memory_order_relaxed)) return computed;
      if (Status status = next(tokens); !status.ok()) {
        failure_ = std::move(status);
        failed_.store(true, std::memory_order_release);  // stays queued: nobody computes for it again
        return computed;
      }
      ++computed;
      std::lock_guard lock(mutex_);
      if (!pending_.empty()) continue;  // this mask is behind already
      mask_.swap(work_);
      const int32_t len = static_cast<int32_t>(request_->prompt_ids.size()) + answer_len_;
      if (slot_ >= 0) publish(len);
      ready_len_.store(len, std::memory_order_release);
      queued_ = false;
      return computed;
    }
  }

 private:
  Status next(const std::vector<TokenId>& tokens) {
    try {
      if (!run_) {
        auto run = request_->constraint->start();
        if (!run) return run.error();
        run_ = std::move(*run);
      }
      if (Status status = run_->next(tokens, work_); !status.ok()) return status;
    } catch (const std::exception& error) {  // no memory, most likely
      return Status(StatusCode::kInternal, std::string("a mask could not be computed: ") + error.what());
    }
    answer_len_ += static_cast<int32_t>(tokens.size());
    if (answer_len_ < request_->min_tokens) hold_back_stops();
    return {};
  }

  // Unless nothing else may come.
  void hold_back_stops() {
    std::vector<uint32_t> without = work_;
    for (const TokenId id : request_->stop_token_ids) {
      if (id >= 0 && id / 32 < table_.num_words) without[id / 32] &= ~(1u << (id % 32));
    }
    if (std::any_of(without.begin(), without.end(), [](uint32_t word) { return word != 0; })) work_.swap(without);
  }

  // The mutex is held.
  void publish(int32_t len) {
    std::copy(mask_.begin(), mask_.end(), table_.words + slot_ * table_.num_words);
    __atomic_store_n(table_.len + slot_ * kMaskLenStride, len, __ATOMIC_RELEASE);
  }

  const MaskTable table_;
  const std::shared_ptr<const Request> request_;
  std::mutex mutex_;
  std::vector<TokenId> pending_;  // guarded by mutex_
  bool queued_ = true;            // guarded by mutex_: in the queue or with a worker; open() queues it
  int32_t slot_ = -1;             // guarded by mutex_
  std::vector<uint32_t> mask_;    // guarded by mutex_: the newest, which follows ready_len tokens
  std::atomic<int32_t> ready_len_{-1};
  std::atomic<bool> failed_{false}, closed_{false};
  Status failure_;                // before failed_
  // The worker's alone.
  std::unique_ptr<ConstraintRun> run_;
  std::vector<uint32_t> work_;
  int32_t answer_len_ = 0;
};

class MaskWorkers::Handle : public MaskRun {
 public:
  Handle(MaskWorkers& owner, std::shared_ptr<Answer> answer) : owner_(owner), answer_(std::move(answer)) {}
  ~Handle() override {
    answer_->bind(-1);
    answer_->close();
    owner_.enqueue(std::move(answer_));  // a grammar's state is freed by a worker: it may be large
  }
  void push(TokenId token) override {
    if (answer_->push(token)) owner_.enqueue(answer_);
  }
  void bind(int32_t slot) override { answer_->bind(slot); }
  int32_t ready_len() const override { return answer_->ready_len(); }
  Status failure() const override { return answer_->failure(); }

 private:
  MaskWorkers& owner_;
  std::shared_ptr<Answer> answer_;
};

MaskWorkers::MaskWorkers(const MaskTable& table, int num_threads, EngineStatus& status, std::function<void()> on_ready)
    : table_(table), status_(status), on_ready_(std::move(on_ready)) {
  CHECK(num_threads >= 1);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

MaskWorkers::~MaskWorkers() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<MaskRun> MaskWorkers::open(std::shared_ptr<const Request> request) {
  CHECK(request->constraint != nullptr);
  auto answer = std::make_shared<Answer>(*this, std::move(request));
  enqueue(answer);
  return std::make_unique<Handle>(*this, std::move(answer));
}

void MaskWorkers::enqueue(std::shared_ptr<Answer> answer) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(answer));
  }
  wake_.notify_one();
}

void MaskWorkers::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    std::shared_ptr<Answer> answer = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const int64_t begin = now_ns();
    status_.masks += answer->compute();
    status_.mask_us += static_cast<uint64_t>(now_ns() - begin) / 1000;
    answer.reset();
    on_ready_();
    lock.lock();
  }
}

}  // namespace tailrace
