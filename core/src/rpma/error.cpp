// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/core/rpma/error.hpp"

#include <librpma.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "rpma/call.hpp"

namespace sluice::rpma {
namespace {

constexpr std::size_t kLogLineMax = 256;  ///< bytes kept of one log line

struct LastLog {
  int os_error = 0;
  std::size_t length = 0;
  char text[kLogLineMax];
};
thread_local LastLog tls_last_log;

struct LogLevel {
  const char* name;
  rpma_log_level level;
};
constexpr LogLevel kLogLevels[] = {
    {"fatal", RPMA_LOG_LEVEL_FATAL},     {"error", RPMA_LOG_LEVEL_ERROR},
    {"warning", RPMA_LOG_LEVEL_WARNING}, {"notice", RPMA_LOG_LEVEL_NOTICE},
    {"info", RPMA_LOG_LEVEL_INFO},       {"debug", RPMA_LOG_LEVEL_DEBUG},
};

/// What goes to stderr: SLUICE_RPMA_LOG=fatal|error|warning|notice|info|debug; nothing by default.
rpma_log_level level_from_environment() noexcept {
  const char* const wanted = std::getenv("SLUICE_RPMA_LOG");
  if (wanted == nullptr) return RPMA_LOG_DISABLED;
  for (const LogLevel& known : kLogLevels) {
    if (std::strcmp(known.name, wanted) == 0) return known.level;
  }
  return RPMA_LOG_LEVEL_DEBUG;  // set to something: show it all rather than nothing
}
rpma_log_level shown_level = RPMA_LOG_DISABLED;  ///< written once, before librpma can log

__attribute__((format(printf, 5, 6))) void log_sink(rpma_log_level level, const char* /*file*/,
                                                    const int /*line*/, const char* function,
                                                    const char* format, ...) {
  const int saved = errno;
  // The first line of a call names the cause; what follows is the unwinding.
  const bool keep = level <= RPMA_LOG_LEVEL_ERROR && tls_last_log.length == 0;
  if (keep || level <= shown_level) {
    char line[kLogLineMax];
    std::va_list arguments;
    va_start(arguments, format);
    const int wanted = std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    std::size_t length = wanted < 0 ? 0 : static_cast<std::size_t>(wanted);
    if (length >= sizeof line) length = sizeof line - 1;
    while (length > 0 && line[length - 1] == '\n') --length;
    if (keep) {
      tls_last_log.os_error = saved;
      tls_last_log.length = length;
      std::memcpy(tls_last_log.text, line, length);
    }
    if (level <= shown_level) {
      std::fprintf(stderr, "librpma: %s: %.*s\n", function != nullptr ? function : "-",
                   static_cast<int>(length), line);
    }
  }
  errno = saved;
}

std::string_view code_name(int rpma_code) noexcept {
  switch (rpma_code) {
    case RPMA_E_UNKNOWN: return "RPMA_E_UNKNOWN";
    case RPMA_E_NOSUPP: return "RPMA_E_NOSUPP";
    case RPMA_E_PROVIDER: return "RPMA_E_PROVIDER";
    case RPMA_E_NOMEM: return "RPMA_E_NOMEM";
    case RPMA_E_INVAL: return "RPMA_E_INVAL";
    case RPMA_E_NO_COMPLETION: return "RPMA_E_NO_COMPLETION";
    case RPMA_E_NO_EVENT: return "RPMA_E_NO_EVENT";
    case RPMA_E_AGAIN: return "RPMA_E_AGAIN";
    case RPMA_E_SHARED_CHANNEL: return "RPMA_E_SHARED_CHANNEL";
    case RPMA_E_NOT_SHARED_CHNL: return "RPMA_E_NOT_SHARED_CHNL";
    default: return "an unknown librpma code";
  }
}

StatusCode code_of_errno(int os_error) noexcept {
  switch (os_error) {
    case EADDRINUSE: return StatusCode::address_in_use;
    case EADDRNOTAVAIL:
    case ENODEV:
    case ENXIO:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH: return StatusCode::unreachable;
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case EAGAIN: return StatusCode::resource_exhausted;
    case ECONNREFUSED: return StatusCode::rejected;
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case EPIPE: return StatusCode::connection_lost;
    case ETIMEDOUT: return StatusCode::timed_out;
    case ECANCELED: return StatusCode::cancelled;
    case EPERM:
    case EACCES: return StatusCode::permission_denied;
    case EOPNOTSUPP:
    case ENOSYS: return StatusCode::not_supported;
    case EINVAL: return StatusCode::invalid_argument;
    default: return StatusCode::device_failed;
  }
}

StatusCode code_of(int rpma_code, int os_error) noexcept {
  switch (rpma_code) {
    case RPMA_E_PROVIDER: return code_of_errno(os_error);
    case RPMA_E_NOSUPP: return StatusCode::not_supported;
    case RPMA_E_NOMEM:
    case RPMA_E_AGAIN: return StatusCode::resource_exhausted;
    case RPMA_E_INVAL:
    case RPMA_E_SHARED_CHANNEL:
    case RPMA_E_NOT_SHARED_CHNL: return StatusCode::invalid_argument;
    case RPMA_E_NO_COMPLETION:
    case RPMA_E_NO_EVENT: return StatusCode::no_completion;
    default: return StatusCode::internal;
  }
}

}  // namespace

void clear_last_log() noexcept {
  tls_last_log.os_error = 0;
  tls_last_log.length = 0;
}
int last_logged_errno() noexcept {
  return tls_last_log.os_error;
}
std::string_view last_log() noexcept {
  return {tls_last_log.text, tls_last_log.length};
}

std::recursive_mutex& library_mutex() noexcept {
  static std::recursive_mutex mutex;
  return mutex;
}

Status make_status(int rpma_code, int os_error, std::string_view tried) {
  if (rpma_code == 0) return {};
  std::string message(tried);
  message += ": ";
  message += code_name(rpma_code);
  message += " (";
  message += ::rpma_err_2str(rpma_code);
  message += ")";
  if (const std::string_view said = last_log(); !said.empty()) {
    message += ": ";
    message += said;
  }
  return {code_of(rpma_code, os_error), std::move(message), os_error, rpma_code};
}

void install_errno_safe_log() noexcept {
  static const bool installed = [] {
    constexpr int kAttemptsMax = 100;  // RPMA_E_AGAIN: somebody else sets it right now
    shown_level = level_from_environment();
    // Errors always reach the sink: it keeps the cause for the Status.
    const rpma_log_level threshold =
        shown_level > RPMA_LOG_LEVEL_ERROR ? shown_level : RPMA_LOG_LEVEL_ERROR;
    for (int i = 0; i < kAttemptsMax && ::rpma_log_set_function(&log_sink) == RPMA_E_AGAIN; ++i) {
    }
    for (int i = 0; i < kAttemptsMax &&
                    ::rpma_log_set_threshold(RPMA_LOG_THRESHOLD, threshold) == RPMA_E_AGAIN;
         ++i) {
    }
    return true;
  }();
  (void)installed;
}

}  // namespace sluice::rpma
