// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>

#include "support/fixture.hpp"

namespace sluice::contract {

/// Every implementation of CompletionSource that a device or kernel feeds, and each role a CqSource
/// has.
enum class SourceKind : std::uint8_t {
  main_cq,         ///< rpma: a connection's CQ; its completions are of writes
  receive_cq,      ///< rpma: a connection's receive CQ, with a ReceivePool
  mixed_cq,        ///< rpma: a connection's only CQ, sends and receives
  srq_receive_cq,  ///< rpma: an SRQ's receive CQ, two connections
  shared_channel,  ///< rpma: a connection's CQ and receive CQ on one channel
  verbs_group,     ///< raw verbs: three queue pairs on the two CQs of a CqGroup
  uring_ring,      ///< io_uring: its completions are of operations that do nothing
};
[[nodiscard]] const char* name_of(SourceKind kind);
inline void PrintTo(SourceKind kind, std::ostream* out) {
  *out << name_of(kind);
}

/// A source with a live device behind it and the means to make completions come out of it.
class SourceUnderTest {
 public:
  /// Which stream of completions one belongs to, and its place in it, from 0.
  struct Item {
    std::uint32_t stream = 0;
    std::uint64_t sequence = 0;
  };
  static constexpr std::uint32_t kInFlightMax = 120;  ///< produced and not yet given to take()

  virtual ~SourceUnderTest() = default;
  [[nodiscard]] virtual std::shared_ptr<CompletionSource> source() = 0;
  /// How many CQs the source has.
  [[nodiscard]] virtual std::uint32_t cq_count() const { return 1; }
  /// Causes one completion on CQ `which` (any: round-robin over streams and CQs).
  virtual void produce_on(std::uint32_t which) = 0;
  void produce(std::uint32_t count);
  /// What a handler would do with a successful completion; gives back its credit or buffer.
  virtual Item take(const ibv_wc& wc) = 0;
  /// Returns when all that was produced has surely left its sender.
  virtual void settle() = 0;
  /// Makes at least one failed completion come out, and says how many at least. (A ring has none:
  /// what fails there has a status of success, and a negative result.)
  virtual std::uint32_t fail() = 0;

  static std::unique_ptr<SourceUnderTest> make(SourceKind kind, const Site& site);

 private:
  std::uint32_t next_ = 0;
};

}  // namespace sluice::contract
