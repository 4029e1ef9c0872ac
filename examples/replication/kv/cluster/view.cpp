// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace sluice::kv {
namespace {

using nlohmann::json;

constexpr std::size_t kNodeIdMax = 64;

Status wrong(std::string_view what) {
  return {StatusCode::io_error, std::string(what)};
}

Result<json> parse_object(const std::string& value) {
  json object = json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return wrong("it is no JSON object");
  return object;
}

Result<std::string> text_field(const json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_string()) return wrong(fmt::format("no text '{}'", name));
  return field->get<std::string>();
}

Result<std::uint64_t> number_field(const json& object, const char* name, std::uint64_t max) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_number_unsigned() || field->get<std::uint64_t>() > max)
    return wrong(fmt::format("no number '{}' up to {}", name, max));
  return field->get<std::uint64_t>();
}

event::Problem unreadable(const std::string& key, const Status& why) {
  return {why.with_context(fmt::format("what stands in etcd under '{}' is not understood", key))};
}

}  // namespace

// --- Values ------------------------------------------------------------------------------------

bool is_node_id(std::string_view text) {
  return !text.empty() && text.size() <= kNodeIdMax && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

std::string encode(const ClusterIdentity& identity) {
  return json{{"cluster_id", identity.cluster_id}, {"protocol", identity.protocol}}.dump();
}

std::string encode(const Registration& registration) {
  const Member& member = registration.member;
  return json{{"node", member.node},
              {"client", member.client},
              {"replication", member.replication},
              {"instance", registration.instance}}
      .dump();
}

std::string encode(const InSyncSet& set) {
  return json{{"epoch", set.epoch}, {"members", set.members}}.dump();
}

Result<ClusterIdentity> parse_identity(const std::string& value) {
  const auto object = parse_object(value);
  if (!object) return object.status();
  auto id = text_field(*object, "cluster_id");
  if (!id) return id.status();
  const auto protocol =
      number_field(*object, "protocol", std::numeric_limits<std::uint32_t>::max());
  if (!protocol) return protocol.status();
  return ClusterIdentity{std::move(*id), static_cast<std::uint32_t>(*protocol)};
}

Result<Registration> parse_registration(const std::string& value) {
  const auto object = parse_object(value);
  if (!object) return object.status();
  Registration registration;
  for (const auto& [name, out] : {std::pair{"node", &registration.member.node},
                                  std::pair{"client", &registration.member.client},
                                  std::pair{"replication", &registration.member.replication},
                                  std::pair{"instance", &registration.instance}}) {
    auto text = text_field(*object, name);
    if (!text) return text.status();
    *out = std::move(*text);
  }
  if (!is_node_id(registration.member.node)) return wrong("'node' is no node id");
  return registration;
}

Result<InSyncSet> parse_in_sync(const etcd::KeyValue& kv) {
  const auto object = parse_object(kv.value);
  if (!object) return object.status();
  const auto epoch = number_field(*object, "epoch", std::numeric_limits<std::int64_t>::max());
  if (!epoch) return epoch.status();
  const auto members = object->find("members");
  if (members == object->end() || !members->is_array() || members->empty())
    return wrong("no list 'members' with something in it");
  std::set<std::string> ids;
  for (const json& member : *members) {
    if (!member.is_string() || !is_node_id(member.get_ref<const std::string&>()))
      return wrong("a member that is no node id");
    if (!ids.insert(member.get<std::string>()).second) return wrong("a member that is there twice");
  }
  return InSyncSet{*epoch, {ids.begin(), ids.end()}, kv.mod_revision};
}

// --- The view ----------------------------------------------------------------------------------

void View::replace(const etcd::RangeAnswer& answer, std::vector<MembershipEvent>& events) {
  if (answer.header.revision < revision_) return;
  // What is gone, then what is there, in the order in which it was written.
  std::set<std::string> there;
  for (const auto& kv : answer.kvs) there.insert(kv.key);
  std::vector<std::string> gone;
  if (leader_key_exists_ && !there.contains(keys_.leader)) gone.push_back(keys_.leader);
  if (in_sync_ && !there.contains(keys_.in_sync)) gone.push_back(keys_.in_sync);
  if (cluster_ && !there.contains(keys_.cluster)) gone.push_back(keys_.cluster);
  for (const auto& [node, unused] : members_)
    if (!there.contains(keys_.member(node))) gone.push_back(keys_.member(node));
  for (const auto& key : gone) remove(key, events);

  std::vector<const etcd::KeyValue*> in_order;
  for (const auto& kv : answer.kvs) in_order.push_back(&kv);
  std::ranges::stable_sort(in_order, {}, &etcd::KeyValue::mod_revision);
  for (const auto* kv : in_order)
    if (kv->mod_revision > revision_) put(*kv, events);
  revision_ = answer.header.revision;
}

void View::apply(const etcd::WatchEvent& change, std::vector<MembershipEvent>& events) {
  // A revision may hold several changes; replace() leaves at the end of one, the watch delivers a
  // revision's changes together: so "<" would be wrong only for a change seen by both.
  if (change.kv.mod_revision < revision_) return;
  if (change.deleted)
    remove(change.kv.key, events);
  else
    put(change.kv, events);
  revision_ = change.kv.mod_revision;
}

void View::put(const etcd::KeyValue& kv, std::vector<MembershipEvent>& events) {
  if (kv.key == keys_.leader) return put_leader(kv, events);
  if (kv.key == keys_.in_sync) return put_in_sync(kv, events);
  if (kv.key == keys_.cluster) {
    cluster_ = kv;
  } else if (kv.key.starts_with(keys_.members)) {
    put_member(kv.key.substr(keys_.members.size()), kv, events);
  }
  // Other keys under the prefix are somebody else's.
}

void View::put_leader(const etcd::KeyValue& kv, std::vector<MembershipEvent>& events) {
  leader_key_exists_ = true;
  auto registration = parse_registration(kv.value);
  if (!registration) {
    if (leader_) events.emplace_back(event::LeaderChanged{});
    leader_.reset();
    events.emplace_back(unreadable(kv.key, registration.status()));
    return;
  }
  Key key{Leader{std::move(registration->member), static_cast<std::uint64_t>(kv.create_revision)},
          std::move(registration->instance), kv.lease};
  const bool same = leader_ && leader_->leader == key.leader;
  leader_ = std::move(key);
  if (!same) events.emplace_back(event::LeaderChanged{leader_->leader});
}

void View::put_in_sync(const etcd::KeyValue& kv, std::vector<MembershipEvent>& events) {
  auto set = parse_in_sync(kv);
  if (!set) {
    in_sync_.reset();
    events.emplace_back(unreadable(kv.key, set.status()));
    return;
  }
  const bool same = in_sync_ && *in_sync_ == *set;
  in_sync_ = std::move(*set);
  if (!same) events.emplace_back(event::InSyncChanged{*in_sync_});
}

void View::put_member(const std::string& node, const etcd::KeyValue& kv,
                      std::vector<MembershipEvent>& events) {
  auto registration = parse_registration(kv.value);
  if (registration && registration->member.node != node)
    registration = wrong("it names another node");
  if (!registration) {
    remove(kv.key, events);
    events.emplace_back(unreadable(kv.key, registration.status()));
    return;
  }
  const auto before = members_.find(node);
  const bool same = before != members_.end() && before->second.member == registration->member;
  members_.insert_or_assign(node, *registration);
  if (!same) events.emplace_back(event::MemberJoined{std::move(registration->member)});
}

void View::remove(const std::string& key, std::vector<MembershipEvent>& events) {
  if (key == keys_.leader) {
    leader_key_exists_ = false;
    if (leader_) events.emplace_back(event::LeaderChanged{});
    leader_.reset();
  } else if (key == keys_.in_sync) {
    if (in_sync_)
      events.emplace_back(event::Problem{wrong(
          fmt::format("the in-sync set was deleted from etcd ('{}'): nobody can lead", key))});
    in_sync_.reset();
  } else if (key == keys_.cluster) {
    cluster_.reset();
  } else if (key.starts_with(keys_.members)) {
    const auto member = members_.find(key.substr(keys_.members.size()));
    if (member == members_.end()) return;
    events.emplace_back(event::MemberLeft{member->second.member});
    members_.erase(member);
  }
}

}  // namespace sluice::kv
