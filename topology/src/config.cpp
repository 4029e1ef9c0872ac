// SPDX-License-Identifier: BSD-3-Clause
#include "sluice/topology/config.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "config_read.hpp"
#include "config_text.hpp"

namespace sluice::topology {

using namespace configuration;

namespace {

/// Closes a descriptor at the end of a scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

Status file_failure(const std::string& path, int error) {
  const StatusCode code = error == EACCES || error == EPERM ? StatusCode::permission_denied
                          : error == ENOENT || error == EISDIR || error == ENOTDIR
                              ? StatusCode::invalid_argument
                              : StatusCode::io_error;
  const std::string shown = escaped(path, 4 * kValueMax);
  if (error == ENOENT) return {code, "there is no configuration file '" + shown + "'", error};
  if (error == EISDIR) return {code, "'" + shown + "' is a directory, not a file", error};
  return {code, "the configuration file '" + shown + "' cannot be read", error};
}

/// Reads one byte more than may be there, so that a file that grows is caught as well.
Result<std::string> file_content(const std::string& path) {
  // A path with a NUL would silently be a shorter one.
  if (path.find('\0') != std::string::npos) return file_failure(path, ENOENT);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return file_failure(path, errno);
  std::string content;
  std::array<char, 1U << 14U> chunk{};
  while (content.size() <= kTextMax) {
    const ssize_t bytes = ::read(file.get(), chunk.data(), chunk.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return file_failure(path, errno);
    if (bytes == 0) return content;
    content.append(chunk.data(), static_cast<std::size_t>(bytes));
  }
  return Status(StatusCode::invalid_argument,
                "the configuration file '" + escaped(path, 4 * kValueMax) + "' is larger than " +
                    std::to_string(kTextMax) + " bytes, the most that is read");
}

}  // namespace

const char* to_string(PoolNodes nodes) noexcept {
  switch (nodes) {
    case PoolNodes::pollers: return "pollers";
    case PoolNodes::all: return "all";
    case PoolNodes::any: return "any";
  }
  return "unknown";
}

const char* to_string(HugePages pages) noexcept {
  switch (pages) {
    case HugePages::none: return "none";
    case HugePages::transparent: return "transparent";
    case HugePages::mib2: return "2MiB";
    case HugePages::gib1: return "1GiB";
  }
  return "unknown";
}

std::string Origin::to_string() const {
  if (kind == OriginKind::defaults) return "default";
  if (kind != OriginKind::file || line == 0) return file;
  return file + ':' + std::to_string(line) + ':' + std::to_string(column);
}

std::string Diagnostic::to_string() const {
  const std::string where = origin.kind == OriginKind::defaults ? "" : origin.to_string() + ": ";
  return escaped(where, 4 * kValueMax) + (severity == Severity::error ? "error: " : "warning: ") +
         message;
}

bool ConfigOutcome::ok() const noexcept {
  return std::none_of(diagnostics.begin(), diagnostics.end(), [](const Diagnostic& diagnostic) {
    return diagnostic.severity == Severity::error;
  });
}

std::string ConfigOutcome::to_string() const {
  std::string lines;
  for (const Diagnostic& diagnostic : diagnostics) lines += diagnostic.to_string() + '\n';
  return lines;
}

ConfigOutcome Config::read(const ConfigInput& input) {
  return Reader(input).run();
}

Result<Config> Config::load(const std::string& path) {
  auto content = file_content(path);
  if (!content.ok()) return content.status();
  ConfigInput input;
  input.text = std::move(*content);
  input.file = path;
  input.environment = process_environment();
  ConfigOutcome outcome = read(input);
  if (outcome.ok()) return std::move(outcome.config);
  std::string errors;
  for (const Diagnostic& diagnostic : outcome.diagnostics) {
    if (diagnostic.severity != Severity::error) continue;
    errors += (errors.empty() ? "" : "\n") + diagnostic.to_string();
  }
  return Status(StatusCode::invalid_argument, errors);
}

Origin Config::origin_of(std::string_view path) const {
  const auto found = origins.find(path);
  return found == origins.end() ? Origin{} : found->second;
}

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

}  // namespace sluice::topology
