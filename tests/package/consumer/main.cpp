// SPDX-License-Identifier: BSD-3-Clause
// What a first program of somebody else's would include and link.
#include <sluice/core/status.hpp>

#include <cstdio>

int main() {
  sluice::Status status;
  std::printf("consumer: %s\n", status.ok() ? "ok" : "not ok");
  return status.ok() ? 0 : 1;
}
