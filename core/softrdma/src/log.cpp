// SPDX-License-Identifier: BSD-3-Clause
#include "log.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace softrdma {
namespace {

LogLevel read_level() noexcept {
  const char* text = std::getenv("SOFTRDMA_LOG");
  if (text == nullptr || *text == '\0') return LogLevel::kWarning;
  static constexpr const char* kNames[] = {"none", "error", "warning", "info", "debug"};
  for (int i = 0; i < 5; ++i) {
    if (std::strcmp(text, kNames[i]) == 0 || (text[0] == '0' + i && text[1] == '\0')) {
      return static_cast<LogLevel>(i);
    }
  }
  std::fprintf(stderr,
               "softrdma: SOFTRDMA_LOG=%s is not a level; using warning (none, error, warning, "
               "info, debug)\n",
               text);
  return LogLevel::kWarning;
}

LogLevel level() noexcept {
  static const LogLevel value = read_level();
  return value;
}

}  // namespace

bool log_enabled(LogLevel wanted) noexcept {
  return wanted <= level();
}

void log_line(LogLevel wanted, const char* format, ...) noexcept {
  if (!log_enabled(wanted)) return;
  const int saved = errno;
  static constexpr const char* kTags[] = {"", "error", "warning", "info", "debug"};
  char line[512];
  int used = std::snprintf(line, sizeof line, "softrdma: %s: ", kTags[static_cast<int>(wanted)]);
  va_list args;
  va_start(args, format);
  const int more =
      std::vsnprintf(line + used, sizeof line - static_cast<std::size_t>(used) - 1, format, args);
  va_end(args);
  if (more > 0) used += more;
  if (used > static_cast<int>(sizeof line) - 2) used = static_cast<int>(sizeof line) - 2;
  line[used++] = '\n';
  // A log line that cannot be written has nowhere else to go.
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, line, static_cast<std::size_t>(used));
  errno = saved;
}

void unsupported(const char* function, const char* detail) noexcept {
  // Names are string literals: the pointer, hashed into a small table, is enough to say it only
  // once. A collision merely repeats a line.
  static std::atomic<const char*> said[256];
  auto& slot = said[(reinterpret_cast<std::uintptr_t>(function) >> 3) % 256];
  if (slot.exchange(function, std::memory_order_relaxed) != function) {
    log_line(LogLevel::kWarning, "%s is not supported%s%s", function, detail != nullptr ? ": " : "",
             detail != nullptr ? detail : "");
  }
  errno = EOPNOTSUPP;
}

}  // namespace softrdma
