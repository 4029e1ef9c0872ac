// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace softrdma {

enum class LogLevel { kNone = 0, kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

/// Writes one line to stderr when SOFTRDMA_LOG (none, error, warning, info, debug; default warning)
/// allows it. One write(2) per line, so that lines of several threads and processes do not mix.
/// Keeps errno.
[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...) noexcept;
[[nodiscard]] bool log_enabled(LogLevel level) noexcept;

/// Says once per `function` that it is not supported, and sets errno to EOPNOTSUPP.
void unsupported(const char* function, const char* detail = nullptr) noexcept;

}  // namespace softrdma
