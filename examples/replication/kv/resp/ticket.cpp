// SPDX-License-Identifier: BSD-3-Clause
#include "resp/ticket.hpp"

#include <algorithm>

#include "resp/client.hpp"
#include "resp/io_thread.hpp"
#include "sluice/core/status.hpp"

namespace sluice::kv {

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    const Ticket dropped(std::move(*this));
    pending_ = std::exchange(other.pending_, nullptr);
  }
  return *this;
}

Ticket::~Ticket() {
  if (pending_ == nullptr) return;
  pending_->bytes.clear();
  reply().error("ERR the request was given up by the server");
  std::move(*this).complete();
}

ReplyBuilder Ticket::reply() noexcept {
  SLUICE_CHECK(pending_ != nullptr, "a reply to a request that is completed");
  return ReplyBuilder(pending_->bytes);
}

PendingReply* Ticket::take() noexcept {
  PendingReply* const pending = std::exchange(pending_, nullptr);
  SLUICE_CHECK(pending != nullptr, "a request was completed twice");
  SLUICE_CHECK(!pending->bytes.empty(), "a request was completed without a reply");
  return pending;
}

void Ticket::complete() && noexcept {
  PendingReply* const pending = take();
  pending->home->complete(pending);
}

void Ticket::complete(std::string_view bytes) && noexcept {
  SLUICE_CHECK(pending_ != nullptr, "a request was completed twice");
  pending_->bytes.assign(bytes);
  std::move(*this).complete();
}

void CompletionBatch::add(Ticket&& ticket) {
  PendingReply* const pending = ticket.take();
  const auto chain = std::ranges::find(chains_, pending->home, &Chain::home);
  if (chain == chains_.end()) {
    chains_.push_back({pending->home, pending, pending});
  } else if (chain->first == nullptr) {
    chain->first = chain->last = pending;
  } else {
    chain->last->next_returned = pending;
    chain->last = pending;
  }
}

void CompletionBatch::post() noexcept {
  for (Chain& chain : chains_)
    if (PendingReply* const first = std::exchange(chain.first, nullptr); first != nullptr)
      chain.home->complete(first);
}

}  // namespace sluice::kv
