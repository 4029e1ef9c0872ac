// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <utility>

#include "sluice/core/status.hpp"

namespace sluice::topology {

/// Anonymous private memory, unmapped at the end. Untouched until populate(), so that a binding
/// made in between holds for each page. Thread-safety: a value.
class Mapping {
 public:
  /// Ordinary pages; begins at a multiple of `alignment`, itself a multiple of the page size.
  [[nodiscard]] static Result<Mapping> ordinary(std::size_t bytes, std::size_t alignment);
  /// Pages reserved from hugetlbfs' pool, of 2^page_shift bytes. The pool is the machine's: that
  /// the reservation succeeds does not mean that the pages are on the right node.
  [[nodiscard]] static Result<Mapping> hugetlb(std::size_t bytes, unsigned page_shift);

  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  /// Touches each page for writing. Where no page is to be had that is an error here, and not a
  /// SIGBUS at whoever touches it later.
  [[nodiscard]] Status populate() const;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// The caller unmaps it.
  std::byte* release() noexcept {
    bytes_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  Mapping(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;  ///< a multiple of the page size
};

[[nodiscard]] std::size_t page_size() noexcept;
/// `unit` is a power of two; the sum must not overflow.
[[nodiscard]] constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) noexcept {
  return (bytes + unit - 1) & ~(unit - 1);
}

}  // namespace sluice::topology
