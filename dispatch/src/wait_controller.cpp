// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/dispatch/wait_controller.hpp"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

/// Per gap of a context: a half-life of 96.
constexpr float kKeep = 0.99280574F;
/// With each gap, a context is charged this much of a gap of which nothing is known. It decides
/// where what was seen leaves limits equal, and soon nothing else.
constexpr float kPriorWeight = 0.005F;
/// e / (e - 1): the randomised policy's expected cost over the clairvoyant's.
constexpr double kE = 2.718281828459045;
constexpr double kRandomised = kE / (kE - 1);
constexpr double kWeightMax = 64;
/// How far the weight of latency moves with an arrival: it doubles in some 15.
constexpr double kWeightStep = 1.05;
/// Arrivals that the mean of the added latency is taken over.
constexpr double kTargetArrivals = 64;

/// Four floats at once, on any CPU (a vector extension of GCC and clang).
using Vector = float __attribute__((vector_size(16), may_alias));
constexpr std::size_t kWidth = sizeof(Vector) / sizeof(float);

struct Grid {
  std::array<float, 40> limit{};
  std::array<float, 40> prior{};
};

/// 0, then four to the octave from 1/64 to 8, in wakes. What fills up the last vector never wins.
constexpr Grid make_grid() noexcept {
  constexpr double kQuarterOctave = 1.189207115002721;
  constexpr double kTwentiethOctave = 1.0352649238413776;
  Grid grid;
  double limit = 1.0 / 64;
  for (std::size_t i = 1; i < WaitController::kLimits; ++i, limit *= kQuarterOctave) {
    grid.limit[i] = static_cast<float>(limit);
  }
  // Of which nothing is known: as likely in each octave from 1/64 to 64.
  constexpr int kSteps = 12 * 20;
  for (std::size_t i = 0; i < WaitController::kLimits; ++i) {
    double sum = 0;
    double gap = 1.0 / 64;
    for (int step = 0; step < kSteps; ++step, gap *= kTwentiethOctave) {
      sum += gap <= double{grid.limit[i]} ? gap : double{grid.limit[i]} + 1;
    }
    grid.prior[i] = static_cast<float>(sum / kSteps);
  }
  for (std::size_t i = WaitController::kLimits; i < grid.limit.size(); ++i) {
    grid.limit[i] = grid.prior[i] = 1e6F;
  }
  return grid;
}

alignas(sizeof(Vector)) constexpr Grid kGrid = make_grid();

Vector load(const float* from) noexcept {
  return *reinterpret_cast<const Vector*>(from);
}

std::size_t context_of(double gap) noexcept {
  return gap < 0.25 ? 0 : gap < 1 ? 1 : gap < 4 ? 2 : 3;
}

}  // namespace

WaitController::WaitController(const Settings& settings) noexcept
    : settings_(settings),
      latency_(settings.wake_latency_ns),
      overhead_(settings.block_overhead_ns),
      random_(settings.seed) {
  for (Context& context : contexts_) context.costs = kGrid.prior;
  update_wake_cost();
  cap_limit(settings.limit_max);
}

// --- the course of a gap
// ---------------------------------------------------------------------------------------

bool WaitController::idle(std::int64_t now_ns) noexcept {
  if (!idle_) {
    begin_gap(now_ns);
  } else if (!slept_) {
    step_ns_ = now_ns - spun_until_ns_;
    spun_until_ns_ = now_ns;
  }
  if (slept_ || now_ns - gap_began_ns_ >= limit_ns_) return false;
  return !settings_.cpu_cap || within_cap(now_ns);
}

void WaitController::begin_gap(std::int64_t now_ns) noexcept {
  idle_ = true;
  slept_ = false;
  gap_began_ns_ = spun_until_ns_ = now_ns;
}

void WaitController::blocked(std::int64_t now_ns) noexcept {
  if (!idle_) begin_gap(now_ns);
  if (!slept_) {
    count_.spun_ns += static_cast<std::uint64_t>(now_ns - gap_began_ns_);
    count_.wasted_ns += static_cast<std::uint64_t>(now_ns - gap_began_ns_);
  }
  if (settings_.cpu_cap) account(now_ns);
  spun_until_ns_ = std::max(spun_until_ns_, now_ns);
  slept_ = true;
}

void WaitController::woke(std::int64_t now_ns) noexcept {
  woke_ns_ = accounted_ns_ = now_ns;
}

void WaitController::worked(std::int64_t now_ns) noexcept {
  if (!idle_) return;
  idle_ = false;
  ++count_.gaps;
  std::int64_t gap_ns = now_ns - gap_began_ns_;
  if (slept_) {
    // It came after the last look that found nothing, and before the wake by some latency.
    gap_ns = std::max(spun_until_ns_, woke_ns_ - latency_.median()) - gap_began_ns_;
  } else {
    ++count_.found_spinning;
    count_.spun_ns += static_cast<std::uint64_t>(gap_ns);
  }
  learn(static_cast<double>(gap_ns) / wake_cost_ns_, slept_);
}

// --- learning
// ---------------------------------------------------------------------------------------

/// `gap` in wakes.
void WaitController::learn(double gap, bool blocked) noexcept {
  const double least = std::min(gap, 1.0);
  const double played = blocked || gap > limit_ ? limit_ + 1 : gap;
  excess_ += (guarded_ ? kRandomised * least : played) - kGuardFactor * kRandomised * least;
  excess_ = std::max(excess_, -kGuardCredit);
  charge(contexts_[context_], static_cast<float>(gap));
  context_ = context_of(gap);
  if (settings_.latency_target_ns) follow_target(blocked);
  choose_limit();
}

std::size_t WaitController::cheapest(const Context& context) const noexcept {
  const auto* const begin = context.costs.data();
  return static_cast<std::size_t>(std::min_element(begin, begin + allowed_) - begin);
}

/// What each limit would have cost; and which one is the cheapest now.
void WaitController::charge(Context& context, float gap) noexcept {
  const Vector gaps = Vector{} + gap;
  Vector least = Vector{} + 1e30F;
  for (std::size_t i = 0; i < kLanes; i += kWidth) {
    const Vector limit = load(&kGrid.limit[i]);
    const Vector cost = gaps <= limit ? gaps : limit + 1.0F;
    auto& sum = *reinterpret_cast<Vector*>(&context.costs[i]);
    sum = sum * kKeep + cost + kPriorWeight * load(&kGrid.prior[i]);
    least = sum < least ? sum : least;
  }
  if (allowed_ < kLimits) {
    context.best = cheapest(context);
    return;
  }
  const float smallest = std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
  if (context.costs[context.best] == smallest) return;  // mostly
  context.best = 0;
  while (context.costs[context.best] != smallest) ++context.best;
}

void WaitController::cap_limit(double limit_max) noexcept {
  settings_.limit_max = std::clamp(limit_max, 0.0, kLimitMax);
  allowed_ = 1;  // not to spin at all
  while (allowed_ < kLimits && double{kGrid.limit[allowed_]} <= settings_.limit_max) ++allowed_;
  for (Context& context : contexts_) context.best = cheapest(context);
  choose_limit();
}

void WaitController::choose_limit() noexcept {
  guarded_ = excess_ > kGuardSlack;
  limit_ =
      guarded_ ? std::log1p(uniform() * (kE - 1)) : double{kGrid.limit[contexts_[context_].best]};
  limit_ = std::min(limit_, settings_.limit_max);
  limit_ns_ = static_cast<std::int64_t>(limit_ * wake_cost_ns_);
}

/// splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014), as a
/// number in [0, 1).
double WaitController::uniform() noexcept {
  random_ += 0x9E3779B97F4A7C15U;
  std::uint64_t z = random_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

// --- the latency target
// ---------------------------------------------------------------------------------------

void WaitController::follow_target(bool blocked) noexcept {
  const auto target = static_cast<double>(*settings_.latency_target_ns);
  const double added = blocked ? static_cast<double>(latency_.median()) : 0;
  added_latency_ += (added - added_latency_) / kTargetArrivals;
  weight_ = added_latency_ > target ? weight_ * kWeightStep : weight_ / kWeightStep;
  weight_ = std::clamp(weight_, 1.0, kWeightMax);
  update_wake_cost();
}

// --- what a wake costs
// ---------------------------------------------------------------------------------------

void WaitController::update_wake_cost() noexcept {
  wake_cost_ns_ = std::max(1.0, static_cast<double>(overhead_.median()) +
                                    weight_ * static_cast<double>(latency_.median()));
}

void WaitController::note_wake_latency(std::int64_t latency_ns) noexcept {
  latency_.add(latency_ns);
  update_wake_cost();
}

void WaitController::note_block_overhead(std::int64_t overhead_ns) noexcept {
  overhead_.add(overhead_ns);
  update_wake_cost();
}

void WaitController::Median::add(std::int64_t sample) noexcept {
  samples_[count_++ % kSamples] = std::max<std::int64_t>(sample, 0);
  std::array<std::int64_t, kSamples> sorted = samples_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count_, kSamples) / 2);
  std::nth_element(sorted.begin(), middle,
                   sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count_, kSamples)));
  median_ = *middle;
}

// --- the CPU cap
// ---------------------------------------------------------------------------------------

/// Counts the time since the last call as awake.
void WaitController::account(std::int64_t now_ns) noexcept {
  if (accounted_ns_ != kNever) window_.awake(accounted_ns_, now_ns);
  accounted_ns_ = now_ns;
}

/// One step ahead, so that it is not found out too late that the cap is reached.
bool WaitController::within_cap(std::int64_t now_ns) noexcept {
  account(now_ns);
  const double budget_ns = *settings_.cpu_cap * static_cast<double>(kCapWindowNs);
  if (static_cast<double>(window_.sum_ns(now_ns) + step_ns_) < budget_ns) return true;
  ++count_.capped;
  return false;
}

void WaitController::AwakeWindow::advance(std::int64_t to_grain) noexcept {
  if (to_grain - grain_ >= static_cast<std::int64_t>(kGrains)) {
    awake_.fill(0);
    sum_ = 0;
    grain_ = to_grain;
  }
  while (grain_ < to_grain) {  // bound: kGrains
    auto& oldest = awake_[static_cast<std::size_t>(++grain_) % kGrains];
    sum_ -= oldest;
    oldest = 0;
  }
}

void WaitController::AwakeWindow::awake(std::int64_t from_ns, std::int64_t to_ns) noexcept {
  from_ns = std::max(from_ns, to_ns - static_cast<std::int64_t>(kGrains) * kGrainNs);
  while (from_ns < to_ns) {  // bound: kGrains and one
    const std::int64_t grain = from_ns / kGrainNs;
    const std::int64_t end_ns = std::min(to_ns, (grain + 1) * kGrainNs);
    advance(grain);
    awake_[static_cast<std::size_t>(grain) % kGrains] += end_ns - from_ns;
    sum_ += end_ns - from_ns;
    from_ns = end_ns;
  }
}

std::int64_t WaitController::AwakeWindow::sum_ns(std::int64_t now_ns) noexcept {
  advance(now_ns / kGrainNs);
  return sum_;
}

}  // namespace sluice
