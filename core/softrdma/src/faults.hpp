// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace softrdma {

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept;
  /// Uniform enough in [low, high].
  std::uint64_t between(std::uint64_t low, std::uint64_t high) noexcept;
  bool percent(std::uint32_t chance) noexcept { return chance != 0 && next() % 100 < chance; }

 private:
  std::uint64_t state_;
};

/// The places that can be told to fail at their k-th call.
enum class FaultPoint : std::uint8_t {
  kOpenDevice,
  kAllocPd,
  kRegMr,
  kCreateCompChannel,
  kCreateCq,
  kCreateSrq,
  kCreateQp,
  kCreateEventChannel,
  kCreateId,
  kBindAddr,
  kResolveAddr,
  kResolveRoute,
  kListen,
  kConnect,
  kAccept,
  kMigrateId,
  kPostSend,
  kPostRecv,
  kCount
};
inline constexpr std::size_t kFaultPoints = static_cast<std::size_t>(FaultPoint::kCount);
[[nodiscard]] const char* fault_point_name(FaultPoint point) noexcept;

struct Range {
  std::uint64_t low = 0, high = 0;
  [[nodiscard]] bool set() const noexcept { return high != 0; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// What a spec says. Immutable once in force; see the README for the meaning of each.
struct FaultPlan {
  std::uint64_t seed = 0;
  Range delay_us;
  std::uint32_t reorder_percent = 0;
  Range drop_after;
  std::uint32_t coalesce_percent = 0;
  std::uint32_t spurious_percent = 0;
  bool withhold_flush = false;
  bool withhold_last_wqe = false;
  std::uint64_t cq_error_after = 0;
  std::uint64_t fail_notify_after = 0;
  std::uint64_t fail_poll_after = 0;
  Range rnr_delay_us;
  bool reuse_qp_numbers = false;
  bool poison_failed_wc = false;
  std::uint64_t fail_any = 0;
  std::uint64_t fail_point[kFaultPoints] = {};
  bool any = false;
};

/// Fills `plan` from `spec`; an empty string when it is right, else one line that says what is
/// wrong.
[[nodiscard]] std::string parse_faults(std::string_view spec, std::uint64_t seed, FaultPlan& plan);

/// The plan in force and its counters, one per process.
class Faults {
 public:
  /// Reads SOFTRDMA_FAULTS and SOFTRDMA_SEED at first use; a wrong spec ends the process with one
  /// line, status 2.
  static Faults& instance() noexcept;

  /// Plans are never freed (a test sets a few dozen), so a reader needs no lock.
  [[nodiscard]] const FaultPlan& plan() const noexcept {
    return *plan_.load(
        std::memory_order_acquire);  // (F1) acquire: pairs with release (F2) in set()
  }
  void set(const FaultPlan& plan);

  /// True when this call of `point` is one that the plan wants to fail; errno is then ENOMEM.
  [[nodiscard]] bool fails(FaultPoint point) noexcept;
  [[nodiscard]] std::uint64_t calls(std::string_view point) const noexcept;
  [[nodiscard]] std::uint64_t seed() const noexcept { return plan().seed; }
  /// A stream of its own for each object, so that threads do not disturb each other's decisions.
  [[nodiscard]] Random stream(std::uint32_t kind, std::uint64_t ordinal) const noexcept;
  void count() noexcept { injected_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t injected() const noexcept {
    return injected_.load(std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> connections{0};  // ordinal of the next connection, for its stream
  std::atomic<std::uint64_t> accepted{0};     // the same, of those that came from a listener
  std::atomic<std::uint64_t> polled{0};
  std::atomic<std::uint64_t> notified{0};

 private:
  Faults();
  std::atomic<const FaultPlan*> plan_;
  std::atomic<std::uint64_t> any_calls_{0};
  std::atomic<std::uint64_t> point_calls_[kFaultPoints] = {};
  std::atomic<std::uint64_t> injected_{0};
};

}  // namespace softrdma
