// SPDX-License-Identifier: BSD-3-Clause
#include "cluster.hpp"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

namespace sluice::kv::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two looks at a state: often enough for a test, seldom enough for the nodes.
constexpr std::chrono::milliseconds kBetweenLooks{20};
/// A node that is well answers INFO sooner; one that is stopped does not at all.
constexpr std::chrono::milliseconds kInfoPatience{1000};

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ",") + part;
  return all;
}

}  // namespace

std::string device_address() {
  const char* const rxe = std::getenv("RXE_ADDR");
  return rxe != nullptr && *rxe != '\0' ? rxe : "127.0.0.1";
}

std::vector<std::string> command_line(const std::vector<std::string>& arguments,
                                      const std::string& faults, std::uint64_t seed) {
  std::vector<std::string> words;
  if (!faults.empty())
    words = {"env", "SOFTRDMA_FAULTS=" + faults, "SOFTRDMA_SEED=" + std::to_string(seed)};
  const std::string launcher = SLUICE_SOFTRDMA_RUN;
  if (device_address() == "127.0.0.1" && !launcher.empty()) {
    words.push_back(launcher);
    words.emplace_back("--");
  }
  words.emplace_back(SLUICE_KV);
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

bool eventually(const std::function<bool()>& is_so) {
  const auto deadline = Clock::now() + kStatePatience;
  while (!is_so()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(kBetweenLooks);  // nothing tells of the change: it is asked for
  }
  return true;
}

Node::Node(std::string id, std::string data, std::vector<std::string> arguments)
    : id_(std::move(id)), data_(std::move(data)), arguments_(std::move(arguments)) {}

void Node::add_arguments(const std::vector<std::string>& more) {
  arguments_.insert(arguments_.end(), more.begin(), more.end());
}

void Node::start(const std::string& faults, std::uint64_t seed) {
  process_.reset();  // it is dead before the next one opens its data
  std::vector<std::string> arguments{"--data", data_, "--port", std::to_string(port_.number()),
                                     "--node", id_};
  arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
  process_ = std::make_unique<Process>(command_line(arguments, faults, seed));
}

bool Node::listens() {
  return process_->wait_for("sluice-kv: node " + id_ + " listens on ").has_value();
}

int Node::end() {
  process_->signal(SIGTERM);
  return process_->end();
}

std::optional<Info> Node::info(const std::string& section, const std::string& password) const {
  Connection connection(address(), kInfoPatience);
  if (!password.empty() && !connection.call({"AUTH", password})) return std::nullopt;
  const auto reply = connection.call({"INFO", section});
  if (!reply || reply->is_error()) return std::nullopt;
  return Info(reply->text);
}

std::string Node::last_words(std::size_t lines_max) const {
  std::string text;
  const auto lines = process_ ? process_->lines() : std::vector<std::string>{};
  for (std::size_t i = lines.size() - std::min(lines.size(), lines_max); i < lines.size(); ++i)
    text += "  " + lines[i] + "\n";
  return text;
}

Cluster::Cluster(ClusterOptions options) : options_(std::move(options)) {
  for (const std::string& id : options_.ids)
    nodes_[id] = std::make_unique<Node>(id, folder_ / id, options_.arguments);
  std::vector<std::string> membership;
  if (options_.etcds > 0) {
    etcd_ = std::make_unique<EtcdServers>(options_.etcds);
    membership = {"--etcd",    joined(etcd_->endpoints()),
                  "--lease",   std::to_string(options_.lease_s),
                  "--members", joined(options_.ids)};
  } else {
    for (const auto& [id, node] : nodes_) {
      membership.emplace_back("--static");
      membership.push_back(id + "=" + node->address().to_string() + "," + node->replication());
    }
    membership.insert(membership.end(), {"--primary", options_.ids.front()});
  }
  for (const auto& [id, node] : nodes_) {
    node->add_arguments({"--replication", node->replication()});
    node->add_arguments(membership);
  }
}

std::vector<std::string> Cluster::without(const std::string& id) const {
  auto others = options_.ids;
  std::erase(others, id);
  return others;
}

void Cluster::start_all() {
  for (const std::string& id : options_.ids) nodes_.at(id)->start();
}

ClientOptions Cluster::client_options(const std::string& durability) const {
  ClientOptions options;
  for (const std::string& id : options_.ids) options.nodes.push_back(nodes_.at(id)->address());
  options.durability = durability;
  return options;
}

std::string Cluster::primary() const {
  for (const auto& [id, node] : nodes_)
    if (const auto info = node->info(); info && (*info)["role"] == "primary") return id;
  return {};
}

std::string Cluster::wait_for_primary(const std::string& other_than) {
  std::string found;
  (void)eventually([&] {
    found = primary();
    return !found.empty() && found != other_than;
  });
  return found == other_than ? "" : found;
}

std::string Cluster::wait_until_in_sync(std::vector<std::string> members) {
  std::ranges::sort(members);
  std::string found;
  const bool came = eventually([&] {
    found = primary();
    if (found.empty()) return false;
    const auto info = nodes_.at(found)->info();
    if (!info || (*info)["role"] != "primary" || info->list("in_sync") != members) return false;
    return std::ranges::all_of(members, [&](const std::string& id) {
      if (id == found) return true;
      const auto own = nodes_.at(id)->info();
      return own && (*own)["role"] == "replica" && info->replica(id, "state") == "streaming" &&
             own->number("durable_index") >= info->number("durable_index");
    });
  });
  return came ? found : "";
}

std::string Cluster::state() const {
  std::string text;
  for (const auto& [id, node] : nodes_) {
    const auto info = node->info();
    text += "--- " + id + ": " + (info ? info->text() : "no answer to INFO") + "\n" +
            node->last_words();
  }
  return text;
}

}  // namespace sluice::kv::test
