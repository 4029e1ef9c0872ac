// SPDX-License-Identifier: BSD-3-Clause
#include "summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace replicate {
namespace {

constexpr std::array<std::pair<const char*, double>, 4> kPercentiles{
    {{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1.0}}};

double per_second(double amount, double seconds) {
  return seconds > 0 ? amount / seconds : 0;
}

std::string to_text(const Load& load) {
  std::string text =
      fmt::format("{} polls ({} empty), {} wakes, {} sleeps, {} completions; workers", load.polls,
                  load.empty_polls, load.wakes, load.sleeps, load.completions);
  for (std::uint32_t i = 0; i < load.workers; ++i) text += fmt::format(" {}", load.handled[i]);
  return text + fmt::format(" ({} wakes)", load.worker_wakes);
}

std::string verdict(const Summary::Replica& replica) {
  if (replica.report && replica.report->outcome == Report::Outcome::identical) return "identical";
  if (replica.report && replica.report->outcome == Report::Outcome::differs) return "DIFFERS";
  return fmt::format("lost after {} records: {}", replica.appended,
                     replica.lost.empty() ? "no report" : replica.lost);
}

std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      json += fmt::format("\\{}", c);
    else if (code < 0x20)
      json += fmt::format("\\u{:04x}", code);
    else
      json += c;
  }
  return json + '"';
}

std::string to_json(const Load& load) {
  return fmt::format(
      R"({{"polls": {}, "empty_polls": {}, "sleeps": {}, "wakes": {}, "worker_wakes": {}, )"
      R"("completions": {}, "workers": [{}]}})",
      load.polls, load.empty_polls, load.sleeps, load.wakes, load.worker_wakes, load.completions,
      fmt::join(load.handled.begin(), load.handled.begin() + load.workers, ", "));
}

std::string to_json(const Summary::Replica& replica) {
  std::string json = fmt::format(
      R"({{"name": {}, "appended": {}, "identical": {}, "lost": {})", quoted(replica.name),
      replica.appended, replica.report && replica.report->outcome == Report::Outcome::identical,
      replica.lost.empty() ? "null" : quoted(replica.lost));
  if (replica.report && replica.report->outcome != Report::Outcome::failed)
    json += fmt::format(R"(, "sha256": "{}")", to_hex(replica.report->digest));
  if (!replica.copy.empty()) json += fmt::format(R"(, "copy": {})", quoted(replica.copy));
  if (replica.report) json += fmt::format(R"(, "load": {})", to_json(replica.report->load));
  return json + "}";
}

}  // namespace

Load load_of(const sluice::DispatcherCounters& counters) {
  Load load;
  for (const auto& poller : counters.pollers) {
    load.polls += poller.polls;
    load.empty_polls += poller.empty_polls;
    load.sleeps += poller.sleeps;
    load.wakes += poller.wakes;
    load.completions += poller.completions;
  }
  load.workers = static_cast<std::uint32_t>(std::min(counters.workers.size(), Load::kWorkersMax));
  for (std::uint32_t i = 0; i < load.workers; ++i) {
    load.worker_wakes += counters.workers[i].wakes;
    load.handled[i] = counters.workers[i].completions;
  }
  return load;
}

std::string to_text(const Summary& summary, const Options& options) {
  std::string text;
  const auto out = std::back_inserter(text);
  const double seconds = summary.seconds;
  const double megabytes = static_cast<double>(summary.input_bytes) / 1e6;
  fmt::format_to(out, "committed   {} of {} records on {} of {} replicas", summary.committed,
                 summary.records, *options.quorum, options.replicas);
  if (summary.committed == summary.records && seconds > 0)
    fmt::format_to(out, " in {:.3f} s: {:.0f} records/s, {:.1f} MB/s", seconds,
                   per_second(static_cast<double>(summary.records), seconds),
                   per_second(megabytes, seconds));
  fmt::format_to(out, "\nlatency    ");
  for (const auto& [name, fraction] : kPercentiles)
    fmt::format_to(out, " {} {} ", name, human_time(summary.latencies.percentile(fraction)));
  fmt::format_to(out, "  (sent to quorum)\n");
  if (options.role == Role::all)
    fmt::format_to(out, "durability  {}\n",
                   options.fsync ? "fdatasync before each acknowledgement: survives a power cut"
                                 : "in the replicas' page cache: survives a killed process, "
                                   "not a power cut (--fsync does)");
  fmt::format_to(out, "primary     {}\n", to_text(summary.load));
  for (std::size_t i = 0; i < summary.replicas.size(); ++i)
    if (const auto& report = summary.replicas[i].report)
      fmt::format_to(out, "replica {:<3} {}\n", i, to_text(report->load));
  if (summary.input_digest)
    fmt::format_to(out, "sha256      {}  {}\n", to_hex(*summary.input_digest), summary.input_path);
  for (const auto& replica : summary.replicas) {
    const bool has_digest = replica.report && replica.report->outcome != Report::Outcome::failed;
    fmt::format_to(out, "            {}  {}{}{}  {}\n",
                   has_digest ? to_hex(replica.report->digest) : std::string(64, '-'), replica.name,
                   replica.copy.empty() ? "" : "  ", replica.copy, verdict(replica));
  }
  return text;
}

std::string to_json(const Summary& summary, const Options& options) {
  const auto us = [&](double fraction) {
    return static_cast<double>(summary.latencies.percentile(fraction)) / 1e3;
  };
  std::string json = "{\n";
  const auto out = std::back_inserter(json);
  fmt::format_to(out, "  \"input\": {{\"path\": {}, \"bytes\": {}, \"sha256\": {}}},\n",
                 quoted(summary.input_path), summary.input_bytes,
                 summary.input_digest ? quoted(to_hex(*summary.input_digest)) : "null");
  fmt::format_to(
      out,
      "  \"config\": {{\"replicas\": {}, \"quorum\": {}, \"connections\": {}, \"window\": {}, "
      "\"record_size\": {}, \"workers\": {}, \"pollers\": {}, \"wait\": \"{}\", \"fsync\": {}}},\n",
      options.replicas, *options.quorum, options.connections, options.effective_window(),
      options.record_size, options.workers, options.pollers, sluice::to_string(options.wait),
      options.fsync);
  fmt::format_to(out, "  \"failure\": {},\n",
                 summary.failure.empty() ? "null" : quoted(summary.failure));
  fmt::format_to(out, "  \"records\": {}, \"committed\": {}, \"seconds\": {:.6f},\n",
                 summary.records, summary.committed, summary.seconds);
  fmt::format_to(out, "  \"records_per_second\": {:.1f}, \"megabytes_per_second\": {:.2f},\n",
                 per_second(static_cast<double>(summary.committed), summary.seconds),
                 per_second(static_cast<double>(summary.input_bytes) / 1e6, summary.seconds));
  fmt::format_to(out,
                 "  \"commit_latency_us\": {{\"p50\": {:.1f}, \"p99\": {:.1f}, \"p99.9\": {:.1f}, "
                 "\"max\": {:.1f}}},\n",
                 us(0.5), us(0.99), us(0.999), us(1.0));
  fmt::format_to(out, "  \"primary\": {},\n  \"replicas\": [", to_json(summary.load));
  for (std::size_t i = 0; i < summary.replicas.size(); ++i)
    fmt::format_to(out, "{}\n    {}", i == 0 ? "" : ",", to_json(summary.replicas[i]));
  return json + "\n  ]\n}\n";
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return value == static_cast<std::uint64_t>(value) ? fmt::format("{:.0f} {}", value, unit)
                                                    : fmt::format("{:.1f} {}", value, unit);
}

std::string human_time(std::uint64_t nanoseconds) {
  const double value = static_cast<double>(nanoseconds);
  if (value < 1e3) return fmt::format("{} ns", nanoseconds);
  if (value < 1e6) return fmt::format("{:.3g} us", value / 1e3);
  if (value < 1e9) return fmt::format("{:.3g} ms", value / 1e6);
  return fmt::format("{:.3g} s", value / 1e9);
}

}  // namespace replicate
