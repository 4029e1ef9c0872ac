// SPDX-License-Identifier: BSD-3-Clause
// sluice-kv: a replicated key-value server on librpma, RocksDB, io_uring and etcd.
#include <fmt/format.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>

#include "kv/node/node.hpp"
#include "kv/node/options.hpp"

namespace {

/// Whether SIGINT or SIGTERM is there. Blocked in all threads: this is the only place that looks.
bool stop_asked(const sigset_t& signals) {
  const timespec none{};
  const int signal = sigtimedwait(&signals, nullptr, &none);
  if (signal < 0) return false;
  // From now on a second one ends the process as it would by itself.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  return true;
}

/// Values that were applied are freed by the tens of MiB, and as many are needed again at once.
/// What goes back to the kernel meanwhile comes again page by page: with 4 KiB values that was a
/// tenth of the CPU.
void keep_freed_memory() {
#if defined(__GLIBC__)
  (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
  (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  const sluice::kv::ParsedOptions parsed = sluice::kv::parse_options(argc, argv);
  if (!parsed.options) return parsed.exit_code;

  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  auto node = sluice::kv::Node::start(*parsed.options);
  if (!node) {
    fmt::print(stderr, "sluice-kv: {}\n", node.status().to_string());
    return 1;
  }
  fmt::print("sluice-kv: node {} listens on {}\n", parsed.options->node, (*node)->listening_on());
  std::fflush(stdout);
  const sluice::Status ended = (*node)->run([&] { return stop_asked(signals); });
  if (!ended.ok()) {
    fmt::print(stderr, "sluice-kv: {}\n", ended.to_string());
    return 1;
  }
  return 0;
}
