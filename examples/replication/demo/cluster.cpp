// SPDX-License-Identifier: BSD-3-Clause
#include "cluster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace demo {
namespace {

using sluice::Result;
using sluice::Status;
using sluice::StatusCode;

/// How often a node is looked at, and how long it may take to answer.
constexpr std::chrono::milliseconds kLookEvery{10};
constexpr std::chrono::milliseconds kAnswerLimit{2000};

/// The value of INFO's line "key:value"; empty if there is none.
std::string_view field(std::string_view info, std::string_view key) {
  for (std::size_t at = 0; at < info.size();) {
    const std::size_t end = std::min(info.find("\r\n", at), info.size());
    const std::string_view line = info.substr(at, end - at);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ':')
      return line.substr(key.size() + 1);
    at = end + 2;
  }
  return {};
}

std::uint64_t as_number(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::vector<std::string> words_of(std::string_view text, char separator) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

}  // namespace

bool NodeState::has_in_sync(const std::string& node) const {
  return std::find(in_sync.begin(), in_sync.end(), node) != in_sync.end();
}

Result<Cluster> Cluster::start(const Options& options, const Folder& folder) {
  auto etcd = Port::reserve();
  if (!etcd) return etcd.status();
  auto etcd_peers = Port::reserve();
  if (!etcd_peers) return etcd_peers.status();
  Cluster cluster(options, folder.path(), std::move(*etcd), std::move(*etcd_peers));
  for (std::uint32_t i = 0; i < options.nodes; ++i) {
    auto clients = Port::reserve();
    if (!clients) return clients.status();
    auto replication = Port::reserve();
    if (!replication) return replication.status();
    cluster.nodes_.push_back(
        {std::string(1, static_cast<char>('a' + i)), std::move(*clients), std::move(*replication)});
  }
  SLUICE_RETURN_IF_ERROR(cluster.start_etcd());
  for (Node& node : cluster.nodes_) SLUICE_RETURN_IF_ERROR(cluster.start_node(node));
  return cluster;
}

Status Cluster::start_etcd() {
  const std::string clients = fmt::format("http://127.0.0.1:{}", etcd_port_.number());
  const std::string peers = fmt::format("http://127.0.0.1:{}", etcd_peers_.number());
  auto process = Child::start(
      {"etcd", "--name", "demo", "--data-dir", folder_ + "/etcd", "--listen-client-urls", clients,
       "--advertise-client-urls", clients, "--listen-peer-urls", peers,
       "--initial-advertise-peer-urls", peers, "--initial-cluster", "demo=" + peers},
      folder_ + "/etcd.log");
  if (!process) return process.status();
  etcd_.emplace(std::move(*process));
  return {};
}

std::string Cluster::members() const {
  std::string names;
  for (const Node& node : nodes_) names += (names.empty() ? "" : ",") + node.name;
  return names;
}

Status Cluster::start_node(Node& node) {
  std::vector<std::string> words;
  if (!options_.device) words.push_back(beside_this_program("softrdma-run"));
  words.insert(words.end(), {beside_this_program("sluice-kv"), "--node", node.name, "--cluster",
                             "demo", "--data", folder_ + "/" + node.name, "--port",
                             fmt::to_string(node.clients.number()), "--replication",
                             fmt::format("{}:{}", options_.address, node.replication.number()),
                             "--etcd", fmt::format("http://127.0.0.1:{}", etcd_port_.number()),
                             "--members", members(), "--lease", fmt::to_string(options_.lease_s)});
  auto process = Child::start(std::move(words), folder_ + "/" + node.name + ".log");
  if (!process) return process.status();
  node.process.emplace(std::move(*process));
  return {};
}

std::vector<std::uint16_t> Cluster::ports() const {
  std::vector<std::uint16_t> ports;
  for (const Node& node : nodes_) ports.push_back(node.clients.number());
  return ports;
}

Result<NodeState> Cluster::state(std::size_t number) {
  Node& node = nodes_[number];
  if (!node.asked) {
    auto client = Client::connect("127.0.0.1", node.clients.number(), kAnswerLimit);
    if (!client) return client.status();
    node.asked.emplace(std::move(*client));
  }
  auto reply = node.asked->ask({"INFO", "replication"});
  if (!reply) {
    node.asked.reset();
    return reply.status();
  }
  const std::string_view info = reply->text;
  NodeState state;
  state.role = field(info, "role");
  state.epoch = as_number(field(info, "epoch"));
  state.in_sync = words_of(field(info, "in_sync"), ',');
  state.last_index = as_number(field(info, "last_index"));
  state.durable_index = as_number(field(info, "durable_index"));
  state.applied_index = as_number(field(info, "applied_index"));
  state.last_error = field(info, "last_error");
  return state;
}

std::optional<Cluster::Primary> Cluster::primary() {
  std::optional<Primary> found;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!running(i)) continue;
    auto asked = state(i);
    if (asked && asked->role == "primary" && (!found || asked->epoch > found->state.epoch))
      found = Primary{i, std::move(*asked)};
  }
  return found;
}

Status Cluster::wait_until(const std::string& what, Interrupts& interrupts,
                           const std::function<bool()>& done) {
  for (const auto deadline = Clock::now() + kPatience; Clock::now() < deadline;) {
    SLUICE_RETURN_IF_ERROR(check());
    if (done()) return {};
    SLUICE_RETURN_IF_ERROR(pause(interrupts, kLookEvery));
  }
  std::string states;
  for (std::size_t i = 0; i < size(); ++i) {
    auto asked = state(i);
    states +=
        fmt::format("\n    {}: {}", name(i),
                    asked ? fmt::format("{}, epoch {}{}{}", asked->role, asked->epoch,
                                        asked->last_error.empty() ? "" : ", ", asked->last_error)
                          : asked.status().message());
  }
  return {StatusCode::timed_out,
          fmt::format("waited {} s in vain until {}{}", kPatience.count(), what, states)};
}

void Cluster::kill(std::size_t node) {
  nodes_[node].process->kill();
  nodes_[node].process.reset();
  nodes_[node].asked.reset();
}

Status Cluster::start_again(std::size_t node) {
  return start_node(nodes_[node]);
}

Status Cluster::check() {
  if (etcd_) SLUICE_RETURN_IF_ERROR(etcd_->check());
  for (Node& node : nodes_)
    if (node.process) SLUICE_RETURN_IF_ERROR(node.process->check());
  return {};
}

Status Cluster::end() {
  std::vector<Child*> processes;
  for (Node& node : nodes_)
    if (node.process) processes.push_back(&*node.process);
  const Status outcome = Child::end(std::move(processes));
  for (Node& node : nodes_) node.process.reset();
  etcd_.reset();  // its own business how it ends
  return outcome;
}

}  // namespace demo
