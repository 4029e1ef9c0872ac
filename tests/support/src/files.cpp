// SPDX-License-Identifier: BSD-3-Clause
#include "sluice_test/files.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

namespace sluice::test {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder(const fs::path& parent) {
  std::string name =
      ((parent.empty() ? fs::temp_directory_path() : parent) / "sluice-test.XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryFolder::names(const std::string& within) const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_ / within))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

std::string TemporaryFolder::file(const std::string& name, const std::string& content) const {
  std::ofstream(*this / name, std::ios::binary) << content;
  return *this / name;
}

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace sluice::test
