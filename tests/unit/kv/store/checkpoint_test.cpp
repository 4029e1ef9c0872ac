// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "support.hpp"

namespace sluice::kv::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

void fill(Store& store, const std::string& value, int count) {
  for (int i = 0; i < count; ++i) apply_to(store, set("key" + std::to_string(i), value));
}

/// A checkpoint of a store with 20 keys of the value "new".
Checkpoint make_new(const TemporaryFolder& folder, const std::string& to) {
  const auto source = open(folder / "source");
  fill(*source, "new", 20);
  auto made = source->make_checkpoint(to);
  if (!made) throw std::runtime_error(made.status().to_string());
  return *made;
}

// --- making ------------------------------------------------------------------------------------

TEST(Checkpoint, IsTheStateOfOneMomentWithItsPosition) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  fill(*store, "before", 150);
  const auto made = store->make_checkpoint(folder / "checkpoint");
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  apply_to(*store, set("key0", "after"));
  EXPECT_EQ(made->index, 150u);
  EXPECT_EQ(made->epoch, epoch_at(150));
  EXPECT_EQ(made->cluster_id, kCluster);
  EXPECT_GT(made->bytes(), 0u);
  EXPECT_EQ(read_checkpoint(folder / "checkpoint").value(), *made);
  EXPECT_TRUE(verify_checkpoint(folder / "checkpoint", *made).ok());

  const auto other = open(folder / "other");
  ASSERT_TRUE(other->install_checkpoint(folder / "checkpoint").ok());
  EXPECT_EQ(other->applied(), (Store::Position{epoch_at(150), 150}));
  EXPECT_EQ(other->durable_applied_index().value(), 150u);
  EXPECT_EQ(value_of(*other, "key0"), "before");
  EXPECT_EQ(value_of(*store, "key0"), "after");
}

TEST(Checkpoint, NeedsANewFolder) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  fs::create_directory(folder / "there");
  const auto made = store->make_checkpoint(folder / "there");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
  EXPECT_FALSE(store->make_checkpoint(folder / "no/parent").ok());
  EXPECT_FALSE(fs::exists(folder / "no"));
  apply_to(*store, set("a", "1"));  // it works on
}

TEST(Checkpoint, CanBeMadeOfAStoreThatCameFromOne) {
  TemporaryFolder folder;
  (void)make_new(folder, folder / "first");
  const auto store = open(folder / "data");
  ASSERT_TRUE(store->install_checkpoint(folder / "first").ok());
  apply_to(*store, set("key0", "newer"));
  const auto second = store->make_checkpoint(folder / "second");
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(second->index, 21u);
  const auto last = open(folder / "last");
  ASSERT_TRUE(last->install_checkpoint(folder / "second").ok());
  EXPECT_EQ(value_of(*last, "key0"), "newer");
  EXPECT_EQ(value_of(*last, "key1"), "new");
}

// --- installing --------------------------------------------------------------------------------

TEST(Install, ReplacesEverythingAndGoesOn) {
  TemporaryFolder folder;
  const auto made = make_new(folder, folder / "checkpoint");
  {
    const auto store = open(folder / "data");
    fill(*store, "old", 30);
    ASSERT_TRUE(store->install_checkpoint(folder / "checkpoint").ok());
    EXPECT_EQ(store->applied_index(), made.index) << "back from 30";
    EXPECT_EQ(value_of(*store, "key1"), "new");
    EXPECT_EQ(value_of(*store, "key29"), "(none)");
    EXPECT_FALSE(fs::exists(folder / "checkpoint")) << "it was taken over";
    EXPECT_EQ(apply_to(*store, incr("n")).integer, 1);
  }
  const auto store = open(folder / "data");
  EXPECT_EQ(store->applied_index(), made.index + 1);
  EXPECT_EQ(value_of(*store, "n"), "1");
  EXPECT_THAT(folder.names("data"), ElementsAre("LOCK", "STORE", "db-2", "incoming"));
}

TEST(Install, AnotherClustersCheckpointIsRefused) {
  TemporaryFolder folder;
  (void)make_new(folder, folder / "checkpoint");
  StoreOptions other = options();
  other.cluster_id = 8;
  const auto store = open(folder / "data", other);
  const Status refused = store->install_checkpoint(folder / "checkpoint");
  EXPECT_EQ(refused.code(), StatusCode::invalid_argument);
  EXPECT_THAT(refused.message(), HasSubstr("belongs to cluster 7, not to cluster 8"));
}

TEST(Install, ADamagedCheckpointIsRefusedAndTheOldStays) {
  const auto damage_and_expect = [](const std::function<void(const std::string&)>& damage,
                                    const std::string& why) {
    TemporaryFolder folder;
    const auto made = make_new(folder, folder / "checkpoint");
    const auto data = std::ranges::find_if(
        made.files, [](const auto& file) { return file.name.ends_with(".sst"); });
    ASSERT_NE(data, made.files.end());
    // A copy: the files of the checkpoint are the source's.
    fs::copy(folder / "checkpoint", folder / "copy");
    damage(folder / "copy/" + data->name);
    const auto store = open(folder / "data");
    fill(*store, "old", 3);
    const Status refused = store->install_checkpoint(folder / "copy");
    EXPECT_EQ(refused.code(), StatusCode::io_error);
    EXPECT_THAT(refused.message(), HasSubstr(why));
    EXPECT_EQ(value_of(*store, "key0"), "old");
    EXPECT_EQ(apply_to(*store, incr("n")).integer, 1);
  };
  damage_and_expect(
      [](const std::string& path) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(10);
        const char flipped = static_cast<char>(file.get() ^ 1);
        file.seekp(10);
        file.put(flipped);
      },
      "is damaged: its CRC differs");
  damage_and_expect([](const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); },
                    "bytes, not");
  damage_and_expect([](const std::string& path) { fs::remove(path); }, "is not whole");
  damage_and_expect([](const std::string& path) { std::ofstream(path + ".more") << "x"; },
                    "not in its listing");
}

TEST(Install, WithoutAListingThereIsNoCheckpoint) {
  TemporaryFolder folder;
  const auto store = open(folder / "data");
  fs::create_directory(folder / "empty");
  const Status refused = store->install_checkpoint(folder / "empty");
  EXPECT_EQ(refused.code(), StatusCode::io_error);
  EXPECT_THAT(refused.message(), HasSubstr("no checkpoint lies in"));
}

/// The steps of an installation, in their order.
std::vector<std::string> steps_of_an_installation() {
  TemporaryFolder folder;
  (void)make_new(folder, folder / "checkpoint");
  std::vector<std::string> steps;
  StoreOptions noting = options();
  noting.on_step = [&](std::string_view step) {
    steps.emplace_back(step);
    return Status();
  };
  const auto store = open(folder / "data", noting);
  steps.clear();
  EXPECT_TRUE(store->install_checkpoint(folder / "checkpoint").ok());
  return steps;
}

constexpr const char* kLastWithTheOld = "put the new database in force";

TEST(Install, ACrashBeforeAnyStepLeavesTheOldOrTheNew) {
  const auto steps = steps_of_an_installation();
  ASSERT_GE(steps.size(), 7u);
  bool is_new = false;
  for (const std::string& step : steps) {
    SCOPED_TRACE(step);
    TemporaryFolder folder;
    const auto made = make_new(folder, folder / "checkpoint");
    {
      const auto store = open(folder / "data");
      fill(*store, "old", 30);
    }
    Child child({"install", folder / "data", folder / "checkpoint", step});
    ASSERT_EQ(child.wait(), 128 + SIGKILL);
    {
      const auto store = open(folder / "data");
      EXPECT_EQ(store->applied_index(), is_new ? made.index : 30);
      EXPECT_EQ(value_of(*store, "key1"), is_new ? "new" : "old");
      EXPECT_EQ(value_of(*store, "key29"), is_new ? "(none)" : "old");
      EXPECT_EQ(apply_to(*store, incr("n")).integer, 1);
    }
    const std::string database = is_new ? "db-2" : "db-1";
    EXPECT_THAT(folder.names("data"), ElementsAre("LOCK", "STORE", database, "incoming"));
    if (step == kLastWithTheOld) is_new = true;
  }
  EXPECT_TRUE(is_new);
}

TEST(Install, AFailureOfAnyStepLeavesAStoreThatWorks) {
  const auto steps = steps_of_an_installation();
  bool is_new = false;
  for (const std::string& failing : steps) {
    SCOPED_TRACE(failing);
    TemporaryFolder folder;
    (void)make_new(folder, folder / "checkpoint");
    bool fail = true;
    StoreOptions with = options();
    with.on_step = [&](std::string_view step) {
      return fail && step == failing ? Status(StatusCode::io_error, "on purpose") : Status();
    };
    auto store = open(folder / "data", with);
    fill(*store, "old", 30);
    const Status installed = store->install_checkpoint(folder / "checkpoint");
    EXPECT_EQ(installed.ok(), is_new) << installed.to_string();
    EXPECT_EQ(value_of(*store, "key1"), is_new ? "new" : "old");
    EXPECT_EQ(apply_to(*store, incr("n")).integer, 1);
    // And it works with the next one.
    fail = false;
    const auto again = make_new(folder, folder / "again");
    EXPECT_TRUE(store->install_checkpoint(folder / "again").ok());
    EXPECT_EQ(store->applied_index(), again.index);
    EXPECT_EQ(value_of(*store, "n"), "(none)");
    store.reset();
    EXPECT_EQ(open(folder / "data")->applied_index(), again.index);
    if (failing == kLastWithTheOld) is_new = true;
  }
}

TEST(Install, WhatWasReceivedInPartIsRemovedAtTheNextOpen) {
  TemporaryFolder folder;
  const std::string incoming = open(folder / "data")->incoming();
  std::ofstream(incoming + "/000007.sst") << "half of it";
  EXPECT_TRUE(fs::is_empty(open(folder / "data")->incoming()));
}

// --- the listing -------------------------------------------------------------------------------

TEST(Listing, ComesBackFromItsText) {
  Checkpoint checkpoint;
  checkpoint.cluster_id = ~std::uint64_t{0};
  checkpoint.epoch = 3;
  checkpoint.index = std::uint64_t{1} << 60;
  checkpoint.files = {{"000012.sst", std::uint64_t{1} << 40, 0xffffffff}, {"CURRENT", 16, 0}};
  EXPECT_EQ(parse_checkpoint(to_text(checkpoint)).value(), checkpoint);
}

TEST(Listing, AnythingElseIsRefused) {
  const auto listing = [](const std::string& files) {
    return R"({"format":1,"cluster_id":7,"epoch":1,"index":5,"files":)" + files + "}";
  };
  const auto file = [&](const std::string& name,
                        const std::string& rest = R"(,"bytes":1,"crc32c":2)") {
    return listing(R"([{"name":)" + name + rest + "}]");
  };
  ASSERT_TRUE(parse_checkpoint(file(R"("000012.sst")")).ok());
  ASSERT_TRUE(parse_checkpoint(listing("[]")).ok());
  for (const std::string& bad :
       {std::string(),
        std::string("{"),
        std::string("[]"),
        std::string("7"),
        listing("7"),
        std::string(100'000, '['),
        listing(std::string(100'000, '[')),
        listing("[7]"),
        listing(R"([["a"]])"),
        std::string(R"({"format":1})"),
        std::string(R"({"format":"1","cluster_id":7,"epoch":1,"index":5,"files":[]})"),
        std::string(R"({"format":-1,"cluster_id":7,"epoch":1,"index":5,"files":[]})"),
        std::string(R"({"format":1,"cluster_id":7,"epoch":1.5,"index":5,"files":[]})"),
        file("7"),
        file(R"("")"),
        file(R"("..")"),
        file(R"("../x")"),
        file(R"("/etc/passwd")"),
        file(R"("a/b")"),
        file(R"(".hidden")"),
        file(R"("a\u0000b")"),
        file(R"("CHECKPOINT")"),
        file(R"("a b")"),
        file('"' + std::string(256, 'a') + '"'),
        file(R"("a")", ""),
        file(R"("a")", R"(,"bytes":-1,"crc32c":2)"),
        file(R"("a")", R"(,"bytes":1,"crc32c":4294967296)"),
        listing(R"([{"name":"a","bytes":1,"crc32c":2},{"name":"a","bytes":1,"crc32c":2}])")}) {
    const auto parsed = parse_checkpoint(bad);
    ASSERT_FALSE(parsed.ok()) << bad.substr(0, 200);
    EXPECT_EQ(parsed.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(parsed.status().message(),
                AllOf(HasSubstr("malformed listing"), Not(HasSubstr("\n"))));
  }
  const auto newer = parse_checkpoint(R"({"format":2,"whatever":[]})");
  EXPECT_EQ(newer.status().code(), StatusCode::not_supported);
  EXPECT_THAT(newer.status().message(), HasSubstr("format 2, made by a newer version"));
}

}  // namespace
}  // namespace sluice::kv::test
