// SPDX-License-Identifier: BSD-3-Clause
// What goes wrong is told in one line that says what and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "support.hpp"

namespace sluice::kv::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

void expect_refused(const Result<std::unique_ptr<Store>>& opened, StatusCode code,
                    const std::string& why) {
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), code) << opened.status().to_string();
  EXPECT_THAT(opened.status().message(), AllOf(HasSubstr(why), Not(HasSubstr("\n"))));
}

TEST(Errors, AnotherClustersFolder) {
  TemporaryFolder folder;
  (void)open(folder / "data");
  StoreOptions other = options();
  other.cluster_id = 8;
  expect_refused(Store::open(folder / "data", other), StatusCode::invalid_argument,
                 "belongs to cluster 7, not to cluster 8");
  (void)open(folder / "data");  // and nothing has happened to it
}

TEST(Errors, AFolderThatIsInUse) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  expect_refused(Store::open(folder / "data", options()), StatusCode::already_owned,
                 "is in use by another process");
  apply_to(*store, set("a", "1"));
}

TEST(Errors, AFileWhereTheFolderShouldBe) {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  expect_refused(Store::open(folder / "file", options()), StatusCode::io_error, folder / "file");
  expect_refused(Store::open(folder / "file/beneath", options()), StatusCode::io_error,
                 folder / "file/beneath");
}

TEST(Errors, AFolderThatMayNotBeWritten) {
  TemporaryFolder folder;
  fs::create_directory(folder / "data");
  fs::permissions(folder / "data", fs::perms::owner_read | fs::perms::owner_exec);
  // Root may write anywhere; this thread asks as nobody.
  constexpr uid_t kNobody = 65534;
  const uid_t me = geteuid();
  if (me == 0) {
    fs::permissions(fs::path(folder / "data").parent_path(), fs::perms::all);
    fs::permissions(folder / "data",
                    fs::perms::all & ~(fs::perms::owner_write | fs::perms::group_write |
                                       fs::perms::others_write));
    setfsuid(kNobody);
  }
  const auto opened = Store::open(folder / "data", options());
  if (me == 0) setfsuid(me);
  expect_refused(opened, StatusCode::permission_denied, folder / "data");
  EXPECT_NE(opened.status().os_error(), 0);
}

TEST(Errors, ANewerFormat) {
  TemporaryFolder folder;
  (void)open(folder / "data");
  std::ofstream(folder / "data/STORE") << "sluice-kv store, format 2\nsomething else\n";
  expect_refused(Store::open(folder / "data", options()), StatusCode::not_supported,
                 "has format 2, made by a newer version; this one reads format 1");
}

TEST(Errors, ANewerFormatOfTheDatabaseItself) {
  TemporaryFolder folder;
  (void)open(folder / "data");
  rocksdb::DB* raw = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), folder / "data/db-1", &raw).ok());
  std::string identity("\2\0\0\0\0\0\0\0\7\0\0\0\0\0\0\0", 16);
  ASSERT_TRUE(raw->Put(rocksdb::WriteOptions(), std::string("\0identity", 9), identity).ok());
  delete raw;
  expect_refused(Store::open(folder / "data", options()), StatusCode::not_supported,
                 "has format 2, made by a newer version");
}

TEST(Errors, ADamagedStoreFile) {
  for (const std::string& text :
       {std::string(), std::string("db-1\n"), std::string("sluice-kv store, format 1\n"),
        std::string("sluice-kv store, format 1\ndb-x\n"),
        std::string("sluice-kv store, format 1\ndb-1"),
        std::string("sluice-kv store, format 1\n\n"),
        std::string("sluice-kv store, format x\ndb-1\n"), std::string(1000, 'x')}) {
    TemporaryFolder folder;
    (void)open(folder / "data");
    std::ofstream(folder / "data/STORE") << text;
    const auto opened = Store::open(folder / "data", options());
    ASSERT_FALSE(opened.ok()) << text;
    EXPECT_EQ(opened.status().code(), StatusCode::io_error);
    EXPECT_THAT(opened.status().message(), HasSubstr(folder / "data/STORE"));
  }
}

TEST(Errors, DataWithoutAStoreFileIsNotThrownAway) {
  TemporaryFolder folder;
  apply_to(*open(folder / "data"), set("a", "1"));
  fs::rename(folder / "data/STORE", folder / "STORE");
  expect_refused(Store::open(folder / "data", options()), StatusCode::io_error,
                 "has data in db-1 but no file STORE");
  fs::rename(folder / "STORE", folder / "data/STORE");
  EXPECT_EQ(value_of(*open(folder / "data"), "a"), "1");
}

TEST(Errors, ADatabaseThatIsGone) {
  TemporaryFolder folder;
  (void)open(folder / "data");
  fs::remove_all(folder / "data/db-1");
  const auto opened = Store::open(folder / "data", options());
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(),
              AllOf(HasSubstr("cannot open the store in"), Not(HasSubstr("\n"))));
  EXPECT_FALSE(fs::exists(folder / "data/db-1/CURRENT")) << "an empty one in its place";
}

TEST(Errors, ADamagedDataFile) {
  TemporaryFolder folder;
  {
    const auto store = open(folder / "data");
    for (int i = 0; i < 100; ++i)
      apply_to(*store, set("key" + std::to_string(i), std::string(100, 'x')));
  }
  for (const auto& entry : fs::directory_iterator(folder / "data/db-1")) {
    if (entry.path().extension() == ".sst")
      std::ofstream(entry.path(), std::ios::trunc) << "nothing of the kind";
  }
  const auto opened = Store::open(folder / "data", options());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::io_error);
  EXPECT_THAT(opened.status().message(), AllOf(HasSubstr("db-1"), Not(HasSubstr("\n"))));
}

TEST(Errors, OptionsOutOfRange) {
  TemporaryFolder folder;
  StoreOptions no_cluster, small = options(), idle = options();
  small.write_buffer_bytes = 1;
  idle.background_threads = 0;
  expect_refused(Store::open(folder / "data", no_cluster), StatusCode::invalid_argument,
                 "cluster_id is 0");
  expect_refused(Store::open(folder / "data", small), StatusCode::invalid_argument,
                 "write_buffer_bytes is 1; 64 KiB to 4 GiB");
  expect_refused(Store::open(folder / "data", idle), StatusCode::invalid_argument,
                 "background_threads is 0; 1 to 64");
  EXPECT_FALSE(fs::exists(folder / "data"));
}

// A limit on the size of files stands for a disk that is full: write(2) fails half-way, in the
// background.
TEST(Errors, ADiskThatTakesNoMoreIsToldReadsGoOnAndWritesAfterTheNextOpen) {
  TemporaryFolder folder;
  Child child({"full", folder / "data"});
  EXPECT_THAT(child.line(), AllOf(HasSubstr("failed: io_error: the store in "),
                                  HasSubstr("takes no writes: "), HasSubstr("File too large")));
  EXPECT_THAT(child.line(), AllOf(HasSubstr("health: io_error: "), HasSubstr("File too large")));
  EXPECT_EQ(child.line(), "reads: ok");
  EXPECT_THAT(child.line(), AllOf(HasSubstr("still: io_error: "), HasSubstr("File too large")));
  EXPECT_EQ(child.line(), "again: ok, 1 more");
  EXPECT_EQ(child.line(), "flushed: ok");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace sluice::kv::test
