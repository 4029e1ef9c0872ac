// SPDX-License-Identifier: BSD-3-Clause
#include "load.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace demo {

using sluice::Result;
using sluice::Status;
using sluice::StatusCode;

Result<Load> Load::start(const Options& options, std::uint16_t port, std::uint64_t requests,
                         std::string log) {
  constexpr int kKeys = 100'000;
  auto process =
      Child::start({"redis-benchmark", "-h", "127.0.0.1", "-p", fmt::to_string(port), "-t", "set",
                    "-n", fmt::to_string(requests), "-c", fmt::to_string(options.clients), "-d",
                    fmt::to_string(options.bytes), "-r", fmt::to_string(kKeys), "--csv"},
                   log);
  if (!process) return process.status();
  return Load(std::move(*process), std::move(log));
}

Result<LoadResult> Load::result(Interrupts& interrupts) {
  auto status = process_.wait(interrupts, kLimit);
  if (!status) return status.status();
  std::ifstream file(log_);
  const std::string said(std::istreambuf_iterator<char>(file), {});
  // "test","rps","avg_latency_ms","min..","p50..","p95..","p99..","max..", then the same of SET.
  LoadResult result;
  const std::size_t line = said.find("\"SET\"");
  if (*status != 0 || line == std::string::npos ||
      std::sscanf(said.c_str() + line,
                  "\"SET\",\"%lf\",\"%*[^\"]\",\"%*[^\"]\",\"%lf\",\"%*[^\"]\",\"%lf\"",
                  &result.per_second, &result.p50_ms, &result.p99_ms) != 3)
    return Status(StatusCode::internal,
                  fmt::format("redis-benchmark ended with status {} and said: {}", *status, said));
  return result;
}

Status Load::wait_until_it_gave_up(Interrupts& interrupts) {
  return process_.wait(interrupts, kLimit).status();
}

}  // namespace demo
