// SPDX-License-Identifier: BSD-3-Clause
// Reading callgrind's output: what is executed in a function is its own, what a call cost is not.
#include "profile.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace sluice::bench {
namespace {

/// A file with this in it, gone with its object.
class File {
 public:
  explicit File(const std::string& text) {
    path_ = (std::filesystem::temp_directory_path() / "profile.XXXXXX").string();
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) std::abort();
    ::close(fd);
    std::ofstream(path_) << text;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { ::unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr const char* kProfile = R"(# callgrind format
version: 1
positions: instr line
events: Ir

ob=/bin/program
fl=outer.cpp
fn=outer(int)
0x10 7 100
fi=inlined.hpp
0x14 3 200
fe=outer.cpp
cfn=inner()
calls=50 0x40 9
0x18 8 5000
0x18 8 50

fl=inner.cpp
fn=inner()
0x40 9 5000

ob=/lib/other
fl=???
fn=inner()
0x40 0 1
)";

TEST(Profile, TellsWhatIsExecutedFromWhatACallCost) {
  const File file(kProfile);
  const auto profile = read_profile(file.path());
  ASSERT_TRUE(profile.ok()) << profile.status().to_string();
  const auto executed = [&](const std::string& object, std::uint64_t address) {
    const auto at = profile->instructions.find({object, address});
    return at == profile->instructions.end() ? 0 : at->second.executed;
  };
  EXPECT_EQ(profile->instructions.size(), 5U);
  EXPECT_EQ(executed("/bin/program", 0x10), 100U);
  EXPECT_EQ(executed("/bin/program", 0x18), 50U) << "the call's cost is inner()'s";
  EXPECT_EQ(executed("/bin/program", 0x40), 5000U);
  EXPECT_EQ(executed("/lib/other", 0x40), 1U) << "an address is one of its object";
  EXPECT_EQ(profile->inclusive.at("outer(int)"), 100U + 200U + 5000U + 50U);
}

TEST(Profile, KnowsTheSourceLineOfWhatWasInlined) {
  const File file(kProfile);
  const auto profile = read_profile(file.path());
  ASSERT_TRUE(profile.ok());
  const auto& inlined = profile->instructions.at({"/bin/program", 0x14});
  EXPECT_EQ(inlined.file, "inlined.hpp");
  EXPECT_EQ(inlined.line, 3U);
  EXPECT_EQ(inlined.function, "outer(int)");
}

TEST(Profile, RefusesWhatItDoesNotUnderstand) {
  EXPECT_EQ(read_profile("/no/such/file").status().code(), StatusCode::io_error);
  EXPECT_FALSE(read_profile(File("version: 1\n").path()).ok()) << "nothing was counted";
  EXPECT_FALSE(read_profile(File("fn=f\n0x10 many\n").path()).ok());
}

TEST(SteppedCost, NeedsTheProgram) {
  EXPECT_FALSE(count_stepped("/no/such/program", {}).ok());
}

}  // namespace
}  // namespace sluice::bench
