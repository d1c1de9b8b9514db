#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "steppe/base/error.h"
#include "steppe/base/stream_backend.h"

namespace steppe {
namespace {

constexpr size_t kLongestThreadName = 15;  // of the kernel

class WorkerEvent final : public EventState {
 public:
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  bool done() const noexcept override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void complete(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr error_;
};

class WorkerBackend final : public StreamBackend {
 public:
  explicit WorkerBackend(const std::string& name) : thread_([this] { run(); }) {
    pthread_setname_np(thread_.native_handle(), name.substr(0, kLongestThreadName).c_str());
  }
  ~WorkerBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_one();
    }
    thread_.join();
  }

  Stream::Kind kind() const override { return Stream::Kind::kWorker; }
  void enqueue(Stream::Work work) override { push({std::move(work), nullptr}); }
  void copy(void* to, const void* from, size_t bytes) override {
    enqueue([=](void*) { std::memcpy(to, from, bytes); });
  }
  std::shared_ptr<EventState> record() override {
    auto event = std::make_shared<WorkerEvent>();
    push({nullptr, event});
    return event;
  }
  void wait(const std::shared_ptr<EventState>& event) override {
    enqueue([event](void*) { event->wait(); });
  }
  void synchronize() override {
    const auto event = std::make_shared<WorkerEvent>();
    push({nullptr, event, /*takes_error=*/true});
    event->wait();
  }
  void drain() noexcept override {
    try {
      synchronize();
    } catch (...) {  // the caller is on its way out of another error
    }
  }

 private:
  // Either work, or a point of the order.
  struct Item {
    Stream::Work work;
    std::shared_ptr<WorkerEvent> event;
    bool takes_error = false;
  };

  void push(Item item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    changed_.notify_one();
  }

  void run() {
    std::exception_ptr error;  // skips work until somebody takes it
    for (;;) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stopping_ || !items_.empty(); });
        if (items_.empty()) return;
        item = std::move(items_.front());
        items_.pop_front();
      }
      if (item.event) {
        auto reported = item.takes_error ? std::exchange(error, nullptr) : error;
        item.event->complete(std::move(reported));
      } else if (!error) {
        try {
          item.work(nullptr);
        } catch (...) {
          error = std::current_exception();
        }
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace

std::unique_ptr<StreamBackend> make_worker_backend(const std::string& name) {
  return std::make_unique<WorkerBackend>(name);
}

}  // namespace steppe
