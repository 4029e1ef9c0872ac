// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

namespace sluice::test {

/// A system call, or the one that has a certain number as its third argument (madvise's advice).
struct SystemCall {
  long number = 0;
  std::optional<std::uint32_t> third_argument = std::nullopt;
};

/// From now on the kernel refuses these to the calling thread, as it does in a container: with a
/// seccomp filter, which nobody can take away again. So only in a process of one's own
/// (EXPECT_EXIT).
inline void refuse_system_calls(const std::vector<SystemCall>& calls, int error) {
  constexpr std::uint32_t kNumberAt = offsetof(seccomp_data, nr);
  constexpr std::uint32_t kThirdAt = offsetof(seccomp_data, args[2]);
  const sock_filter refuse =
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error));
  std::vector<sock_filter> program;
  for (const SystemCall& call : calls) {
    const auto number = static_cast<std::uint32_t>(call.number);
    const std::uint8_t otherwise = call.third_argument ? 3 : 1;  // instructions to jump over
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumberAt));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, otherwise));
    if (call.third_argument) {
      program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kThirdAt));
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *call.third_argument, 0, 1));
    }
    program.push_back(refuse);
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::abort();
  }
}

}  // namespace sluice::test
