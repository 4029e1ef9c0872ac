// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace sluice {

/// Decides how long a thread that has run out of work goes on looking before it blocks: ski rental
/// with what it has learnt (C5).
///
/// A *gap* is the time from running out of work to the next work. Spinning through a gap g costs g
/// of CPU; blocking costs C, a wake: the system calls of going to sleep and coming back, and the
/// latency that the wake adds. So a limit t costs g where g <= t, else t + C; who knew the gap
/// beforehand would pay min(g, C).
///
/// What it knows: when the work ran out, when spinning found some, when it blocked and came back.
/// A completion carries no time, so the gap of a block is the wake's time less the learnt latency.
///
/// How it decides: a gap has a context, the size of the gap before it. In each context each of 38
/// limits {0, C/64 .. 8C} keeps what it would have cost, discounted with the gaps; the cheapest is
/// played (follow the leader). The guard keeps the cost A that was incurred (where the guard drew
/// the limit: that draw's expectation) and F, what the randomised policy of Karlin, Manasse,
/// McGeoch and Owicki ("Competitive randomized algorithms for nonuniform problems", 1990/1994),
/// limit C ln(1 + U(e - 1)), is expected to cost: e / (e - 1) min(g, C). While A > 1.02 F + 20 C
/// the guard draws the limit by that policy.
///
/// Bound, whatever the gaps are, where there is no CPU cap and limit_max is 8:
///   E[cost] <= 1.02 e / (e - 1) sum of min(g, C) + 29 C       (1.614 times the clairvoyant's)
/// Proof. D = A - 1.02 F, which starts at 0. Where the leader is played, D <= 20 C before, and a
/// gap adds at most 8 C + C to A, so D <= 29 C after. Where the guard draws, A and F grow by the
/// same, so D does not grow. So D <= 29 C at all times. A differs from the cost by draws less their
/// expectations, which is zero in expectation: a draw is independent of all that came before it,
/// and of the gap, which the adversary fixes without knowing it. Nothing that the leader learns,
/// right or wrong, enters the bound. D is never let fall below -100 C, so that a good past is no
/// licence to lose: that makes D larger only, so the bound stands, and over any stretch of gaps it
/// holds with 129 C. If C moves (it is learnt), each gap and cost is counted in units of the C of
/// its time; a gap with a block is what the controller takes it for. No online policy can promise
/// less than e / (e - 1) = 1.582, and none beats it where gaps are exponential with mean C.
///
/// With a latency target, C is overhead + w latency, and w in [1, 64] moves such that what waiting
/// adds to an arrival is, averaged over some 64 of them, within the target; the bound is then one
/// on that weighted cost. Where w = 64 does not do, the target is out of reach and the thread
/// sleeps (a thread that gets one arrival a second does). With a CPU cap the thread never spins at
/// an instant before which it was awake, in 100 ms, for more than the cap (to within one look);
/// only work itself can go beyond. Latency is then best effort.
///
/// Thread-safety: none; one per thread. No allocation. Deterministic: the same calls, the same
/// answers. Cost: some 30 ns per gap, beside the caller's looks at the clock. Times are nanoseconds
/// of any one clock that does not go backwards.
class WaitController {
 public:
  static constexpr std::size_t kLimits = 38;
  static constexpr double kLimitMax = 8.0;  ///< the longest limit, in wakes
  /// A limit_max for threads that share a CPU with another one.
  static constexpr double kSharedLimitMax = 0.125;
  static constexpr std::int64_t kCapWindowNs = 100'000'000;
  /// The additive constant of the bound, in wakes, and its factor.
  static constexpr double kGuardFactor = 1.02;
  static constexpr double kGuardSlack = 20.0;
  static constexpr double kBoundSlack = kGuardSlack + kLimitMax + 1.0;
  static constexpr double kGuardCredit = 100.0;

  struct Counters {
    std::uint64_t gaps = 0;            ///< ended by work
    std::uint64_t found_spinning = 0;  ///< of which without a sleep
    std::uint64_t spun_ns = 0;         ///< time spent looking for work and finding none
    std::uint64_t wasted_ns = 0;       ///< of which before a sleep
    std::uint64_t capped = 0;          ///< looks after which the CPU cap alone forbade another
  };

  struct Settings {
    std::optional<std::int64_t> latency_target_ns = std::nullopt;  ///< > 0
    std::optional<double> cpu_cap = std::nullopt;                  ///< of one CPU; 0..1
    /// The longest limit that may be played, in wakes; where threads outnumber CPUs spinning steals
    /// the time slice of the thread that one waits for. Below kLimitMax the bound does not hold.
    double limit_max = kLimitMax;
    std::int64_t wake_latency_ns = 25'000;   ///< until it is learnt
    std::int64_t block_overhead_ns = 5'000;  ///< likewise
    std::uint64_t seed = 1;
  };

  explicit WaitController(const Settings& settings) noexcept;

  // --- what the thread tells, in this order: (idle* [blocked woke]*)* worked --------------------

  /// A look found nothing. True: look again; false: block.
  [[nodiscard]] bool idle(std::int64_t now_ns) noexcept;
  /// It goes to sleep now. (Whatever idle() said: a host decides for itself.)
  void blocked(std::int64_t now_ns) noexcept;
  /// It is back. That is no sample: there may be nothing (a stale event).
  void woke(std::int64_t now_ns) noexcept;
  /// A look found work. Only after idle() or woke(): `is_idle()`.
  void worked(std::int64_t now_ns) noexcept;

  /// Between the first look that found nothing and the next work.
  [[nodiscard]] bool is_idle() const noexcept { return idle_; }

  // --- what a wake costs ------------------------------------------------------------------------

  /// From an event to its thread running again: a sample. The median of the last 31 counts.
  void note_wake_latency(std::int64_t latency_ns) noexcept;
  /// CPU time of going to sleep and coming back, without the sleep: a sample, likewise.
  void note_block_overhead(std::int64_t overhead_ns) noexcept;

  /// Settings::limit_max, where it is known only later.
  void cap_limit(double limit_max) noexcept;

  // --- what it thinks ---------------------------------------------------------------------------

  /// Of the present gap, or of the next one.
  [[nodiscard]] std::int64_t spin_limit_ns() const noexcept { return limit_ns_; }
  /// C, weighted by the latency target.
  [[nodiscard]] std::int64_t wake_cost_ns() const noexcept {
    return static_cast<std::int64_t>(wake_cost_ns_);
  }
  [[nodiscard]] std::int64_t wake_latency_ns() const noexcept { return latency_.median(); }
  [[nodiscard]] double latency_weight() const noexcept { return weight_; }
  [[nodiscard]] bool guarded() const noexcept { return guarded_; }
  [[nodiscard]] const Counters& counters() const noexcept { return count_; }

 private:
  /// The median of the last samples.
  class Median {
   public:
    explicit Median(std::int64_t initial) noexcept : median_(initial) {}
    void add(std::int64_t sample) noexcept;
    [[nodiscard]] std::int64_t median() const noexcept { return median_; }

   private:
    static constexpr std::size_t kSamples = 31;
    std::array<std::int64_t, kSamples> samples_{};
    std::size_t count_ = 0;
    std::int64_t median_;
  };

  /// How long the thread was awake in the last 100 ms, at a grain of 1 ms, rounded up.
  class AwakeWindow {
   public:
    void awake(std::int64_t from_ns, std::int64_t to_ns) noexcept;
    [[nodiscard]] std::int64_t sum_ns(std::int64_t now_ns) noexcept;

   private:
    static constexpr std::int64_t kGrainNs = 1'000'000;
    static constexpr std::size_t kGrains = kCapWindowNs / kGrainNs + 1;
    void advance(std::int64_t to_grain) noexcept;
    std::array<std::int64_t, kGrains> awake_{};
    std::int64_t grain_ = 0;  ///< the newest one
    std::int64_t sum_ = 0;
  };

  static constexpr std::size_t kContexts = 4;
  static constexpr std::size_t kLanes = 40;  ///< limits, rounded up for vector instructions
  struct Context {
    alignas(16) std::array<float, kLanes> costs;
    std::size_t best;
  };

  void begin_gap(std::int64_t now_ns) noexcept;
  void account(std::int64_t now_ns) noexcept;
  [[nodiscard]] bool within_cap(std::int64_t now_ns) noexcept;
  void learn(double gap, bool blocked) noexcept;
  void charge(Context& context, float gap) noexcept;
  [[nodiscard]] std::size_t cheapest(const Context& context) const noexcept;
  void choose_limit() noexcept;
  void follow_target(bool blocked) noexcept;
  void update_wake_cost() noexcept;
  [[nodiscard]] double uniform() noexcept;

  Settings settings_;
  std::size_t allowed_ = kLimits;  ///< limits up to Settings::limit_max
  std::array<Context, kContexts> contexts_;
  std::size_t context_ = 1;

  Median latency_;
  Median overhead_;
  double wake_cost_ns_ = 1;
  double weight_ = 1;         ///< w: of latency against CPU time
  double added_latency_ = 0;  ///< mean over the last arrivals, ns

  double limit_ = 0;   ///< in wakes
  double excess_ = 0;  ///< D, in wakes
  bool guarded_ = false;

  bool idle_ = false;
  bool slept_ = false;  ///< in this gap
  std::int64_t gap_began_ns_ = 0;
  std::int64_t spun_until_ns_ = 0;  ///< when it was last seen that there is nothing
  std::int64_t step_ns_ = 0;        ///< between the last two looks
  std::int64_t woke_ns_ = 0;
  std::int64_t limit_ns_ = 0;

  static constexpr std::int64_t kNever = INT64_MIN;
  AwakeWindow window_;
  std::int64_t accounted_ns_ = kNever;  ///< window_ holds what was awake until here
  Counters count_;
  std::uint64_t random_;
};

}  // namespace sluice
