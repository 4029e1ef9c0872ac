// SPDX-License-Identifier: BSD-3-Clause
#include "support.hpp"

#include <dirent.h>
#include <poll.h>
#include <time.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

namespace sluice::system_test {

std::uint64_t check_of(std::uint32_t tag, std::uint32_t sequence) {
  return ((std::uint64_t{tag} << 32) | sequence) * 0x9E3779B97F4A7C15U;
}

// --- Stream
// ----------------------------------------------------------------------------------------

Stream::~Stream() {
  gone = true;
}

void Stream::use(std::shared_ptr<rpma::MemoryRegion> memory, std::size_t offset,
                 std::uint32_t in_flight) {
  memory_ = std::move(memory);
  offset_ = offset;
  in_flight_ = in_flight;
}

Status Stream::send(rpma::Connection& connection) {
  const std::scoped_lock lock(sending_);
  // A slot comes round again after in_flight_ messages: none is reused before its send completed.
  const std::uint32_t sequence = sent_;
  if (sequence - completed_sends >= in_flight_) {
    return {StatusCode::resource_exhausted, "every message slot is in flight"};
  }
  const std::size_t offset = offset_ + std::size_t{sequence % in_flight_} * kMessageSize;
  const Message message{tag_, sequence, check_of(tag_, sequence)};
  std::memcpy(memory_->memory().data() + offset, &message, sizeof message);
  Status status = connection.send(memory_.get(), offset, kMessageSize, sequence);
  if (status.ok()) sent_ = sequence + 1;
  return status;
}

void Stream::send(rpma::Connection& connection, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    await("a send credit", [&] {
      const Status status = send(connection);
      if (!status.ok() && status.code() != StatusCode::resource_exhausted) require(status);
      return status.ok();
    });
  }
}

void Stream::receive(ReceivePool& pool, const ibv_wc& wc) {
  const ReceivedBuffer buffer = pool.take(wc);
  if (wc.status != IBV_WC_SUCCESS) {
    ++failed;
    return;
  }
  Message message{};
  if (buffer.bytes().size() != sizeof message) {
    ++strange;
    return;
  }
  std::memcpy(&message, buffer.bytes().data(), sizeof message);
  if (message.tag != tag_ || message.check != check_of(message.tag, message.sequence)) ++strange;
  if (ordered && message.sequence != expected_) ++out_of_order;
  if (ordered) expected_ = message.sequence + 1;
  ++received;
}

void Stream::note(const ibv_wc& wc) {
  if (wc.status == IBV_WC_SUCCESS) {
    ++completed_sends;
  } else {
    ++failed;
  }
}

// --- Node
// ------------------------------------------------------------------------------------------

Node::Node(Options options) {
  DispatcherConfig config;
  config.drive = options.drive;
  config.pollers[0].count = options.pollers;
  config.pollers[0].wait = options.wait;
  config.pools.front().workers = options.workers;
  config.connections_max = options.connections_max;
  config.last_wqe_grace = options.last_wqe_grace;
  DispatcherCallbacks callbacks;
  callbacks.on_source_failed = [this](SourceId, const Status&) { ++failed_sources; };
  callbacks.on_orphans = [this](SourceId, std::span<const ibv_wc> wcs) {
    orphans += static_cast<std::uint32_t>(wcs.size());
  };
  callbacks.on_async_event = [this](ibv_context*, const ibv_async_event& event) {
    const std::scoped_lock lock(mutex_);
    ++async_events_[event.event_type];
  };
  dispatcher_ = require(Dispatcher::start(std::move(config), std::move(callbacks)));
}

Node::~Node() = default;

std::uint64_t Node::sum(std::uint64_t PollerCounters::*counter) const {
  std::uint64_t total = 0;
  for (const PollerCounters& poller : dispatcher_->counters().pollers) total += poller.*counter;
  return total;
}

std::uint32_t Node::async_events(ibv_event_type type) const {
  const std::scoped_lock lock(mutex_);
  const auto found = async_events_.find(type);
  return found == async_events_.end() ? 0 : found->second;
}

// --- connecting
// ------------------------------------------------------------------------------------

Acceptor::Acceptor(const Site& site, Dispatcher& dispatcher, rpma::ConnectionConfig config,
                   Choose choose,
                   std::function<void(std::uint32_t, ConnectionHandle&)> on_connected) {
  auto endpoint = site.listen(port_);
  ListenOptions options;
  options.config = std::move(config);
  options.establish_timeout = std::chrono::seconds(20);
  options.on_request = [choose = std::move(choose)](
                           std::span<const std::byte> data) -> std::optional<ConnectionOptions> {
    std::uint32_t tag = 0;
    if (data.size() >= sizeof tag) std::memcpy(&tag, data.data(), sizeof tag);
    return choose(tag);
  };
  options.on_connected =
      [this, told = std::move(on_connected)](std::shared_ptr<ConnectionHandle> handle) {
        // What the request carried is the connection's private data on this side.
        std::uint32_t tag = 0;
        const auto data = handle->connection().private_data();
        if (data.size() >= sizeof tag) std::memcpy(&tag, data.data(), sizeof tag);
        if (told) told(tag, *handle);
        const std::scoped_lock lock(mutex_);
        handles_[tag] = std::move(handle);
      };
  options.on_failed = [this](const Status& status) {
    const std::scoped_lock lock(mutex_);
    failures_.push_back(status);
  };
  listener_ = require(dispatcher.listen(std::move(endpoint), std::move(options)));
}

void Acceptor::await_connected(std::uint32_t count) const {
  await(std::to_string(count) + " accepted connections", [&] { return connected() >= count; });
}

std::size_t Acceptor::connected() const {
  const std::scoped_lock lock(mutex_);
  return handles_.size();
}

std::shared_ptr<ConnectionHandle> Acceptor::handle(std::uint32_t tag) const {
  const std::scoped_lock lock(mutex_);
  return handles_.at(tag);
}

std::shared_ptr<ConnectionHandle> Acceptor::any() const {
  const std::scoped_lock lock(mutex_);
  return handles_.begin()->second;
}

std::vector<Status> Acceptor::failures() const {
  const std::scoped_lock lock(mutex_);
  return failures_;
}

void Acceptor::forget() {
  const std::scoped_lock lock(mutex_);
  handles_.clear();
}

Result<std::shared_ptr<ConnectionHandle>> connect(const Site& site, Dispatcher& dispatcher,
                                                  const std::string& port, std::uint32_t tag,
                                                  ConnectionOptions options,
                                                  const rpma::ConnectionConfig& config) {
  return dispatcher.connect(site.peer, site.address, port, config,
                            std::as_bytes(std::span(&tag, 1)), std::move(options),
                            std::chrono::seconds(20));
}

DetachReport detach_clean(ConnectionHandle& handle) {
  const DetachReport report = require(handle.detach(kDrainPatience));
  EXPECT_TRUE(report.clean) << report.to_string();
  EXPECT_FALSE(report.quarantined) << report.to_string();
  EXPECT_EQ(report.completions_abandoned, 0u);
  return report;
}

// --- Gate
// ------------------------------------------------------------------------------------------

void Gate::open() {
  const std::scoped_lock lock(mutex_);
  open_ = true;
  opened_.notify_all();
}

void Gate::pass() noexcept {
  std::unique_lock lock(mutex_);
  ++arrived_;
  opened_.wait(lock, [this] { return open_; });
}

// --- HostLoop
// --------------------------------------------------------------------------------------

HostLoop::HostLoop(Dispatcher& dispatcher) : thread_([this, &dispatcher] { run(dispatcher); }) {}

void HostLoop::stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  end_.signal();
  thread_.join();
}

void HostLoop::run(Dispatcher& dispatcher) {
  constexpr int kLongestSleepMs = 2000;  // far longer than anything here takes
  std::vector<Runnable*> all;
  for (std::uint32_t i = 0; i < dispatcher.poller_count(); ++i)
    all.push_back(&dispatcher.poller(i));
  for (std::uint32_t i = 0; i < dispatcher.worker_count(); ++i)
    all.push_back(&dispatcher.worker(i));
  all.push_back(&dispatcher.control());
  bool suspicious = false;
  while (!stopping_) {
    std::size_t work = 0;
    for (Runnable* one : all) work += one->run_once();
    if (suspicious && work > 0) ++lost_wakes;
    suspicious = false;
    if (work > 0) continue;
    std::vector<Runnable*> ready;
    for (Runnable* one : all) {
      if (one->prepare_to_wait()) ready.push_back(one);
    }
    if (ready.size() == all.size()) {
      std::vector<pollfd> fds{{end_.fd(), POLLIN, 0}};
      for (Runnable* one : all) fds.push_back({one->wait_fd(), POLLIN, 0});
      ++sleeps;
      suspicious = ::poll(fds.data(), fds.size(), kLongestSleepMs) == 0;
    }
    for (Runnable* one : ready) one->finish_wait();
  }
  for (Runnable* one : all) one->release_thread();
}

// --- the process
// -----------------------------------------------------------------------------------

std::size_t open_descriptors() {
  DIR* const directory = ::opendir("/proc/self/fd");
  std::size_t count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

std::chrono::nanoseconds process_cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::vector<int> threads_named(const std::string& prefix) {
  std::vector<int> ids;
  DIR* const directory = ::opendir("/proc/self/task");
  while (const dirent* const entry = ::readdir(directory)) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file(std::string("/proc/self/task/") + entry->d_name + "/comm");
    std::string name;
    std::getline(file, name);
    if (name.starts_with(prefix)) ids.push_back(std::atoi(entry->d_name));
  }
  ::closedir(directory);
  return ids;
}

}  // namespace sluice::system_test
