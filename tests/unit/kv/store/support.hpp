// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/store/store.hpp"
#include "sluice_test/files.hpp"
#include "workload.hpp"

namespace sluice::kv::test {

inline constexpr std::uint64_t kCluster = 7;

using sluice::test::TemporaryFolder;

[[nodiscard]] StoreOptions options();
/// Throws what fails.
[[nodiscard]] std::unique_ptr<Store> open(const std::string& folder, StoreOptions with = options());

/// Applies the writes as one batch, after what is there; throws what fails.
std::vector<Outcome> apply_to(Store& store, std::span<const Write> writes);
Outcome apply_to(Store& store, const Write& write);
[[nodiscard]] Write set(std::string key, std::string value);
[[nodiscard]] Write incr(std::string key, std::int64_t summand = 1);
[[nodiscard]] Write del(std::vector<std::string> keys);

/// What the key holds; "(none)" if nothing.
[[nodiscard]] std::string value_of(const Store& store, const std::string& key);
/// Compares all keys that the workload knows; one line that says what differs, or empty.
[[nodiscard]] std::string difference(const Store& store, const Model& model);
/// The model after the first `index` entries of the log of this seed.
[[nodiscard]] Model model_at(std::uint64_t seed, std::uint64_t index, std::size_t value_bytes_max);

/// A process of kv_store_child, its output in a pipe.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// The next line it says; empty at its end.
  [[nodiscard]] std::string line();
  void kill() const;
  /// Waits for its end: the exit status, or 128 + the signal.
  int wait();

 private:
  int pid_ = -1;
  int out_ = -1;
  std::string read_;
};

}  // namespace sluice::kv::test
