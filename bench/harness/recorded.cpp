// SPDX-License-Identifier: BSD-3-Clause
#include "recorded.hpp"

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace sluice::bench {
namespace {

constexpr std::size_t kShownMax = 40;  ///< characters of a bad line

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace

std::string recorded_name(std::string_view path) {
  std::string name = std::filesystem::path(path).stem().string();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-') c = '_';
  }
  return "waiting.recorded." + name;
}

Result<RecordedTrace> read_trace(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Status{StatusCode::io_error, "--trace: no file '" + path + "'"};
  }
  std::ifstream in(path);
  if (!in) return Status{StatusCode::io_error, "--trace: cannot read '" + path + "'", errno};
  RecordedTrace trace;
  trace.name = recorded_name(path);
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    const std::string_view text = trimmed(line);
    if (text.empty() || text.front() == '#') continue;
    double gap = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), gap);
    if (failed != std::errc{} || end != text.data() + text.size() || !std::isfinite(gap) ||
        gap < 0) {
      return Status{StatusCode::invalid_argument,
                    "--trace: " + path + ":" + std::to_string(number) + ": '" +
                        std::string(text.substr(0, kShownMax)) +
                        "' is no gap in nanoseconds (a number >= 0, one a line)"};
    }
    if (trace.gaps_ns.size() == RecordedTrace::kGapsMax) {
      return Status{StatusCode::invalid_argument, "--trace: '" + path + "' has more than " +
                                                      std::to_string(RecordedTrace::kGapsMax) +
                                                      " gaps: give a part of it"};
    }
    trace.gaps_ns.push_back(gap);
  }
  if (in.bad()) return Status{StatusCode::io_error, "--trace: cannot read '" + path + "'", errno};
  double sum = 0;
  for (const double gap : trace.gaps_ns) sum += gap;
  if (sum <= 0) {
    return Status{StatusCode::invalid_argument,
                  "--trace: '" + path + "' has no gap longer than 0 ns"};
  }
  return trace;
}

}  // namespace sluice::bench
