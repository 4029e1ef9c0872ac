// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

namespace sluice::test {

/// Hooks for the queues: stops a thread at the point that it is armed for, the first time it
/// passes.
struct FreezeHooks {
  enum State : int { running, frozen, thawed, finished };
  struct Control {
    const char* point;
    std::atomic<int> state{running};
  };

  static void at(const char* point) noexcept {
    Control* const control = armed;
    if (control == nullptr || std::strcmp(control->point, point) != 0) return;
    armed = nullptr;
    control->state.store(frozen);
    control->state.notify_all();
    control->state.wait(frozen);
  }

  inline static thread_local Control* armed = nullptr;
};

/// A thread that runs `work` and stands still at `point`. The constructor returns when it does (or
/// when the work is over without having come by: then reached() is false).
class FrozenThread {
 public:
  template <typename Work>
  FrozenThread(const char* point, Work work)
      : control_{point}, thread_([this, work = std::move(work)]() mutable {
          FreezeHooks::armed = &control_;
          work();
          FreezeHooks::armed = nullptr;
          control_.state.store(FreezeHooks::finished);
          control_.state.notify_all();
        }) {
    control_.state.wait(FreezeHooks::running);
    reached_ = control_.state.load() == FreezeHooks::frozen;
  }
  ~FrozenThread() { thaw(); }

  [[nodiscard]] bool reached() const { return reached_; }

  /// Lets it go on and waits for its end.
  void thaw() {
    int expected = FreezeHooks::frozen;
    control_.state.compare_exchange_strong(expected, FreezeHooks::thawed);
    control_.state.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  FreezeHooks::Control control_;
  bool reached_ = false;
  std::thread thread_;
};

}  // namespace sluice::test
