// SPDX-License-Identifier: BSD-3-Clause
#include "resp/io_thread.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "resp/reply.hpp"
#include "resp/text.hpp"

namespace sluice::kv {
namespace {

constexpr std::size_t kInputBytes = std::size_t{64} << 10;  ///< read from one client in a round
/// A client that holds no more of a request than this is never closed for what others hold.
constexpr std::size_t kInputBytesFair = std::size_t{64} << 10;
constexpr int kAcceptsPerRound = 64;
/// So many events in a round: the next one looks once more before it sleeps.
constexpr int kBusyEvents = 2;
/// A reply's buffer up to this size is kept for the next one; a connection's, up to the other.
constexpr std::size_t kReplyBytesKept = std::size_t{1} << 10;
constexpr std::size_t kOutputBytesKept = std::size_t{16} << 10;
/// From here on a reply is handed on, not copied, if it is the first to be sent.
constexpr std::size_t kReplyBytesSwapped = std::size_t{1} << 10;
/// Beside the replies and the clients, what else may be in the mailbox.
constexpr std::size_t kSpareMails = 16;

/// What an event belongs to, beside pointers to clients.
constexpr std::uint64_t kListenerTag = 1;
constexpr std::uint64_t kMailboxTag = 2;

thread_local IoThread* current_thread = nullptr;

/// Only one thread writes it.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t n = 1) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

template <typename T>
bool remove_from(T& list, const Client* client) {
  const auto at = std::find(list.begin(), list.end(), client);
  if (at == list.end()) return false;
  list.erase(at);
  return true;
}

/// A browser that was made to send an HTTP request here: its lines must not be run as commands.
bool is_http(std::string_view word) {
  return same_word(word, "POST") || same_word(word, "Host:");
}

}  // namespace

void ServerContext::say(std::string_view message) const {
  options.message(message);
}

void ServerContext::say_rarely(std::uint64_t count, const std::string& message) const {
  if (std::has_single_bit(count)) say(message + " (" + std::to_string(count) + " so far)");
}

IoThread::IoThread(ServerContext& context)
    : context_(context),
      options_(context.options),
      mailbox_(context.options.in_flight_max + context.options.clients_max + kSpareMails),
      input_(kInputBytes) {}

IoThread::~IoThread() {
  join();
}

Status IoThread::open(Listener listener, unsigned number) {
  number_ = number;
  listener_ = std::move(listener);
  SLUICE_RETURN_IF_ERROR(mailbox_.status());
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return {StatusCode::resource_exhausted, "no epoll descriptor for clients", errno};
  const auto watch = [&](int fd, std::uint64_t tag) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = tag;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (!watch(mailbox_.fd(), kMailboxTag) ||
      (listener_.fd && !watch(listener_.fd.get(), kListenerTag)))
    return {StatusCode::resource_exhausted, "cannot watch a descriptor with epoll", errno};
  if (listener_.fd) spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return {};
}

Status IoThread::launch() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return {StatusCode::resource_exhausted, "cannot start a thread for clients",
            error.code().value()};
  }
  return {};
}

void IoThread::run() {
  current_thread = this;
  pthread_setname_np(pthread_self(), ("kv-resp-" + std::to_string(number_)).c_str());
  while (!finished()) {
    wait();
    take_mail();
    take_events();
    resume_stalled();
    end_handler_round();
    send_replies();
    look_at_clock();
    bury();
    report_progress();
  }
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

bool IoThread::finished() const noexcept {
  return stopping_ && clients_.empty() && with_handler_ == 0;
}

/// Looked at before each sleep: the poke that follows a request leaves the mailbox's descriptor
/// readable, but this thread may have drained it together with an earlier signal.
bool IoThread::must_stop() const noexcept {
  // (1) acquire: pairs with (2) in request_stop(), for stop_deadline_.
  return !stopping_ && stop_requested_.load(std::memory_order_acquire);
}

// ---- waiting ------------------------------------------------------------------------------------

int IoThread::poll_events(int timeout_ms) noexcept {
  const int n =
      epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()), timeout_ms);
  return std::max(n, 0);  // EINTR: none
}

/// -1: no limit.
int IoThread::wait_limit_ms() const noexcept {
  if (!resuming_.empty() || (!starved_.empty() && free_replies() > 0) || must_stop()) return 0;
  auto until = Clock::time_point::max();
  if (!lingering_.empty()) until = lingering_.front()->linger_end;
  if (stopping_ && !clients_.empty()) until = std::min(until, stop_deadline_);
  if (until == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

void IoThread::wait() {
  const int limit_ms = wait_limit_ms();
  ready_ = 0;
  // While it is marked as asleep each completion from another thread costs that thread a system
  // call; so under load the mark is not made before a look shows that there is nothing to do.
  if (busy_ || limit_ms == 0) ready_ = poll_events(0);
  if (ready_ == 0 && limit_ms != 0 && mailbox_.prepare_to_sleep()) {
    ready_ = poll_events(limit_ms);
    mailbox_.finish_sleep();
  }
  busy_ = ready_ >= kBusyEvents;
}

void IoThread::take_mail() {
  IoMail mail;
  while (mailbox_.take(mail)) {  // bound: invariant 2
    if (mail.socket >= 0) add_client(mail.socket);
    for (PendingReply* p = mail.returned; p != nullptr;) {
      PendingReply* const next = p->next_returned;
      returned(p);
      p = next;
      busy_ = true;
    }
  }
  if (must_stop()) begin_stop();
}

void IoThread::take_events() {
  for (int i = 0; i < ready_; ++i) {
    const epoll_event& event = events_[static_cast<std::size_t>(i)];
    if (event.data.u64 == kMailboxTag) {
      mailbox_.drain_fd();
    } else if (event.data.u64 == kListenerTag) {
      accept_clients();
    } else {
      Client& client = *static_cast<Client*>(event.data.ptr);
      if (client.phase == Client::Phase::gone) continue;
      if ((event.events & (EPOLLERR | EPOLLHUP)) != 0) {
        close_client(client);
        continue;
      }
      if ((event.events & EPOLLOUT) != 0) mark_dirty(client);
      if ((event.events & EPOLLIN) != 0) readable(client);
    }
  }
}

void IoThread::resume_stalled() {
  // Those that starve go on when replies are free again, no more of them than can be served.
  for (std::size_t n = free_replies(); n > 0 && !starved_.empty(); --n) {
    starved_.front()->stalled = Client::Stalled::resuming;
    resuming_.push_back(starved_.front());
    starved_.pop_front();
  }
  std::vector<Client*> now;
  now.swap(resuming_);
  for (Client* const client : now) {
    if (client->phase == Client::Phase::gone) continue;
    client->stalled = Client::Stalled::no;
    take_requests(*client);
    limit_input(*client);
    if (client->phase == Client::Phase::open && client->stalled == Client::Stalled::no)
      listen_for(*client, true, client->writing);
  }
}

void IoThread::end_handler_round() {
  if (!std::exchange(handed_over_, false)) return;
  context_.handler.round_done();
}

void IoThread::look_at_clock() {
  if (lingering_.empty() && !stopping_) return;
  const auto now = Clock::now();
  while (!lingering_.empty() && lingering_.front()->linger_end <= now)
    close_client(*lingering_.front());
  if (stopping_ && !clients_.empty() && now >= stop_deadline_) cut_clients();
}

void IoThread::bury() {
  for (Client* const client : graveyard_) {
    if (client->stalled == Client::Stalled::starved) remove_from(starved_, client);
    if (client->stalled == Client::Stalled::resuming) remove_from(resuming_, client);
    if (client->dirty) remove_from(dirty_, client);
    std::swap(clients_[client->index], clients_.back());
    clients_[client->index]->index = client->index;
    clients_.pop_back();
  }
  graveyard_.clear();
}

// ---- clients come -------------------------------------------------------------------------------

void IoThread::accept_clients() {
  for (int i = 0; i < kAcceptsPerRound && listener_.fd; ++i) {
    const int socket = accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      welcome(socket);
    } else if (errno == EMFILE || errno == ENFILE) {
      if (!accept_without_descriptor()) return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return;  // EAGAIN: all are accepted
    }
  }
}

/// A client that stays in the queue would keep the listener readable, and this thread awake. False:
/// there was none (the kernel looks for a descriptor before it looks for a client).
bool IoThread::accept_without_descriptor() {
  spare_.reset();
  Descriptor refused(accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const bool was_there = static_cast<bool>(refused);
  refused.reset();
  spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!was_there) return false;
  add(counters_.refused);
  context_.say_rarely(counters_.refused.load(std::memory_order_relaxed),
                      "a client was refused: no more descriptors (see ulimit -n)");
  return true;
}

void IoThread::welcome(int socket) {
  Descriptor owned(socket);
  if (context_.clients.fetch_add(1, std::memory_order_relaxed) >= options_.clients_max) {
    context_.clients.fetch_sub(1, std::memory_order_relaxed);
    constexpr std::string_view kFull = "-ERR max number of clients reached\r\n";
    // A fresh socket has room for a line; if not, the client learns it from the end of it.
    (void)!send(socket, kFull.data(), kFull.size(), MSG_NOSIGNAL);
    add(counters_.refused);
    context_.say_rarely(
        counters_.refused.load(std::memory_order_relaxed),
        "a client was refused: there are " + std::to_string(options_.clients_max) + " already");
    return;
  }
  add(counters_.accepted);
  prepare_client(socket);
  IoThread& target = *context_.threads[next_thread_++ % context_.threads.size()];
  if (&target == this) {
    add_client(owned.release());
    return;
  }
  const bool posted = target.mailbox_.post(IoMail{.socket = owned.get()});
  SLUICE_CHECK(posted, "the mailbox of an I/O thread is full: more clients than clients_max");
  (void)owned.release();
}

void IoThread::add_client(int socket) {
  auto client = std::make_unique<Client>(
      socket, options_.requirepass.empty() ? options_.limits : kUnauthenticatedLimits);
  client->state.id = context_.next_id.fetch_add(1, std::memory_order_relaxed);
  client->state.durability = options_.durability;
  client->state.authenticated = options_.requirepass.empty();
  client->index = clients_.size();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = client.get();
  const bool watched = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) == 0;
  clients_.push_back(std::move(client));
  if (!watched || stopping_) close_client(*clients_.back());
}

// ---- requests -----------------------------------------------------------------------------------

void IoThread::readable(Client& client) {
  if (client.phase == Client::Phase::lingering) return discard_input(client);
  if (client.phase != Client::Phase::open || client.stalled != Client::Stalled::no)
    return listen_for(client, false, client.writing);
  if (blocked(client)) {
    stall(client);
    return listen_for(client, false, client.writing);
  }
  const ssize_t got = recv(client.fd.get(), input_.data(), input_.size(), 0);
  if (got > 0) {
    add(counters_.bytes_in, static_cast<std::uint64_t>(got));
    client.parser.feed({input_.data(), static_cast<std::size_t>(got)});
    take_requests(client);
    limit_input(client);
  } else if (got == 0) {
    client.at_end = true;
    start_closing(client);
  } else if (errno != EAGAIN && errno != EINTR) {
    close_client(client);
  }
}

void IoThread::account_input(Client& client) noexcept {
  const std::size_t before = client.input_bytes;
  client.input_bytes = client.parser.memory_bytes();
  input_bytes_ += client.input_bytes - before;  // modulo 2^64: it may be less
}

/// Each client keeps to the limits of a request, but many halves together are much.
void IoThread::limit_input(Client& client) {
  if (client.phase == Client::Phase::gone) return;
  account_input(client);
  if (input_bytes_ <= options_.input_bytes_max || client.input_bytes <= kInputBytesFair ||
      client.phase != Client::Phase::open)
    return;
  add(counters_.protocol_errors);
  refuse(client, "Protocol error: requests that are not complete take too much memory");
}

void IoThread::discard_input(Client& client) {
  const ssize_t got = recv(client.fd.get(), input_.data(), input_.size(), 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) close_client(client);
}

/// What has arrived becomes requests, as far as the client's limits allow.
void IoThread::take_requests(Client& client) {
  while (client.phase == Client::Phase::open) {  // bound: bytes of one read, or the limits
    if (blocked(client)) {
      // Often what is in the way only waits for the round's end to be sent.
      send_to(client);
      if (client.phase != Client::Phase::open) return;
      if (blocked(client)) return stall(client);
    }
    switch (client.parser.next()) {
      case RequestParser::Step::need_more: return;
      case RequestParser::Step::malformed:
        add(counters_.protocol_errors);
        return refuse(client, client.parser.error());
      case RequestParser::Step::request: serve(client); break;
    }
  }
}

void IoThread::serve(Client& client) {
  add(counters_.requests);
  const auto words = client.parser.words();
  const CommandSpec* const spec = find_command(words[0]);
  if (spec == nullptr) {
    if (is_http(words[0])) return refuse(client, "Protocol error: this looks like HTTP");
    return reply_now(client, [&](ReplyBuilder reply) { reply.error(unknown_command(words)); });
  }
  if (const std::string wrong = check_words(*spec, words); !wrong.empty())
    return reply_now(client, [&](ReplyBuilder reply) { reply.error(wrong); });
  if (!client.state.authenticated && !spec->has(CommandSpec::kNoAuth))
    return reply_now(client,
                     [](ReplyBuilder reply) { reply.error("NOAUTH Authentication required."); });
  const Request request{*spec, words, client.state};
  if (spec->has(CommandSpec::kHandler)) {
    counters_.in_flight.store(++with_handler_, std::memory_order_relaxed);
    handed_over_ = true;
    context_.handler.handle(request, Ticket(put_in_line(client)));
    return;
  }
  auto after = FrontCommands::After::go_on;
  const bool was_authenticated = client.state.authenticated;
  reply_now(client, [&](ReplyBuilder reply) { after = context_.front.answer(request, reply); });
  if (client.state.authenticated != was_authenticated) client.parser.set_limits(options_.limits);
  if (after == FrontCommands::After::close) start_closing(client);
}

/// Writes a reply that is known at once, behind those of earlier requests.
template <typename Write>
void IoThread::reply_now(Client& client, Write&& write) {
  if (client.first == nullptr) {
    write(ReplyBuilder(client.out));
  } else {
    PendingReply* const pending = put_in_line(client);
    write(ReplyBuilder(pending->bytes));
    pending->done = true;
    client.held_bytes += pending->bytes.size();
  }
  mark_dirty(client);
}

void IoThread::refuse(Client& client, std::string_view why) {
  const std::string error = "ERR " + std::string(why);
  reply_now(client, [&](ReplyBuilder reply) { reply.error(error); });
  start_closing(client);
}

// ---- holding back -------------------------------------------------------------------------------

/// No further request is taken from it now. One that is stalled has to come down to half of what
/// stalled it, so that it does not go to and fro.
bool IoThread::blocked(const Client& client) const noexcept {
  const std::size_t part = client.stalled == Client::Stalled::no ? 1 : 2;
  return client.in_line >= std::max<std::size_t>(options_.pipeline_max / part, 1) ||
         client.output_bytes() > options_.output_pause_bytes / part || free_replies() == 0;
}

void IoThread::stall(Client& client) {
  if (free_replies() == 0 && client.in_line == 0) {
    client.stalled = Client::Stalled::starved;
    starved_.push_back(&client);
  } else {
    client.stalled = Client::Stalled::by_itself;
  }
}

/// Called when something of its own was sent.
void IoThread::unstall(Client& client) {
  if (client.stalled != Client::Stalled::by_itself || client.phase != Client::Phase::open) return;
  if (client.in_line > 0 && blocked(client)) return;
  if (client.in_line == 0 && client.output_bytes() > options_.output_pause_bytes / 2) return;
  if (free_replies() == 0) {
    client.stalled = Client::Stalled::starved;
    starved_.push_back(&client);
    return;
  }
  client.stalled = Client::Stalled::resuming;
  resuming_.push_back(&client);
}

std::size_t IoThread::free_replies() const noexcept {
  return free_count_ + options_.in_flight_max - replies_.size();
}

PendingReply* IoThread::put_in_line(Client& client) {
  PendingReply* pending = free_;
  if (pending != nullptr) {
    free_ = pending->next;
    --free_count_;
  } else {
    SLUICE_CHECK(replies_.size() < options_.in_flight_max,
                 "a request was taken with no reply free");
    pending = &replies_.emplace_back();
    pending->home = this;
  }
  pending->client = &client;
  pending->next = nullptr;
  pending->next_returned = nullptr;
  pending->done = false;
  (client.first == nullptr ? client.first : client.last->next) = pending;
  client.last = pending;
  ++client.in_line;
  return pending;
}

void IoThread::release(PendingReply* pending) noexcept {
  if (pending->bytes.capacity() > kReplyBytesKept)
    release_memory(pending->bytes);
  else
    pending->bytes.clear();
  pending->client = nullptr;
  pending->next = free_;
  free_ = pending;
  ++free_count_;
}

// ---- replies ------------------------------------------------------------------------------------

void IoThread::complete(PendingReply* first) noexcept {
  if (current_thread != this) {
    const bool posted = mailbox_.post(IoMail{.returned = first});
    SLUICE_CHECK(posted, "the mailbox of an I/O thread is full: more replies than tickets");
    return;
  }
  while (first != nullptr) {
    PendingReply* const next = first->next_returned;
    returned(first);
    first = next;
  }
}

/// A ticket is back.
void IoThread::returned(PendingReply* pending) noexcept {
  counters_.in_flight.store(--with_handler_, std::memory_order_relaxed);
  Client* const client = pending->client;
  if (client == nullptr) return release(pending);
  pending->done = true;
  client->held_bytes += pending->bytes.size();
  collect(*client);
  mark_dirty(*client);
}

/// Moves what is ready at the line's front to the bytes that are sent (invariant 1).
void IoThread::collect(Client& client) noexcept {
  while (client.first != nullptr && client.first->done) {
    PendingReply* const pending = client.first;
    client.first = pending->next;
    --client.in_line;
    client.held_bytes -= pending->bytes.size();
    if (client.out.empty() && pending->bytes.size() >= kReplyBytesSwapped)
      client.out.swap(pending->bytes);
    else
      client.out.append(pending->bytes);
    release(pending);
  }
}

void IoThread::mark_dirty(Client& client) {
  if (std::exchange(client.dirty, true)) return;
  dirty_.push_back(&client);
}

void IoThread::send_replies() {
  std::size_t done = 0;
  for (; done < dirty_.size(); ++done) {
    Client& client = *dirty_[done];
    client.dirty = false;
    if (client.phase != Client::Phase::gone) send_to(client);
  }
  dirty_.clear();
}

void IoThread::send_to(Client& client) {
  if (client.unsent_bytes() > 0) {
    const ssize_t sent = send(client.fd.get(), client.out.data() + client.out_at,
                              client.unsent_bytes(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return close_client(client);
    add(counters_.sends);
    if (sent > 0) {
      add(counters_.bytes_out, static_cast<std::uint64_t>(sent));
      client.out_at += static_cast<std::size_t>(sent);
    }
  }
  after_send(client);
}

void IoThread::after_send(Client& client) {
  if (client.unsent_bytes() == 0) {
    client.out_at = 0;
    if (client.out.capacity() > kOutputBytesKept)
      release_memory(client.out);
    else
      client.out.clear();
  } else if (client.out_at > client.out.size() / 2) {
    client.out.erase(0, client.out_at);  // moves less than was sent
    client.out_at = 0;
  }
  if (client.output_bytes() > options_.output_bytes_max) return close_slow_reader(client);
  const bool full = client.unsent_bytes() > 0;
  if (full != client.writing) listen_for(client, client.reading, full);
  if (client.phase == Client::Phase::closing && client.first == nullptr && !full)
    return start_lingering(client);
  unstall(client);
}

void IoThread::close_slow_reader(Client& client) {
  add(counters_.slow_readers);
  context_.say_rarely(counters_.slow_readers.load(std::memory_order_relaxed),
                      "client " + std::to_string(client.state.id) +
                          " was closed: it does not read, and " +
                          std::to_string(client.output_bytes()) + " bytes of replies wait for it");
  close_client(client);
}

void IoThread::listen_for(Client& client, bool reading, bool writing) noexcept {
  if (client.reading == reading && client.writing == writing) return;
  client.reading = reading;
  client.writing = writing;
  epoll_event event{};
  event.events = (reading ? EPOLLIN : 0U) | (writing ? EPOLLOUT : 0U);
  event.data.ptr = &client;
  const int changed = epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.fd.get(), &event);
  SLUICE_CHECK(changed == 0, "a client's socket is not in its thread's epoll set");
}

// ---- clients go ---------------------------------------------------------------------------------

void IoThread::start_closing(Client& client) {
  if (client.phase != Client::Phase::open) return;
  client.phase = Client::Phase::closing;
  client.parser.give_up();
  account_input(client);
  mark_dirty(client);
}

void IoThread::start_lingering(Client& client) {
  // A peer that has sent its end has nothing that could be left unread.
  if (client.at_end || shutdown(client.fd.get(), SHUT_WR) != 0) return close_client(client);
  client.phase = Client::Phase::lingering;
  client.linger_end = Clock::now() + options_.linger;
  client.linger_place = lingering_.insert(lingering_.end(), &client);
  listen_for(client, true, false);
  if (!stopping_) return;
  // A stop does not wait for clients that are silent.
  char byte;
  if (recv(client.fd.get(), &byte, 1, MSG_PEEK) <= 0) close_client(client);
}

void IoThread::close_client(Client& client) {
  if (client.phase == Client::Phase::gone) return;
  if (client.phase == Client::Phase::lingering) lingering_.erase(client.linger_place);
  client.phase = Client::Phase::gone;
  input_bytes_ -= client.input_bytes;
  client.fd.reset();  // which takes it out of the epoll set
  while (client.first != nullptr) {
    PendingReply* const pending = client.first;
    client.first = pending->next;
    pending->client = nullptr;
    if (pending->done) release(pending);  // else when its ticket comes back
  }
  graveyard_.push_back(&client);
  context_.clients.fetch_sub(1, std::memory_order_relaxed);
}

// ---- the end ------------------------------------------------------------------------------------

void IoThread::request_stop(Clock::time_point deadline) noexcept {
  stop_deadline_ = deadline;
  stop_requested_.store(true, std::memory_order_release);  // (2) release: pairs with (1)
  mailbox_.poke();
}

void IoThread::begin_stop() {
  stopping_ = true;
  listener_.fd.reset();
  for (const auto& client : clients_) start_closing(*client);
}

/// The deadline is over.
void IoThread::cut_clients() {
  for (const auto& client : clients_) {
    if (client->phase == Client::Phase::gone) continue;
    if (client->phase != Client::Phase::lingering) ++cut_;
    close_client(*client);
  }
}

void IoThread::report_progress() {
  if (!stopping_ || !clients_.empty()) return;
  const std::lock_guard lock(mutex_);
  if (!std::exchange(closed_, true)) changed_.notify_all();
}

std::size_t IoThread::wait_until_closed() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_; });
  return cut_;
}

bool IoThread::wait_until_finished(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return finished_; });
}

void IoThread::join() {
  if (thread_.joinable()) thread_.join();
  IoMail mail;
  while (mailbox_.take(mail))  // sockets that came too late
    if (mail.socket >= 0) Descriptor(mail.socket).reset();
}

void IoThread::add_to(ServerStats& sum) const noexcept {
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  sum.accepted += read(counters_.accepted);
  sum.refused += read(counters_.refused);
  sum.requests += read(counters_.requests);
  sum.protocol_errors += read(counters_.protocol_errors);
  sum.slow_readers += read(counters_.slow_readers);
  sum.in_flight += read(counters_.in_flight);
  sum.bytes_in += read(counters_.bytes_in);
  sum.bytes_out += read(counters_.bytes_out);
  sum.sends += read(counters_.sends);
}

}  // namespace sluice::kv
