// SPDX-License-Identifier: BSD-3-Clause
// sluice-plan: what a configuration means on a machine. Data on stdout, talk on stderr.
#include <csignal>

#include "commands.hpp"
#include "options.hpp"

int main(int argc, char** argv) {
  // A reader that went away is a write that failed, with an exit status of its own.
  std::signal(SIGPIPE, SIG_IGN);
  const auto parsed = sluice::plan_tool::parse_options(argc, argv);
  return parsed.options ? sluice::plan_tool::run(*parsed.options) : parsed.exit_code;
}
