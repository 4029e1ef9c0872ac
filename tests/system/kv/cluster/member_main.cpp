// SPDX-License-Identifier: BSD-3-Clause
// One node's membership: kv_member NODE LEASE_SECONDS INITIAL,MEMBERS ENDPOINT...
//
// It says, a line each, with LeaseClock's nanoseconds, which all processes of a machine share:
//   gained EPOCH NOW            from RoleGained
//   lost EPOCH NOW              from RoleLost
//   leads EPOCH NOW UNTIL       whenever leader_until(EPOCH) is seen to have moved
//   answer leads|follows NOW    to "ask" on its standard input
//   event TEXT                  every event
//   changed TEXT                the outcome of "change MEMBER,MEMBER..." on its standard input
// It stops in good order at the end of its standard input, or at "stop".
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "kv/cluster/etcd_membership.hpp"

namespace {

using namespace sluice::kv;

std::mutex out_mutex;
std::atomic<std::uint64_t> present_epoch{0};

void say(const std::string& line) {
  const std::lock_guard lock(out_mutex);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string now_text() {
  return std::to_string(LeaseClock::now().time_since_epoch().count());
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

void on_event(const MembershipEvent& event) {
  const std::string now = now_text();
  if (const auto* const gained = std::get_if<event::RoleGained>(&event)) {
    present_epoch = gained->epoch;
    say("gained " + std::to_string(gained->epoch) + " " + now);
  }
  if (const auto* const lost = std::get_if<event::RoleLost>(&event))
    say("lost " + std::to_string(lost->epoch) + " " + now);
  say("event " + to_string(event));
}

void obey(Membership& membership, const std::string& command) {
  if (command == "ask") {
    const bool leads = membership.leads(present_epoch);
    say(std::string("answer ") + (leads ? "leads " : "follows ") + now_text());
  } else if (command.starts_with("change ")) {
    // As the leader of the epoch that it last knew, right or wrong, and from the present set.
    const auto state = membership.state();
    membership.request_in_sync(
        {.epoch = present_epoch,
         .base_revision = state.in_sync ? state.in_sync->revision : 0,
         .members = split(command.substr(7))},
        [](const sluice::Result<InSyncSet>& changed) {
          say("changed " + (changed ? std::string("ok") : changed.status().to_string()));
        });
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const std::string node = argv[1];
  auto membership =
      EtcdMembership::start({.cluster_id = "test",
                             .self = {node, node + ":1", node + ":2"},
                             .endpoints = {argv + 4, argv + argc},
                             .lease_s = static_cast<std::uint32_t>(std::stoul(argv[2])),
                             .initial_members = split(argv[3])},
                            on_event);
  if (!membership) {
    say("failed " + membership.status().to_string());
    return 1;
  }
  std::string input;
  auto seen = LeaseClock::time_point::min();
  for (bool stop = false; !stop;) {
    pollfd fds{STDIN_FILENO, POLLIN, 0};
    const int ready = poll(&fds, 1, 1);  // the period at which leader_until() is looked at
    const std::uint64_t epoch = present_epoch;
    const auto until = (*membership)->leader_until(epoch);
    if (until != seen && until != LeaseClock::time_point::min())
      say("leads " + std::to_string(epoch) + " " + now_text() + " " +
          std::to_string(until.time_since_epoch().count()));
    seen = until;
    if (ready <= 0) continue;
    char chunk[256];
    const ssize_t got = read(STDIN_FILENO, chunk, sizeof chunk);
    stop = got <= 0;
    if (got > 0) input.append(chunk, static_cast<std::size_t>(got));
    for (auto end = input.find('\n'); end != std::string::npos; end = input.find('\n')) {
      const std::string command = input.substr(0, end);
      input.erase(0, end + 1);
      stop = stop || command == "stop";
      obey(**membership, command);
    }
  }
  (*membership)->stop();
  say("stopped");
  return 0;
}
