// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "resp/durability.hpp"

namespace sluice::kv {

/// How far a member of the cluster is.
struct Progress {
  std::string node;
  std::uint64_t memory = 0;   ///< it has all entries up to here
  std::uint64_t durable = 0;  ///< on its disk
};

/// Which index each durability level has reached: indexed by Durability.
struct Reached {
  std::uint64_t of[5] = {};
  [[nodiscard]] std::uint64_t at(Durability level) const noexcept {
    return of[static_cast<std::size_t>(level)];
  }
};

/// How many of a set of so many make a quorum.
[[nodiscard]] constexpr std::size_t quorum_of(std::size_t members) noexcept {
  return members / 2 + 1;
}
/// How many of them a new primary must have heard, itself counted, so that each quorum has somebody
/// among them.
[[nodiscard]] constexpr std::size_t hearing_of(std::size_t members) noexcept {
  return members - quorum_of(members) + 1;
}

/// Counts acknowledgements. While the in-sync set is being changed both the old and the new one
/// must agree: whichever of them is in force when the primary dies, each of its quorums has
/// somebody who has every entry that was acknowledged.
///
/// Pure. Members of a set that nothing is known of count as having nothing.
[[nodiscard]] Reached count_acknowledgements(const Progress& self, std::span<const Progress> others,
                                             const std::vector<std::string>& in_sync,
                                             const std::vector<std::string>* proposed);

/// What a member of the in-sync set reported to a node that was elected.
struct Position {
  std::string node;
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
};

/// What a node that was elected does with what it has heard so far.
struct ElectionVerdict {
  enum class Kind : std::uint8_t { wait, lead, yield } kind = Kind::wait;
  std::size_t missing = 0;  ///< wait: so many more have to be heard
  std::string to;           ///< yield: who has more
};
/// `heard`: members of the set other than this node, each once. Positions are compared by epoch,
/// then index (as in Raft, section 5.4.1): what a quorum has acknowledged is in the highest one.
[[nodiscard]] ElectionVerdict judge_election(const Position& self, std::span<const Position> heard,
                                             std::size_t members, bool self_is_member);

}  // namespace sluice::kv
