// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace sluice::test {

/// How sluice-plan ended, and what it said.
struct Ended {
  int status = -1;  ///< exit status; 128 + signal
  std::string out, err;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Runs sluice-plan to its end, in a folder, without any SLUICE_ variable but those given.
/// `out`: where standard output goes instead of Ended::out; "closed" for nowhere at all,
/// "broken pipe" for a reader that has gone.
Ended run_plan(const std::vector<std::string>& arguments, const Environment& environment = {},
               const std::string& out = {});

/// A folder that is removed with all that is in it.
class Folder {
 public:
  Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder();
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  /// A file in it with this content; its path.
  [[nodiscard]] std::string file(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

[[nodiscard]] std::string content_of(const std::string& path);
[[nodiscard]] std::size_t lines_of(const std::string& text);

}  // namespace sluice::test
