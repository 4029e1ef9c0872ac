// SPDX-License-Identifier: BSD-3-Clause
// A log in a folder of its own, and what tests do to its files.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/log/log.hpp"
#include "sluice/core/completion_source.hpp"
#include "sluice/core/uring/ring.hpp"
#include "sluice_test/files.hpp"

namespace sluice::kv::testing {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

using sluice::test::TemporaryFolder;

/// In memory where there is such a folder: for tests that open a log thousands of times.
inline fs::path in_memory() {
  return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
}

inline const std::string kCluster = "test";

/// Small files, so that there are many.
inline LogOptions small_options() {
  LogOptions options;
  options.segment_bytes = 16 * 4096;
  options.chunk_bytes = 4 * 4096;
  options.tail_bytes = 8 * 4096;
  return options;
}

template <typename T>
T require(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return std::move(result).value();
}
inline void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

inline std::unique_ptr<Log> open(const std::string& folder, LogOptions options = small_options()) {
  return require(Log::open(folder, options, kCluster));
}
/// What opening it says; nothing stays open.
inline Status open_status(const std::string& folder, const LogOptions& options = small_options(),
                          const std::string& cluster = kCluster) {
  return Log::open(folder, options, cluster).status();
}

/// Bytes that say which entry they are of.
inline Bytes payload_of(std::uint64_t index, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((index * 131 + i * 7 + (i >> 8)) & 0xff);
  }
  return bytes;
}

struct Stored {
  std::uint64_t epoch = 0;
  std::uint64_t previous_epoch = 0;
  Bytes payload;
  bool operator==(const Stored&) const = default;
};
using Contents = std::map<std::uint64_t, Stored>;

/// All that the log gives from its first entry on; `step` bytes a call.
inline Contents contents_of(const Log& log, std::size_t step = 5000) {
  Contents contents;
  std::uint64_t next = log.first_index();
  while (next <= log.last_index()) {
    const auto result = require(log.read(next, step, [&](const Entry& entry) {
      EXPECT_EQ(entry.index, next) << "out of order";
      contents[entry.index] = {entry.epoch, entry.previous_epoch,
                               Bytes(entry.payload.begin(), entry.payload.end())};
      ++next;
      return true;
    }));
    if (result.next_index != next) throw std::runtime_error("read() says another next entry");
  }
  return contents;
}

/// Appends one and remembers it.
inline void append(Log& log, Contents& contents, std::size_t size, std::uint64_t epoch = 1) {
  const std::uint64_t index = log.last_index() + 1;
  const Bytes payload = payload_of(index, size);
  const std::uint64_t previous = log.last_epoch();
  ASSERT_EQ(require(log.append(epoch, payload)), index);
  contents[index] = {epoch, previous, payload};
}

inline std::shared_ptr<uring::Ring> make_ring(std::uint32_t submissions = 64) {
  return require(uring::Ring::create({.submissions = submissions}, "log"));
}

/// Takes the next completions off a ring, as a poller would: at least one; without a dispatcher.
inline std::vector<io_uring_cqe> reap(uring::Ring& ring) {
  const auto ownership = require(ring.take_ownership("the test"));
  std::vector<io_uring_cqe> cqes;
  for (int turn = 0; turn < 1000 && cqes.empty(); ++turn) {
    ibv_wc wcs[32];
    const auto outcome = ring.poll(wcs);
    for (std::uint32_t i = 0; i < outcome.count; ++i) cqes.push_back(uring::to_cqe(wcs[i]));
    ring.retire(std::span<const ibv_wc>(wcs).first(outcome.count));
    if (cqes.empty()) {
      pollfd descriptor{ring.wait_fd(), POLLIN, 0};
      (void)::poll(&descriptor, 1, 1000);
      (void)ring.consume_event();
    }
  }
  if (cqes.empty()) throw std::runtime_error("nothing completes");
  return cqes;
}
/// Submits and completes until all is durable.
inline void commit(Log& log, uring::Ring& ring) {
  while (log.has_unsubmitted() || log.in_flight() != 0) {
    require(log.submit(ring));
    for (const io_uring_cqe& cqe : reap(ring)) require(log.on_completion(cqe));
  }
}

/// The segment files that are there, by generation.
inline std::vector<std::string> segment_files(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().filename().string().starts_with("segment-")) paths.push_back(file.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline Bytes read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}
inline void write_bytes(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}
inline void copy_folder(const std::string& from, const std::string& to) {
  fs::remove_all(to);
  fs::copy(from, to, fs::copy_options::recursive);
}

}  // namespace sluice::kv::testing
