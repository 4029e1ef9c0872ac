// SPDX-License-Identifier: BSD-3-Clause
#include "process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace replicate {
namespace {

using sluice::Status;
using sluice::StatusCode;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLineMax = 1024;

sigset_t ending_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

int milliseconds_left(Clock::time_point deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(left < 0 ? 0 : left);
}

/// The arguments for a replica; what it has no option for (quorum, file, ...) is not its business.
std::vector<std::string> replica_arguments(const Options& options, std::uint32_t number,
                                           const std::string& copy_name, int control_fd) {
  const bool is_v6 = options.address.find(':') != std::string::npos;
  const int port = options.port == 0 ? 0 : options.port + static_cast<int>(number);
  std::vector<std::string> arguments{
      "sluice-replicate",
      "replica",
      "--listen",
      is_v6 ? fmt::format("[{}]:{}", options.address, port)
            : fmt::format("{}:{}", options.address, port),
      "--output",
      copy_name,
      "--control-fd",
      std::to_string(control_fd),
      "--connections-max",
      std::to_string(options.connections),
      "--receive-depth",
      std::to_string(options.connections * options.effective_window()),
      "--record-size",
      std::to_string(options.record_size),
      "--workers",
      std::to_string(options.workers),
      "--pollers",
      std::to_string(options.pollers),
      "--wait",
      sluice::to_string(options.wait),
      "--timeout",
      std::to_string(options.timeout_s)};
  if (options.fsync) arguments.emplace_back("--fsync");
  return arguments;
}

/// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_replica(pid_t parent, int control_fd, char* const* argv) noexcept {
  prctl(PR_SET_PDEATHSIG, SIGTERM);   // kept across the exec
  if (getppid() != parent) _exit(1);  // it was gone before that took hold
  signal(SIGINT, SIG_IGN);            // Ctrl-C reaches the whole process group; the primary decides
  fcntl(control_fd, F_SETFD, 0);
  execv("/proc/self/exe", argv);
  constexpr std::string_view kSorry = "failed 1 cannot execute /proc/self/exe\n";
  [[maybe_unused]] const ssize_t sent = write(control_fd, kSorry.data(), kSorry.size());
  _exit(1);
}

}  // namespace

// --- Interrupts --------------------------------------------------------------------------------

Interrupts::Interrupts() {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  fd_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  SLUICE_CHECK(fd_.get() >= 0, "no descriptor is left for a signalfd");
}

int Interrupts::pending() noexcept {
  signalfd_siginfo info;
  if (signal_ == 0 && read(fd_.get(), &info, sizeof info) == sizeof info)
    signal_ = static_cast<int>(info.ssi_signo);
  return signal_;
}

Status Interrupts::check() {
  const int signal = pending();
  if (signal == 0) return {};
  return Status(StatusCode::cancelled, fmt::format("ended by SIG{}", sigabbrev_np(signal)));
}

// --- ReplicaProcess ----------------------------------------------------------------------------

sluice::Result<ReplicaProcess> ReplicaProcess::start(const Options& options, std::uint32_t number,
                                                     const std::string& copy_name) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Status(StatusCode::resource_exhausted, "no socket pair for a replica process", errno);
  Descriptor ours(ends[0]), its(ends[1]);

  auto arguments = replica_arguments(options, number, copy_name, its.get());
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0)
    return Status(StatusCode::resource_exhausted, fmt::format("cannot start replica {}", number),
                  errno);
  if (pid == 0) become_replica(parent, its.get(), argv.data());
  return ReplicaProcess(pid, std::move(ours), number);
}

ReplicaProcess::ReplicaProcess(ReplicaProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      control_(std::move(other.control_)),
      number_(other.number_) {}

ReplicaProcess::~ReplicaProcess() {
  stop(Clock::now() + kStopLimit);
}

sluice::Result<std::uint16_t> ReplicaProcess::wait_until_listening(
    Interrupts& interrupts, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::string line;
  while (line.empty() || line.back() != '\n') {  // bound: kLineMax and the deadline
    pollfd fds[] = {{control_.get(), POLLIN, 0}, {interrupts.fd(), POLLIN, 0}};
    const int ready = poll(fds, 2, milliseconds_left(deadline));
    SLUICE_RETURN_IF_ERROR(interrupts.check());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0)
      return Status(StatusCode::timed_out,
                    fmt::format("replica {} did not listen within {} ms", number_, limit.count()));
    char c;
    const ssize_t got = read(control_.get(), &c, 1);
    if (got <= 0 || line.size() >= kLineMax) return why_it_ended();
    line += c;
  }
  line.pop_back();

  if (line.starts_with("listening ")) {
    std::uint16_t port = 0;
    std::from_chars(line.data() + 10, line.data() + line.size(), port);
    if (port != 0) return port;
  } else if (line.starts_with("failed ")) {
    int code = 0;
    const auto [end, error] = std::from_chars(line.data() + 7, line.data() + line.size(), code);
    if (error == std::errc{} && *end == ' ' && code > 0 &&
        code <= static_cast<int>(StatusCode::internal))
      return Status(static_cast<StatusCode>(code), fmt::format("replica {}: {}", number_, end + 1));
  }
  return Status(StatusCode::internal, fmt::format("replica {} said '{}'", number_, line));
}

Status ReplicaProcess::why_it_ended() {
  int status = 0;
  const pid_t pid = std::exchange(pid_, -1);
  if (waitpid(pid, &status, 0) != pid)
    return Status(StatusCode::internal,
                  fmt::format("replica {} ended before it listened", number_));
  return Status(StatusCode::internal,
                WIFSIGNALED(status)
                    ? fmt::format("replica {} was killed by signal {} before it listened", number_,
                                  WTERMSIG(status))
                    : fmt::format("replica {} ended with status {} before it listened", number_,
                                  WEXITSTATUS(status)));
}

void ReplicaProcess::ask_to_end() noexcept {
  if (pid_ >= 0) shutdown(control_.get(), SHUT_WR);
}

void ReplicaProcess::stop(Clock::time_point deadline) noexcept {
  if (pid_ < 0) return;
  ask_to_end();
  // Its end of the pair closes when it ends, and that is what poll waits for.
  for (;;) {  // bound: the deadline, and what it may still have written
    pollfd fds{control_.get(), POLLIN, 0};
    const int ready = poll(&fds, 1, milliseconds_left(deadline));
    if (ready < 0 && errno == EINTR) continue;
    char rest[64];
    if (ready <= 0 || read(control_.get(), rest, sizeof rest) <= 0) {
      if (ready <= 0) kill(pid_, SIGKILL);
      break;
    }
  }
  waitpid(std::exchange(pid_, -1), nullptr, 0);
}

void stop_all(std::vector<ReplicaProcess>& processes) noexcept {
  for (ReplicaProcess& process : processes) process.ask_to_end();
  const auto deadline = Clock::now() + ReplicaProcess::kStopLimit;
  for (ReplicaProcess& process : processes) process.stop(deadline);
}

// --- Starter -----------------------------------------------------------------------------------

Starter::Starter(int control_fd) noexcept : control_(control_fd) {
  if (control_fd >= 0) fcntl(control_fd, F_SETFD, FD_CLOEXEC);
}

void Starter::say(std::string_view line) noexcept {
  // A starter that is gone is noticed by the main loop, as end-of-file.
  [[maybe_unused]] const ssize_t sent =
      send(control_.get(), line.data(), line.size(), MSG_NOSIGNAL);
}

void Starter::listening(std::uint16_t port) noexcept {
  if (present()) say(fmt::format("listening {}\n", port));
}

void Starter::failed(const Status& why) noexcept {
  if (present()) say(fmt::format("failed {} {}\n", static_cast<int>(why.code()), why.message()));
}

void end_process_after(unsigned seconds) noexcept {
  signal(SIGALRM, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  alarm(seconds);
}

}  // namespace replicate
