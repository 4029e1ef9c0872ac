// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "sluice/topology/modes.hpp"

namespace sluice {

class ReceivePool;

/// Names an attached source for the dispatcher's life. 0 is nobody.
enum class SourceId : std::uint32_t { none = 0 };

/// Names an attached connection; carries a generation, since QP numbers are reused. 0 is nobody.
enum class ConnectionId : std::uint64_t { none = 0 };

/// What a handler is told beside the completions.
struct BatchInfo {
  SourceId source = SourceId::none;
  /// per_connection: whose completions these are. Else the connection that the source belongs to,
  /// or none for a source of many.
  ConnectionId connection = ConnectionId::none;
  void* context = nullptr;   ///< ConnectionOptions::context, else AttachOptions::context
  std::uint32_t poller = 0;  ///< index of the poller that took them
  std::uint32_t worker = 0;  ///< index of the worker within its pool; kOnPoller for inlined
  /// AttachOptions::receive_pool, or the connection's own: where take() finds the buffers.
  ReceivePool* receive_pool = nullptr;
  static constexpr std::uint32_t kOnPoller = ~std::uint32_t{0};
};

/// Order::per_key: what a completion's key is, `std::uint64_t(const ibv_wc&) noexcept`. Called by
/// pollers, several at once if several sources share it; must not block. It is shown successful
/// completions only: of a failed one little is valid (ibv_poll_cq(3)), so that counts as the key
/// qp_num. Keys share lanes when there are more of them than lanes: equal keys keep their order,
/// and others may.
class KeyFunction {
 public:
  KeyFunction() noexcept = default;
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, KeyFunction> &&
           std::is_invocable_r_v<std::uint64_t, const std::remove_cvref_t<F>&, const ibv_wc&>)
      KeyFunction(
          F&& callable)  // NOLINT(bugprone-forwarding-reference-overload): constrained above
      : function_(std::forward<F>(callable)) {
    static_assert(
        std::is_nothrow_invocable_r_v<std::uint64_t, const std::remove_cvref_t<F>&, const ibv_wc&>,
        "a key function must be noexcept: nobody could catch what it throws");
  }
  explicit operator bool() const noexcept { return static_cast<bool>(function_); }
  std::uint64_t operator()(const ibv_wc& wc) const noexcept { return function_(wc); }

 private:
  std::function<std::uint64_t(const ibv_wc&)> function_;
};

/// A completion handler: `void(std::span<const ibv_wc>, const BatchInfo&) noexcept`, any callable
/// (C9). Stored without allocation up to 64 bytes. Called from whichever thread handles the batch;
/// two calls for one lane never overlap.
class Handler {
 public:
  static constexpr std::size_t kInlineSize = 64;

  Handler() noexcept = default;
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Handler> &&
           std::is_invocable_v<F&, std::span<const ibv_wc>, const BatchInfo&>)
      Handler(F&& callable) {  // NOLINT(bugprone-forwarding-reference-overload): constrained above
    using Callable = std::decay_t<F>;  // of a function: a pointer to it
    static_assert(std::is_nothrow_invocable_v<Callable&, std::span<const ibv_wc>, const BatchInfo&>,
                  "a completion handler must be noexcept: nobody could catch what it throws");
    if constexpr (sizeof(Callable) <= kInlineSize &&
                  alignof(Callable) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Callable>) {
      ::new (static_cast<void*>(storage_)) Callable(std::forward<F>(callable));
      operations_ = &kInline<Callable>;
    } else {
      ::new (static_cast<void*>(storage_)) Callable*(new Callable(std::forward<F>(callable)));
      operations_ = &kHeap<Callable>;
    }
  }
  Handler(Handler&& other) noexcept { move_from(other); }
  Handler& operator=(Handler&& other) noexcept {
    if (this != &other) {
      reset();
      move_from(other);
    }
    return *this;
  }
  ~Handler() { reset(); }

  explicit operator bool() const noexcept { return operations_ != nullptr; }
  void operator()(std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
    operations_->call(storage_, batch, info);
  }

 private:
  struct Operations {
    void (*call)(void*, std::span<const ibv_wc>, const BatchInfo&) noexcept;
    void (*move)(void* from, void* to) noexcept;
    void (*destroy)(void*) noexcept;
  };
  template <typename C>
  static constexpr Operations kInline{
      [](void* at, std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
        (*static_cast<C*>(at))(batch, info);
      },
      [](void* from, void* to) noexcept {
        ::new (to) C(std::move(*static_cast<C*>(from)));
        static_cast<C*>(from)->~C();
      },
      [](void* at) noexcept { static_cast<C*>(at)->~C(); }};
  template <typename C>
  static constexpr Operations kHeap{
      [](void* at, std::span<const ibv_wc> batch, const BatchInfo& info) noexcept {
        (**static_cast<C**>(at))(batch, info);
      },
      [](void* from, void* to) noexcept { ::new (to) C*(*static_cast<C**>(from)); },
      [](void* at) noexcept { delete *static_cast<C**>(at); }};

  void move_from(Handler& other) noexcept {
    operations_ = std::exchange(other.operations_, nullptr);
    if (operations_ != nullptr) operations_->move(other.storage_, storage_);
  }
  void reset() noexcept {
    if (operations_ != nullptr) std::exchange(operations_, nullptr)->destroy(storage_);
  }

  const Operations* operations_ = nullptr;
  alignas(std::max_align_t) std::byte storage_[kInlineSize];
};

}  // namespace sluice
