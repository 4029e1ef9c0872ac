// SPDX-License-Identifier: BSD-3-Clause
#include "faults.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace softrdma {
namespace {

constexpr const char* kPointNames[] = {
    "open_device", "alloc_pd",   "reg_mr",       "create_comp_channel",
    "create_cq",   "create_srq", "create_qp",    "create_event_channel",
    "create_id",   "bind_addr",  "resolve_addr", "resolve_route",
    "listen",      "connect",    "accept",       "migrate_id",
    "post_send",   "post_recv"};
static_assert(std::size(kPointNames) == kFaultPoints);

bool parse_number(std::string_view text, std::uint64_t& out) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

bool parse_range(std::string_view text, Range& out) noexcept {
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) {
    if (!parse_number(text, out.high)) return false;
    out.low = out.high;
    return true;
  }
  return parse_number(text.substr(0, dash), out.low) &&
         parse_number(text.substr(dash + 1), out.high) && out.low <= out.high;
}

constexpr std::string_view kKnown =
    "delay_us, reorder, drop_after, coalesce_events, spurious_events, withhold_flush, "
    "withhold_last_wqe, "
    "cq_error_after, fail_notify_after, fail_poll_after, rnr_delay_us, reuse_qp_numbers, "
    "poison_failed_wc, fail_any, "
    "fail_<point>";

std::string parse_item(std::string_view item, FaultPlan& plan) {
  const auto equals = item.find('=');
  const std::string_view key = item.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
  const auto wrong = [&](std::string_view want) {
    return "fault '" + std::string(key) + "' wants " + std::string(want) + ", not '" +
           std::string(value) + "'";
  };
  const auto percent = [&](std::uint32_t& out) -> std::string {
    std::uint64_t number = 0;
    if (!parse_number(value, number) || number > 100) return wrong("a percentage 0-100");
    out = static_cast<std::uint32_t>(number);
    return {};
  };
  const auto range = [&](Range& out, std::uint64_t max, std::string_view want) -> std::string {
    return parse_range(value, out) && out.high <= max ? std::string{} : wrong(want);
  };
  const auto flag = [&](bool& out) -> std::string {
    if (value != "0" && value != "1") return wrong("0 or 1");
    out = value == "1";
    return {};
  };
  const auto count = [&](std::uint64_t& out) -> std::string {
    return parse_number(value, out) && out > 0 ? std::string{} : wrong("a count of 1 or more");
  };
  constexpr std::uint64_t kMaxDelayUs = 10'000'000;
  if (key == "delay_us")
    return range(plan.delay_us, kMaxDelayUs, "microseconds N or LOW-HIGH up to 10000000");
  if (key == "rnr_delay_us")
    return range(plan.rnr_delay_us, kMaxDelayUs, "microseconds N or LOW-HIGH up to 10000000");
  if (key == "reorder") return percent(plan.reorder_percent);
  if (key == "drop_after")
    return range(plan.drop_after, UINT64_MAX, "a number of messages N or LOW-HIGH");
  if (key == "coalesce_events") return percent(plan.coalesce_percent);
  if (key == "spurious_events") return percent(plan.spurious_percent);
  if (key == "withhold_flush") return flag(plan.withhold_flush);
  if (key == "withhold_last_wqe") return flag(plan.withhold_last_wqe);
  if (key == "cq_error_after") return count(plan.cq_error_after);
  if (key == "fail_notify_after") return count(plan.fail_notify_after);
  if (key == "fail_poll_after") return count(plan.fail_poll_after);
  if (key == "reuse_qp_numbers") return flag(plan.reuse_qp_numbers);
  if (key == "poison_failed_wc") return flag(plan.poison_failed_wc);
  if (key == "fail_any") return count(plan.fail_any);
  if (key.starts_with("fail_")) {
    for (std::size_t i = 0; i < kFaultPoints; ++i) {
      if (key.substr(5) == kPointNames[i]) return count(plan.fail_point[i]);
    }
    std::string message = "unknown fault point '" + std::string(key.substr(5)) + "'; there are:";
    for (const char* name : kPointNames) message += std::string(" ") + name;
    return message;
  }
  return "unknown fault '" + std::string(key) + "'; there are: " + std::string(kKnown);
}

}  // namespace

std::uint64_t Random::next() noexcept {
  state_ += 0x9E3779B97F4A7C15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::uint64_t Random::between(std::uint64_t low, std::uint64_t high) noexcept {
  const std::uint64_t width = high - low + 1;
  return width == 0 ? next() : low + next() % width;
}

const char* fault_point_name(FaultPoint point) noexcept {
  return kPointNames[static_cast<std::size_t>(point)];
}

std::string parse_faults(std::string_view spec, std::uint64_t seed, FaultPlan& plan) {
  plan = FaultPlan{};
  plan.seed = seed;
  while (!spec.empty()) {
    const auto comma = spec.find(',');
    const std::string_view item = spec.substr(0, comma);
    spec = comma == std::string_view::npos ? std::string_view{} : spec.substr(comma + 1);
    if (item.empty()) return "empty item in the fault spec (a stray comma?)";
    if (std::string error = parse_item(item, plan); !error.empty()) return error;
    plan.any = true;
  }
  return {};
}

Faults::Faults() : plan_(new FaultPlan) {
  const char* seed_text = std::getenv("SOFTRDMA_SEED");
  const char* spec = std::getenv("SOFTRDMA_FAULTS");
  std::uint64_t seed = 0;
  std::string error;
  FaultPlan plan;
  if (seed_text != nullptr && *seed_text != '\0' && !parse_number(seed_text, seed)) {
    error = std::string("SOFTRDMA_SEED wants a number, not '") + seed_text + "'";
  } else {
    error = parse_faults(spec != nullptr ? spec : "", seed, plan);
  }
  if (!error.empty()) {
    std::fprintf(stderr, "softrdma: %s\n", error.c_str());
    ::_exit(2);
  }
  set(plan);
}

Faults& Faults::instance() noexcept {
  static Faults* const faults =
      new Faults;  // never destroyed: the engine's thread may outlive static destructors
  return *faults;
}

void Faults::set(const FaultPlan& plan) {
  const auto* fresh = new FaultPlan(plan);
  any_calls_.store(0, std::memory_order_relaxed);
  for (auto& calls : point_calls_) calls.store(0, std::memory_order_relaxed);
  connections.store(0, std::memory_order_relaxed);
  accepted.store(0, std::memory_order_relaxed);
  polled.store(0, std::memory_order_relaxed);
  notified.store(0, std::memory_order_relaxed);
  // Plans stay reachable, so that a leak checker does not count them.
  static std::atomic<std::size_t> kept_count{0};
  static const FaultPlan* kept[4096];
  kept[kept_count.fetch_add(1, std::memory_order_relaxed) % std::size(kept)] = plan_.exchange(
      fresh, std::memory_order_acq_rel);  // (F2) release: pairs with acquire (F1) in plan()
}

bool Faults::fails(FaultPoint point) noexcept {
  const auto index = static_cast<std::size_t>(point);
  const std::uint64_t here = point_calls_[index].fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint64_t all = any_calls_.fetch_add(1, std::memory_order_relaxed) + 1;
  const FaultPlan& now = plan();
  if (now.fail_point[index] != here && now.fail_any != all) return false;
  count();
  errno = ENOMEM;
  return true;
}

std::uint64_t Faults::calls(std::string_view point) const noexcept {
  if (point == "any") return any_calls_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < kFaultPoints; ++i) {
    if (point == kPointNames[i]) return point_calls_[i].load(std::memory_order_relaxed);
  }
  return UINT64_MAX;
}

Random Faults::stream(std::uint32_t kind, std::uint64_t ordinal) const noexcept {
  Random mixer(seed() * 0x9E3779B97F4A7C15ULL + kind);
  return Random(mixer.next() ^ (ordinal * 0xD1B54A32D192ED03ULL));
}

}  // namespace softrdma
