// SPDX-License-Identifier: BSD-3-Clause
#include "config_report.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "config_text.hpp"

namespace sluice::topology::configuration {

void Report::error(Origin origin, std::string path, std::string message) {
  add({Severity::error, std::move(origin), std::move(path), std::move(message)});
}

void Report::warning(Origin origin, std::string path, std::string message) {
  add({Severity::warning, std::move(origin), std::move(path), std::move(message)});
}

void Report::add(Diagnostic diagnostic) {
  if (diagnostics_.size() < kDiagnosticsMax) {
    diagnostics_.push_back(std::move(diagnostic));
    return;
  }
  ++left_out_;
  if (diagnostic.severity == Severity::error) error_left_out_ = true;
}

std::vector<Diagnostic> Report::take() {
  const auto place = [](const Diagnostic& diagnostic) {
    const Origin& origin = diagnostic.origin;
    return std::tuple(origin.kind, origin.line, origin.column);
  };
  std::stable_sort(
      diagnostics_.begin(), diagnostics_.end(),
      [&](const Diagnostic& left, const Diagnostic& right) { return place(left) < place(right); });
  if (left_out_ != 0) {
    // As grave as what it stands for: a dropped error must not make a configuration valid.
    diagnostics_.push_back({error_left_out_ ? Severity::error : Severity::warning,
                            {},
                            {},
                            "there is more: " + std::to_string(left_out_) + " are not shown"});
  }
  return std::move(diagnostics_);
}

}  // namespace sluice::topology::configuration
