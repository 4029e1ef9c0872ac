// SPDX-License-Identifier: BSD-3-Clause
// Feeds arbitrary text to everything that decodes what etcd (or whoever is asked in its place)
// sends: the gateway's answers, a watch's lines, base64, and the values of a cluster's keys. What
// is decoded goes through a View twice, which must not tell anything the second time.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kv/cluster/base64.hpp"
#include "kv/cluster/etcd_messages.hpp"
#include "kv/cluster/view.hpp"

using namespace sluice;
using namespace sluice::kv;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

/// A failure says something, on one line.
template <typename Answer>
void look_at(const Result<Answer>& answer) {
  if (answer) return;
  const std::string message = answer.status().message();
  require(!message.empty() && message.find('\n') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto range = etcd::decode_range(text);
  look_at(range);
  look_at(etcd::decode_put(text));
  look_at(etcd::decode_delete(text));
  look_at(etcd::decode_txn(text));
  look_at(etcd::decode_grant(text));
  look_at(etcd::decode_revoke(text));
  look_at(etcd::decode_keep_alive(text));
  const auto watch = etcd::decode_watch_line(text);
  look_at(watch);
  require(!etcd::decode_error(500, text).ok());
  if (const auto bytes = base64_decode(text)) require(base64_encode(*bytes) == text);

  const std::string value(text);
  look_at(parse_identity(value));
  look_at(parse_registration(value));
  look_at(parse_in_sync({.value = value, .mod_revision = 1}));

  View view{ClusterKeys("/")};
  std::vector<MembershipEvent> events;
  if (range) {
    view.replace(*range, events);
    events.clear();
    view.replace(*range, events);
    // Nothing in an answer is younger than the answer: what is, is told each time.
    const bool can_be = std::ranges::all_of(range->kvs, [&](const etcd::KeyValue& kv) {
      return kv.mod_revision <= range->header.revision;
    });
    require(!can_be || events.empty());
  }
  if (watch)
    for (const auto& event : watch->events) view.apply(event, events);
  for (const auto& event : events) require(!to_string(event).empty());
  // The text as the value of each of a cluster's keys.
  const ClusterKeys keys("/k/");
  View other{keys};
  for (const auto& key : {keys.cluster, keys.leader, keys.in_sync, keys.member("a")})
    other.apply({.kv = {key, value, 1, 1, 1, 0}}, events);
  for (const auto& event : events) require(!to_string(event).empty());
  return 0;
}
