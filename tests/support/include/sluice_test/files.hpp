// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace sluice::test {

/// A folder that is removed with all that is in it.
class TemporaryFolder {
 public:
  /// In `parent`, or where temporary files belong.
  explicit TemporaryFolder(const std::filesystem::path& parent = {});
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  /// The names in it, or in one of its folders, sorted.
  [[nodiscard]] std::vector<std::string> names(const std::string& within = {}) const;
  /// A file in it with this content; its path.
  [[nodiscard]] std::string file(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

/// All that a file holds; empty if it cannot be read.
[[nodiscard]] std::string content_of(const std::string& path);

}  // namespace sluice::test
