// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "sluice_test/process.hpp"

namespace replicate::test {

using sluice::test::Ended;
using sluice::test::ProcessOptions;
using sluice::test::TemporaryFolder;

/// sluice-replicate.
class Program : public sluice::test::Process {
 public:
  explicit Program(const std::vector<std::string>& arguments, const ProcessOptions& options = {});
};

/// `sluice-replicate replica`, on whatever port is free.
class HandStarted : public Program {
 public:
  explicit HandStarted(const std::string& output, const std::vector<std::string>& more = {});
  /// Waits until it listens: "ADDR:PORT"; empty when it does not.
  [[nodiscard]] const std::string& at();
  [[nodiscard]] std::string port() { return at().substr(at().rfind(':') + 1); }

 private:
  std::string at_;
};

/// Runs it to its end.
Ended run(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

void write_file(const std::string& path, std::size_t bytes);
/// $RXE_ADDR, else 127.0.0.1.
[[nodiscard]] std::string address();

}  // namespace replicate::test
