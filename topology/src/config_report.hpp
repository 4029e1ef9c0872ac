// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "config_schema.hpp"
#include "sluice/topology/config.hpp"

namespace sluice::topology::configuration {

/// Collects what there is to say. Bounded: who fills a file with nonsense gets the first of it.
class Report {
 public:
  static constexpr std::size_t kDiagnosticsMax = 100;

  void error(Origin origin, std::string path, std::string message);
  void warning(Origin origin, std::string path, std::string message);
  /// What was said: of the file in its order, then of variables, then of flags.
  [[nodiscard]] std::vector<Diagnostic> take();

 private:
  void add(Diagnostic diagnostic);

  std::vector<Diagnostic> diagnostics_;
  std::size_t left_out_ = 0;
  bool error_left_out_ = false;
};

/// What single values cannot show: names of groups that there are not, contradictions.
void check_together(const Config& config, Report& report);

}  // namespace sluice::topology::configuration
