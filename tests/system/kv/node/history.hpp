// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

// What clients did and were told, and whether one copy of the data, asked by one client after the
// other, could have told them the same (linearizability: Herlihy and Wing, "Linearizability: A
// Correctness Condition for Concurrent Objects", 1990). Keys are independent of each other, so each
// is judged alone. Every key is absent at first. Functions here keep no state: any thread may call
// them.
namespace sluice::kv::test {

enum class Kind : std::uint8_t { get, set, incr, del };

/// What the client knows of an operation.
enum class Outcome : std::uint8_t {
  ok,      ///< it took effect, between its invocation and its return
  failed,  ///< it never took effect and never will
  unknown  ///< it took effect at any time after its invocation, or will, or never does
};

struct Operation {
  std::uint32_t client = 0;
  Kind kind = Kind::get;
  Outcome outcome = Outcome::ok;
  std::string key;
  /// SET: what was to be written. GET: what was read; nothing: the key was not there. INCR: the
  /// number it gave, in decimal. DEL: how many keys it removed, "0" or "1". Nothing for an INCR or
  /// a DEL that gave no answer.
  std::optional<std::string> value;
  /// In nanoseconds of one clock. One operation comes before another for certain if it returned
  /// before the other was invoked. `returned` means nothing when the outcome is unknown.
  std::int64_t invoked = 0, returned = 0;
};

/// "client 3: SET k = v, 12.345678 to 12.345999 s, unknown".
[[nodiscard]] std::string to_string(const Operation& operation);

/// What cannot be, and the few operations that show it.
struct Violation {
  std::string key;
  std::string what;
  std::vector<Operation> operations;
  [[nodiscard]] std::string to_string() const;
};

struct Verdict {
  std::optional<Violation> violation;  ///< the first, by the time at which it could be known
  /// Keys whose search was given up at its bound. A history with such keys has not been shown to be
  /// right.
  std::vector<std::string> undecided;
  std::size_t keys = 0, operations = 0;  ///< how much was looked at
  [[nodiscard]] bool linearizable() const { return !violation && undecided.empty(); }
  [[nodiscard]] std::string to_string() const;
};

/// How many (value, set of operations done) pairs a search may hold at once before it gives up.
inline constexpr std::size_t kSearchStatesMax = std::size_t{1} << 18;

/// Judges each key: by zones() where no value was written twice and there are only GETs and SETs,
/// by search() otherwise.
[[nodiscard]] Verdict check(std::span<const Operation> history);

/// Whether zones() can judge these operations of one key.
[[nodiscard]] bool has_unique_writes(std::span<const Operation> operations);

/// Judges one key with unique writes in O(n log n): Gibbons and Korach, "Testing Shared Memories",
/// 1997. Each write and the reads of its value form a cluster, whose zone lies between the first
/// return and the last invocation in it; two clusters of which each must precede the other are the
/// violation, and there is one whenever the history is not linearizable.
[[nodiscard]] std::optional<Violation> zones(std::span<const Operation> operations);

/// Judges one key with any operations by searching: Wing and Gong, "Testing and Verifying
/// Concurrent Objects", 1993, with Lowe's memoisation and just-in-time linearization ("Testing for
/// Linearizability", 2017): an operation is put in order only when one that returns needs it.
/// Exponential in how many operations overlap at worst. `undecided` is set when it gave up.
[[nodiscard]] std::optional<Violation> search(std::span<const Operation> operations,
                                              bool& undecided,
                                              std::size_t states_max = kSearchStatesMax);

/// Whether what is there at the end holds every acknowledged write: each key has the value of its
/// last one, or of one that may have come after it. `history`: acknowledged where the level
/// promises that (quorum and above). `at_the_end`: each key's value, read after all of `history`;
/// nothing: the key is not there. Keys that are not in it, and keys with DELs, are left to check().
[[nodiscard]] std::optional<Violation> check_nothing_lost(
    std::span<const Operation> history,
    const std::map<std::string, std::optional<std::string>>& at_the_end);

/// All operations of one key, a line each, in the order of their invocation: for a person who wants
/// to see more than a Violation tells.
[[nodiscard]] std::string listing(std::span<const Operation> history, const std::string& key,
                                  std::size_t lines_max = 200);

}  // namespace sluice::kv::test
