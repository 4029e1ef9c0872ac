// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic_queue/atomic_queue.h>
#include <concurrentqueue/concurrentqueue.h>
#include <infiniband/verbs.h>
#include <oneapi/tbb/concurrent_queue.h>

#include <boost/lockfree/queue.hpp>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <type_traits>
#include <utility>

/// The queues that people would use instead, each behind the same few calls:
///   Producer / Consumer   what a thread keeps while it uses the queue
///   push_some(p, items)   how many of the first were taken; less than all: it is full
///   pop_some(c, out)      how many came out; at most one where the queue has no bulk operation
///   reopen(), finish()    before a round; once everything has come out: who waits comes back
/// All are bounded, by what they were made with.
namespace sluice::bench {

struct NoToken {
  template <typename Queue>
  explicit NoToken(Queue&) noexcept {}
};

/// What a queue without bulk operations has in common: its try_push() and try_pop(), again and
/// again.
template <typename Derived, typename T>
class OneByOne {
 public:
  using Producer = NoToken;
  using Consumer = NoToken;
  std::size_t push_some(Producer&, std::span<const T> items) {
    for (std::size_t i = 0; i < items.size(); ++i)
      if (!self().try_push(items[i])) return i;
    return items.size();
  }
  std::size_t pop_some(Consumer&, std::span<T> out) { return self().try_pop(out[0]) ? 1 : 0; }
  void reopen() noexcept {}
  void finish() noexcept {}

 private:
  Derived& self() noexcept { return static_cast<Derived&>(*this); }
};

template <typename T>
class TbbQueue : public OneByOne<TbbQueue<T>, T> {
 public:
  explicit TbbQueue(std::size_t capacity) {
    queue_.set_capacity(static_cast<std::ptrdiff_t>(capacity));
  }
  bool try_push(const T& item) { return queue_.try_push(item); }
  bool try_pop(T& out) { return queue_.try_pop(out); }

 private:
  tbb::concurrent_bounded_queue<T> queue_;
};

template <typename T>
class MoodycamelQueue {
 public:
  using Queue = moodycamel::ConcurrentQueue<T>;
  struct Producer {
    explicit Producer(MoodycamelQueue& queue) : token(queue.queue_) {}
    moodycamel::ProducerToken token;
  };
  struct Consumer {
    explicit Consumer(MoodycamelQueue& queue) : token(queue.queue_) {}
    moodycamel::ConsumerToken token;
  };
  /// It grows without end if it is let: try_enqueue takes only what it was made with.
  explicit MoodycamelQueue(std::size_t capacity) : queue_(capacity, kThreads, 0) {}
  std::size_t push_some(Producer& producer, std::span<const T> items) {
    return queue_.try_enqueue_bulk(producer.token, items.data(), items.size()) ? items.size() : 0;
  }
  std::size_t pop_some(Consumer& consumer, std::span<T> out) {
    return queue_.try_dequeue_bulk(consumer.token, out.data(), out.size());
  }
  void reopen() noexcept {}
  void finish() noexcept {}

 private:
  static constexpr std::size_t kThreads = 4;
  Queue queue_;
};

/// AtomicQueue2 takes any element, AtomicQueue only what is one atomic; the latter is faster.
template <typename T, unsigned kCapacity>
class AtomicQueueOf : public OneByOne<AtomicQueueOf<T, kCapacity>, T> {
 public:
  explicit AtomicQueueOf(std::size_t /*capacity*/) {}
  bool try_push(const T& item) { return queue_.try_push(item); }
  bool try_pop(T& out) { return queue_.try_pop(out); }

 private:
  std::conditional_t<std::is_pointer_v<T>, atomic_queue::AtomicQueue<T, kCapacity>,
                     atomic_queue::AtomicQueue2<T, kCapacity>>
      queue_;
};

template <typename T>
class BoostQueue : public OneByOne<BoostQueue<T>, T> {
 public:
  explicit BoostQueue(std::size_t capacity) : queue_(capacity) {}
  bool try_push(const T& item) { return queue_.bounded_push(item); }
  bool try_pop(T& out) { return queue_.pop(out); }

 private:
  boost::lockfree::queue<T> queue_;
};

/// std::deque, std::mutex, std::condition_variable; waits where the others come back empty-handed.
template <typename T>
class MutexQueue {
 public:
  using Producer = NoToken;
  using Consumer = NoToken;
  explicit MutexQueue(std::size_t capacity) : capacity_(capacity) {}
  std::size_t push_some(Producer&, std::span<const T> items) {
    for (const T& item : items) {
      {
        std::unique_lock lock(mutex_);
        not_full_.wait(lock, [this] { return queue_.size() < capacity_; });
        queue_.push_back(item);
      }
      not_empty_.notify_one();
    }
    return items.size();
  }
  std::size_t pop_some(Consumer&, std::span<T> out) {
    {
      std::unique_lock lock(mutex_);
      not_empty_.wait(lock, [this] { return !queue_.empty() || finished_; });
      if (queue_.empty()) return 0;
      out[0] = queue_.front();
      queue_.pop_front();
    }
    not_full_.notify_one();
    return 1;
  }
  void reopen() {
    const std::scoped_lock lock(mutex_);
    finished_ = false;
  }
  void finish() {
    {
      const std::scoped_lock lock(mutex_);
      finished_ = true;
    }
    not_empty_.notify_all();
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable not_full_;
  std::condition_variable not_empty_;
  std::deque<T> queue_;
  bool finished_ = false;
};

}  // namespace sluice::bench
