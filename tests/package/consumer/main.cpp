// SPDX-License-Identifier: BSD-3-Clause
// What a first program of somebody else's would include and link.
#include <sluice/core/status.hpp>

#include <cstdio>

#ifdef CONSUMER_ALL
#include <sluice/dispatch/dispatcher.hpp>
#include <sluice/topology/cpus.hpp>
#endif

namespace {

sluice::Status use_what_was_installed() {
#ifdef CONSUMER_ALL
  const auto cpus = sluice::topology::allowed_cpus();
  if (!cpus.ok()) return cpus.status();
  const auto dispatcher = sluice::Dispatcher::start();
  if (!dispatcher.ok()) return dispatcher.status();
  std::printf("consumer: a dispatcher started, on %zu CPUs\n", cpus.value().size());
#endif
  return {};
}

}  // namespace

int main() {
  const sluice::Status status = use_what_was_installed();
  if (status.ok()) return 0;
  std::fprintf(stderr, "consumer: %s\n", status.message().c_str());
  return 1;
}
