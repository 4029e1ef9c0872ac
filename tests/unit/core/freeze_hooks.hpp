// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace sluice::test {

/// How much the others do while one thread stands still.
inline constexpr std::size_t kWhileFrozen = 10000;

/// Something that others do while a thread passes a point: it brings about the rare ways through an
/// operation. It runs on the passing thread, which to the queue looks like any other.
struct Provocation {
  const char* at;
  std::function<void()> action;
};

/// Hooks for the queues: stops a thread at the point that it is armed for, the first time it passes
/// it after the provocations.
struct FreezeHooks {
  enum State : int { running, frozen, thawed, finished };
  struct Control {
    const char* point;  ///< nullptr: provocations only
    std::vector<Provocation> provocations{};
    std::size_t provoked = 0;
    std::atomic<int> state{running};
  };

  static void at(const char* point) noexcept {
    Control* const control = armed;
    if (control == nullptr) return;
    if (control->provoked < control->provocations.size()) {
      const Provocation& next = control->provocations[control->provoked];
      if (std::strcmp(next.at, point) != 0) return;
      ++control->provoked;
      armed = nullptr;  // the others are not stopped
      next.action();
      armed = control;
      return;
    }
    if (control->point == nullptr || std::strcmp(control->point, point) != 0) return;
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
  FrozenThread(const char* point, Work work, std::vector<Provocation> provocations = {})
      : control_{point, std::move(provocations)}, thread_([this, work = std::move(work)]() mutable {
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

/// Runs `work` on this thread, with the provocations and without stopping. False: a provocation's
/// point was not passed.
template <typename Work>
[[nodiscard]] bool run_provoked(std::vector<Provocation> provocations, Work work) {
  FreezeHooks::Control control{nullptr, std::move(provocations)};
  FreezeHooks::armed = &control;
  work();
  FreezeHooks::armed = nullptr;
  return control.provoked == control.provocations.size();
}

/// All points of the given source files (from the repository's root).
inline std::set<std::string> points_in(std::initializer_list<const char*> files) {
  std::set<std::string> points;
  const std::string call = "Hooks::at(";
  for (const char* file : files) {
    std::ifstream stream(std::string(SLUICE_SOURCE_DIR "/") + file);
    EXPECT_TRUE(stream) << file;
    std::stringstream text;
    text << stream.rdbuf();
    const std::string content = text.str();
    for (std::size_t at = content.find(call); at != std::string::npos;
         at = content.find(call, at + 1)) {
      const std::size_t open = content.find_first_not_of(" \n", at + call.size());
      if (open == std::string::npos || content[open] != '"') continue;  // the hook's declaration
      points.insert(content.substr(open + 1, content.find('"', open + 1) - open - 1));
    }
  }
  EXPECT_FALSE(points.empty());
  return points;
}

/// One case of a freeze test: which operation stands still where. `variant` tells apart different
/// ways to the same point.
struct FreezeCase {
  const char* operation;
  const char* point;
  const char* variant = "";
};
inline void PrintTo(const FreezeCase& value, std::ostream* out) {
  *out << value.operation << " frozen at " << value.point << ' ' << value.variant;
}
inline std::string case_name(const ::testing::TestParamInfo<FreezeCase>& info) {
  std::string name = std::string(info.param.operation) + "_at_" + info.param.point;
  if (*info.param.variant != '\0') name += std::string("_") + info.param.variant;
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}
inline std::set<std::string> points_of(const std::vector<FreezeCase>& cases) {
  std::set<std::string> points;
  for (const FreezeCase& one : cases) points.insert(one.point);
  return points;
}

}  // namespace sluice::test
