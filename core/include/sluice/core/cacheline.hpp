// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace sluice {

/// Data written by different threads is kept this many bytes apart. Fixed per architecture, not
/// asked of the machine, since it is part of the ABI of every type here (which is also why it is
/// not std::hardware_destructive_interference_size: that moves with -mtune).
#if defined(__aarch64__) || defined(__powerpc64__)
inline constexpr std::size_t kCacheLine = 128;
#else
inline constexpr std::size_t kCacheLine = 64;
#endif

/// Tells the core that this is a spin loop. Neither orders memory nor yields to the scheduler.
inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` is a nop on the cores we care for; isb waits some 10 ns
#elif defined(__powerpc64__)
  asm volatile("or 27,27,27");
#endif
}

/// The queues call Hooks::at(<point>) in the middle of their operations. This one is what ships:
/// the calls vanish. A test puts a type of its own in its place, to freeze a thread there and show
/// that the others go on.
struct NoHooks {
  static constexpr void at(const char* /*point*/) noexcept {}
};

}  // namespace sluice
