// SPDX-License-Identifier: BSD-3-Clause
#include "state.hpp"

#include <utility>

namespace sluice::detail {

SourceState::SourceState(SourceId source_id, std::shared_ptr<CompletionSource> completion_source,
                         AttachOptions attach_options, Handler completion_handler)
    : id(source_id),
      source(std::move(completion_source)),
      options(std::move(attach_options)),
      handler(std::move(completion_handler)) {
  stream.source = this;
  stream.info.source = id;
  if (options.order == Order::inlined) stream.info.worker = BatchInfo::kOnPoller;
  stream.info.context = options.context;
  stream.info.receive_pool = options.receive_pool;
}

void SourceState::make_segments() {
  segment_count = source->capacity();
  segments = std::make_unique<Segment[]>(segment_count);
  for (std::uint32_t i = 0; i < segment_count; ++i) {
    segments[i].completions = segments[i].storage;
    segments[i].next = std::exchange(free_segments, &segments[i]);
  }
  free_segment_count = segment_count;
}

void SourceState::release() noexcept {
  ownership.release();
  handler = Handler{};
  source.reset();
}

}  // namespace sluice::detail
