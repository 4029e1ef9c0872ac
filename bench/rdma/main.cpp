// SPDX-License-Identifier: BSD-3-Clause
// sluice-bench-rdma: what is measured over an RDMA device; prints "name value" lines. Run it under
// softrdma-run, or plainly with a device.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "rdma.hpp"

namespace {

using namespace sluice::bench;

int fail(const sluice::Status& status) {
  fmt::print(stderr, "sluice-bench-rdma: {}\n", status.to_string());
  return 1;
}

int print(const sluice::Result<EchoResult>& echo) {
  if (!echo) return fail(echo.status());
  fmt::print("p50_us {}\np99_us {}\nmps {}\n", echo->p50_us, echo->p99_us, echo->mps);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const char* const device = std::getenv("SLUICE_BENCH_ADDRESS");
  const std::string address = device != nullptr ? device : "127.0.0.1";
  const double amount = argc > 2 ? std::strtod(argv[2], nullptr) : 1;
  if (argc == 3 && amount > 0 && (what == "echo" || what == "tcp-echo")) {
    EchoOptions options;
    options.address = address;
    options.round_trips = static_cast<std::uint32_t>(options.round_trips * amount) + 100;
    options.messages = static_cast<std::uint32_t>(options.messages * amount) + 1000;
    return print(what == "echo" ? rdma_echo(options) : tcp_echo(options));
  }
  if (argc == 3 && amount > 0 && what == "idle") {
    const auto percent = rdma_idle(address, amount);
    if (!percent) return fail(percent.status());
    fmt::print("cpu_percent {}\n", *percent);
    return 0;
  }
  std::fputs(
      "usage: sluice-bench-rdma echo|tcp-echo SHARE   round trips, then a stream, of 64-byte "
      "messages;\n"
      "                                               SHARE of 20000 and 200000 of them\n"
      "       sluice-bench-rdma idle SECONDS          CPU while 1000 sources are silent\n"
      "SLUICE_BENCH_ADDRESS: an address of the device (127.0.0.1)\n",
      stderr);
  return 2;
}
