// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>

#include "sluice/core/cacheline.hpp"

namespace sluice {

/// An intrusive stack to which any thread gives and from which one owner takes all at once: how
/// segments go home to their source.
///
/// `Next` is the node's link, a plain `Node*`; it belongs to whoever holds the node: to the pusher
/// until push() returns, to the stack until take_all(), then to the owner.
/// Threads: push* any; take_all the owner (safe from any thread, in fact).
/// Progress: push lock-free, take_all wait-free.
/// No ABA: nobody takes a single node off. A push that meets the head it has read puts its node on
/// top of whatever list starts there now, which is right even if that head has been away meanwhile.
/// Cost: one CAS per push, one exchange per take_all (or one load when empty).
template <typename Node, Node* Node::*Next = &Node::next, typename Hooks = NoHooks>
class ReturnStack {
 public:
  ReturnStack() noexcept = default;
  ReturnStack(const ReturnStack&) = delete;
  ReturnStack& operator=(const ReturnStack&) = delete;

  /// Gives one node back.
  void push(Node* node) noexcept { push_chain(node, node); }

  /// Gives back a chain linked from first to last (last's link is overwritten); first comes out
  /// first.
  void push_chain(Node* first, Node* last) noexcept {
    Node* head = line_.head.load(std::memory_order_relaxed);
    do {  // bound: each further round means that another push or a take_all has succeeded
      Hooks::at("return.push.head_read");
      last->*Next = head;
      Hooks::at("return.push.linked");
      // (1) release: pairs with acquire (2): the nodes' contents and links. Earlier pushes are
      // covered as well: a chain of RMWs carries on their release sequences. Relaxed on failure,
      // since the head is only copied, never followed.
      // Acquire as well: pairs with (3), see take_all_ordered().
    } while (!line_.head.compare_exchange_weak(head, first, std::memory_order_acq_rel,
                                               std::memory_order_relaxed));
    Hooks::at("return.push.pushed");
  }

  /// Takes everything; the last pushed comes first. nullptr when there is nothing.
  [[nodiscard]] Node* take_all() noexcept {
    // Relaxed: only saves the exchange; a push missed here is found by the next call.
    if (line_.head.load(std::memory_order_relaxed) == nullptr) return nullptr;
    Hooks::at("return.take_all.looked");
    // (2) acquire: pairs with (1).
    Node* const all = line_.head.exchange(nullptr, std::memory_order_acquire);
    Hooks::at("return.take_all.taken");
    return all;
  }

  /// As take_all(), and whatever this thread wrote before is seen by each push that this call did
  /// not see: both are RMWs of one word, so one comes first and the other acquires from it. For an
  /// owner about to sleep until somebody gives something back (it sets a flag, then calls this; the
  /// pusher reads the flag after its push).
  [[nodiscard]] Node* take_all_ordered() noexcept {
    // (3) acq_rel: pairs with (1).
    Node* const all = line_.head.exchange(nullptr, std::memory_order_acq_rel);
    Hooks::at("return.take_all_ordered.taken");
    return all;
  }

  /// Nothing in it, as far as can be seen without synchronising.
  [[nodiscard]] bool empty_approx() const noexcept {
    return line_.head.load(std::memory_order_relaxed) == nullptr;
  }

 private:
  struct alignas(kCacheLine) Line {
    std::atomic<Node*> head{nullptr};
  };
  static_assert(sizeof(Line) == kCacheLine);

  Line line_;
};

}  // namespace sluice
