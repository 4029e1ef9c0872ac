// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>

#include "sluice/core/cacheline.hpp"
#include "sluice/core/status.hpp"

namespace sluice {

/// A lane: an intrusive queue with any number of producers and one consumer at a time, which also
/// knows whether it is scheduled (C3). Not who may consume is decided here but that it is one only.
///
/// The head word has three meanings:
///   idle     nobody is scheduled; the queue is empty. The next push schedules.
///   0        scheduled and empty: in the ring of runnable lanes, or in a worker's hands.
///   pointer  scheduled, with a list of nodes, the newest first.
/// So there is no flag beside the queue that could disagree with it: the one push that turns idle
/// into a list returns true, and its caller alone schedules the lane. A worker holds the lane from
/// taking it out of the ring of runnable lanes until it either puts it back there (the state stays
/// "scheduled") or try_idle() returns true; after either it must not touch the lane.
///
/// Threads: push* any; take_all and try_idle the worker that holds the lane. The ring must
/// synchronise its push with its pop (ScqRing and SpmcRing do): that hands the lane and all that
/// its last holder did to the next. Progress: push lock-free; take_all and try_idle wait-free (plus
/// the reversal of the list). Order: FIFO per producer, and one order in all. No ABA, for the
/// reason given in ReturnStack. Cost: one CAS per push or push_chain, one exchange per take_all.
template <typename Node, Node* Node::*Next = &Node::next, typename Hooks = NoHooks>
class LaneQueue {
 public:
  LaneQueue() noexcept = default;
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;

  /// Appends a node. True: the lane was idle, and the caller must schedule it now, once.
  [[nodiscard]] bool push(Node* node) noexcept { return push_reversed(node, node); }

  /// Appends a chain that is linked from the oldest, first, to the newest, last (last's link is
  /// ignored). As push() otherwise. Cost: walks the chain once.
  [[nodiscard]] bool push_chain(Node* first, Node* last) noexcept {
    Node* newer = nullptr;
    for (Node* node = first;;) {  // bound: the chain's length
      Node* const following = node->*Next;
      node->*Next = newer;
      newer = node;
      if (node == last) break;
      node = following;
    }
    return push_reversed(last, first);
  }

  /// Takes all there is, linked from the oldest to the newest; nullptr when there is nothing. The
  /// lane stays scheduled. By its holder only.
  [[nodiscard]] Node* take_all() noexcept {
    // Relaxed: saves the exchange on an empty lane; try_idle() decides what is missed here.
    if (line_.head.load(std::memory_order_relaxed) == kScheduled) return nullptr;
    Hooks::at("lane.take_all.looked");
    // (2) acquire: pairs with release (1) of all pushes in the list: a chain of RMWs carries on
    // the release sequence of each.
    const std::uintptr_t head = line_.head.exchange(kScheduled, std::memory_order_acquire);
    SLUICE_CHECK(head != kIdle, "LaneQueue::take_all() by a thread that does not hold the lane");
    Hooks::at("lane.take_all.taken");
    return reversed(reinterpret_cast<Node*>(head));
  }

  /// The holder has nothing more to do. True: the lane is idle and no longer the caller's. False:
  /// more has arrived; the caller still holds the lane and must take_all() or put it back into the
  /// ring of runnable lanes.
  [[nodiscard]] bool try_idle() noexcept {
    std::uintptr_t expected = kScheduled;
    Hooks::at("lane.try_idle.begun");
    // (3) release: pairs with acquire (1): the push that schedules the lane next, and through the
    // ring the next holder, sees what this one did. Relaxed on failure: take_all() acquires.
    const bool idle = line_.head.compare_exchange_strong(expected, kIdle, std::memory_order_release,
                                                         std::memory_order_relaxed);
    Hooks::at("lane.try_idle.decided");
    SLUICE_CHECK(idle || expected != kIdle,
                 "LaneQueue::try_idle() by a thread that does not hold the lane");
    return idle;
  }

  /// Idle at this moment (for metrics, and for asserting that a drained lane is).
  [[nodiscard]] bool idle() const noexcept {
    return line_.head.load(std::memory_order_acquire) == kIdle;  // (4) acquire: pairs with (3)
  }

  /// Nothing waits in it at this moment, be it scheduled or not.
  [[nodiscard]] bool empty_approx() const noexcept {
    const std::uintptr_t head = line_.head.load(std::memory_order_relaxed);
    return head == kIdle || head == kScheduled;
  }

 private:
  static constexpr std::uintptr_t kScheduled = 0;
  static constexpr std::uintptr_t kIdle = 1;  ///< odd: never the address of a Node

  struct alignas(kCacheLine) Line {
    std::atomic<std::uintptr_t> head{kIdle};
  };
  static_assert(sizeof(Line) == kCacheLine);

  /// Puts a list, newest node first, on top.
  bool push_reversed(Node* newest, Node* oldest) noexcept {
    static_assert(alignof(Node) > 1, "the idle mark must differ from every node's address");
    std::uintptr_t head = line_.head.load(std::memory_order_relaxed);
    do {  // bound: each further round means that another operation on the lane has succeeded
      Hooks::at("lane.push.head_read");
      oldest->*Next = head == kIdle ? nullptr : reinterpret_cast<Node*>(head);
      Hooks::at("lane.push.linked");
      // (1) acq_rel. Release: pairs with acquire (2): the nodes. Acquire: pairs with release (3)
      // when this push ends the idleness. Relaxed on failure: the head is copied, not followed.
    } while (!line_.head.compare_exchange_weak(head, reinterpret_cast<std::uintptr_t>(newest),
                                               std::memory_order_acq_rel,
                                               std::memory_order_relaxed));
    Hooks::at("lane.push.linked_in");
    return head == kIdle;
  }

  static Node* reversed(Node* newest) noexcept {
    Node* oldest = nullptr;
    while (newest != nullptr) {  // bound: the nodes in the lane
      Node* const older = newest->*Next;
      newest->*Next = oldest;
      oldest = newest;
      newest = older;
    }
    return oldest;
  }

  Line line_;
};

}  // namespace sluice
