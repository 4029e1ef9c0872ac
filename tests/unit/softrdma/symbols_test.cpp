// SPDX-License-Identifier: BSD-3-Clause
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <array>
#include <cstdio>
#include <set>
#include <sstream>
#include <string>

namespace {

std::set<std::string> exports(const std::string& file) {
  std::set<std::string> names;
  const std::string command = "nm -D --defined-only '" + file + "'";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return names;
  std::array<char, 1024> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    std::istringstream words(line.data());
    std::string address;
    std::string kind;
    std::string name;
    if (!(words >> address >> kind >> name) || kind == "A") continue;
    names.insert(name.substr(0, name.find('@')));
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return names;
}

std::string path_of(const char* library) {
  void* handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return {};
  link_map* map = nullptr;
  ::dlinfo(handle, RTLD_DI_LINKMAP, &map);
  std::string path = map->l_name;
  ::dlclose(handle);
  return path;
}

// A call that reached the real library with an object of ours would take it for one of its own.
TEST(Symbols, EverythingThatTheRealLibrariesExportIsExported) {
  const auto ours = exports(SOFTRDMA_LIBRARY);
  for (const char* library : {"libibverbs.so.1", "librdmacm.so.1"}) {
    const std::string path = path_of(library);
    ASSERT_FALSE(path.empty()) << library;
    const auto theirs = exports(path);
    ASSERT_GT(theirs.size(), 50U) << path;
    for (const std::string& name : theirs) {
      EXPECT_TRUE(ours.contains(name)) << name << " of " << library << " is missing";
    }
  }
}

TEST(Symbols, NothingElseIsExported) {
  std::set<std::string> allowed = exports(path_of("libibverbs.so.1"));
  allowed.merge(exports(path_of("librdmacm.so.1")));
  for (const std::string& name : exports(SOFTRDMA_LIBRARY)) {
    EXPECT_TRUE(allowed.contains(name) || name.starts_with("softrdma_")) << name;
  }
}

std::string output_of(const std::string& command, int& status) {
  std::string out;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 1024> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) out += line.data();
  status = WEXITSTATUS(::pclose(pipe));
  return out;
}

TEST(Launcher, SaysWhatIsWrong) {
  int status = 0;
  EXPECT_NE(
      output_of(SOFTRDMA_RUN " --faults nonsense=1 true", status).find("unknown fault 'nonsense'"),
      std::string::npos);
  EXPECT_EQ(status, 125);
  EXPECT_NE(output_of(SOFTRDMA_RUN, status).find("no command"), std::string::npos);
  EXPECT_EQ(status, 125);
  EXPECT_NE(output_of(SOFTRDMA_RUN " --log loud true", status).find("loud"), std::string::npos);
  EXPECT_EQ(status, 125);
  output_of(SOFTRDMA_RUN " /nonexistent/program", status);
  EXPECT_EQ(status, 127);
  EXPECT_NE(
      output_of(SOFTRDMA_RUN " --library /etc/passwd true", status).find("not a shared library"),
      std::string::npos);
  EXPECT_NE(output_of(SOFTRDMA_RUN " --help", status).find("usage"), std::string::npos);
  EXPECT_EQ(status, 0);
}

// gcc's ASan refuses to be preloaded into a program that is built without it.
#if !defined(__SANITIZE_ADDRESS__)
TEST(Launcher, PassesOptionsAndTheExitStatusOn) {
  int status = 0;
  // The inner quotes keep the variables from this test's own shell.
  const std::string out = output_of(
      SOFTRDMA_RUN
      " --seed=7 --faults reorder=5 --log info --library " SOFTRDMA_LIBRARY
      " -- env LD_PRELOAD= sh -c 'echo $SOFTRDMA_SEED $SOFTRDMA_FAULTS $SOFTRDMA_LOG; exit 3'",
      status);
  EXPECT_NE(out.find("7 reorder=5 info"), std::string::npos) << out;
  EXPECT_EQ(status, 3);
}
#endif

}  // namespace
