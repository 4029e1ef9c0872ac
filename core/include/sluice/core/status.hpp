// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace sluice {

/// What kind of failure an operation met. Callers branch on the code; people read the message.
enum class StatusCode : std::uint8_t {
  ok,
  invalid_argument,    ///< the caller gave a value that can never work
  not_supported,       ///< the device or library does not offer this
  no_completion,       ///< nothing there now; not a failure of the device
  already_owned,       ///< somebody else holds the ownership token
  does_not_fit,        ///< admission refused it: it could overflow a queue (C4)
  resource_exhausted,  ///< memory, descriptors, queue slots
  address_in_use,      ///< the port is taken
  unreachable,         ///< no route, no device for the address
  rejected,            ///< the peer said no, or nobody listens
  connection_lost,     ///< the peer went away, or the connection broke
  timed_out,           ///< a deadline passed
  cancelled,           ///< stopped on purpose
  permission_denied,   ///< the system forbade it
  device_failed,       ///< the provider reported an error
  io_error,            ///< a file or socket operation failed
  internal,            ///< a state that should not be; a bug here or beneath
};

/// The code's name, e.g. "does_not_fit".
[[nodiscard]] std::string_view to_string(StatusCode code) noexcept;

/// The outcome of an operating operation (device, network, configuration, user). Never dropped.
/// `message()` says what was tried with which value; `os_error()` keeps the errno and
/// `rpma_error()` the librpma code that caused it (0 if none).
/// Thread-safety: a value; no shared state. Cost: an ok Status does not allocate.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message, int os_error = 0, int rpma_error = 0)
      : code_(code), os_error_(os_error), rpma_error_(rpma_error), message_(std::move(message)) {}

  [[nodiscard]] static Status okay() noexcept { return {}; }

  [[nodiscard]] bool ok() const noexcept { return code_ == StatusCode::ok; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] StatusCode code() const noexcept { return code_; }
  [[nodiscard]] int os_error() const noexcept { return os_error_; }
  [[nodiscard]] int rpma_error() const noexcept { return rpma_error_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

  /// One line for people: "does_not_fit: <message> (errno 12: Cannot allocate memory)".
  [[nodiscard]] std::string to_string() const;

  /// The same failure with the circumstance put in front: "<context>: <message>".
  [[nodiscard]] Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::ok;
  int os_error_ = 0;
  int rpma_error_ = 0;
  std::string message_;
};

/// Stops the program with a message: for programmer errors, in release builds too.
[[noreturn]] void fail_programmer_error(const char* file, int line, std::string_view what) noexcept;

/// Checks an invariant that only a programmer can break; stays in release builds.
#define SLUICE_CHECK(condition, what)                              \
  do {                                                             \
    if (!(condition)) [[unlikely]]                                 \
      ::sluice::fail_programmer_error(__FILE__, __LINE__, (what)); \
  } while (false)

/// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit
    SLUICE_CHECK(!std::get<1>(state_).ok(), "a Result was built from an ok Status without a value");
  }

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }

  [[nodiscard]] T& value() & { return checked(); }
  [[nodiscard]] const T& value() const& { return const_cast<Result*>(this)->checked(); }
  [[nodiscard]] T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return const_cast<Result*>(this)->checked(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &const_cast<Result*>(this)->checked(); }

  /// The failure; an ok Status when there is a value.
  [[nodiscard]] Status status() const { return ok() ? Status{} : std::get<1>(state_); }

 private:
  T& checked() {
    if (!ok()) [[unlikely]]
      fail_programmer_error(__FILE__, __LINE__,
                            "value() of a failed Result: " + std::get<1>(state_).to_string());
    return std::get<0>(state_);
  }

  std::variant<T, Status> state_;
};

/// Passes a failed Status up to the caller.
#define SLUICE_RETURN_IF_ERROR(expression)                                    \
  do {                                                                        \
    if (::sluice::Status sluice_status_ = (expression); !sluice_status_.ok()) \
      return sluice_status_;                                                  \
  } while (false)

}  // namespace sluice
