// SPDX-License-Identifier: BSD-3-Clause
// What open() makes of files that are not as they were written.
#include "kv/log/format.hpp"
#include "support.hpp"

namespace sluice::kv::testing {
namespace {

/// A log of some segments with three blocks of entries, so that every byte of it can be tried.
LogOptions tiny_options() {
  LogOptions options;
  options.segment_bytes = 5 * 4096;
  options.chunk_bytes = 4 * 4096;
  options.direct = false;
  return options;
}

/// What a damaged copy must be: refused as damaged, or a prefix of what was there; a shorter one
/// only with a report. Never a wrong entry.
void expect_prefix_or_refused(const std::string& folder, const Contents& expected,
                              const std::string& what) {
  auto log = Log::open(folder, tiny_options(), kCluster);
  if (!log.ok()) {
    const StatusCode code = log.status().code();
    // A version that is newer, or another cluster's name, is what the damage may look like.
    EXPECT_TRUE(code == StatusCode::device_failed || code == StatusCode::not_supported)
        << what << ": " << log.status().to_string();
    EXPECT_NE(log.status().message().find("segment-"), std::string::npos) << what;
    EXPECT_EQ(log.status().message().find('\n'), std::string::npos) << "one line";
    return;
  }
  const Contents found = contents_of(**log);
  ASSERT_LE(found.size(), expected.size()) << what;
  for (const auto& [index, stored] : found) {
    ASSERT_EQ(stored, expected.at(index)) << what << ": entry " << index;
  }
  if (found.size() < expected.size()) {
    ASSERT_TRUE((*log)->recovery().cut) << what << ": silently shorter: " << found.size();
    EXPECT_NE((*log)->recovery().cut->message.find("segment-"), std::string::npos);
  }
}

/// A small log with its clean copy in `temp`/clean. `fill`: entries (size each), synced in groups.
Contents make_log(const TemporaryFolder& temp,
                  const std::vector<std::vector<std::size_t>>& groups) {
  Contents expected;
  const auto log = open(temp / "clean", tiny_options());
  for (const auto& group : groups) {
    for (const std::size_t size : group) append(*log, expected, size);
    require(log->sync());
  }
  log->settle();
  return expected;
}

/// The segments that entries are in.
std::vector<std::string> used_files(const std::string& folder) {
  std::vector<std::string> used;
  for (const std::string& path : segment_files(folder)) {
    const Bytes bytes = read_bytes(path);
    format::SegmentHeader header;
    format::Activation activation;
    if (format::decode(bytes, header) == format::HeaderFault::none &&
        format::decode(std::span(bytes).subspan(format::kActivationAt), header.salt, activation) ==
            format::ActivationState::valid) {
      used.push_back(path);
    }
  }
  return used;
}

/// Offset of an entry in its file.
std::uint64_t offset_of(const std::string& path, std::uint64_t index) {
  const Bytes bytes = read_bytes(path);
  format::SegmentHeader header;
  if (format::decode(bytes, header) != format::HeaderFault::none)
    throw std::runtime_error("header");
  for (std::uint64_t at = format::kEntriesAt; at + 48 <= bytes.size(); at += 8) {
    format::EntryHeader entry;
    if (format::decode(std::span(bytes).subspan(at, 48), format::seed_of(header.salt), entry) &&
        entry.index == index) {
      return at;
    }
  }
  throw std::runtime_error("no such entry");
}

void flip(const std::string& path, std::uint64_t offset, std::byte with) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const auto old = static_cast<std::byte>(file.get());
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(old ^ with));
}

void zero(const std::string& path, std::uint64_t from, std::uint64_t count) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(from));
  const std::string zeros(count, '\0');
  file.write(zeros.data(), static_cast<std::streamsize>(count));
}

// --- every byte ---------------------------------------------------------------------------------

TEST(Recovery, CutAtEveryByteItIsAPrefixAndSaysSo) {
  const TemporaryFolder temp(in_memory());
  const Contents expected = make_log(temp, {{100, 200}, {50}, {1000, 30}});
  copy_folder(temp / "clean", temp / "log");
  const std::string path = used_files(temp / "log").at(0);
  const Bytes whole = read_bytes(path);
  for (std::uint64_t size = 0; size < whole.size(); ++size) {
    // All bytes that mean something and those beside them, and one in 61 of the zeros.
    const auto near = std::span(whole).subspan(size - std::min<std::uint64_t>(size, 8), 8);
    const bool dull = size % 61 != 0 && std::ranges::all_of(near, [](std::byte byte) {
                        return byte == std::byte{0};
                      });
    if (dull) continue;
    copy_folder(temp / "clean", temp / "log");
    fs::resize_file(path, size);
    if (size < 4096) {
      EXPECT_EQ(open_status(temp / "log", tiny_options()).code(), StatusCode::device_failed);
      continue;
    }
    const auto log = open(temp / "log", tiny_options());
    const Contents found = contents_of(*log);
    for (const auto& [index, stored] : found) ASSERT_EQ(stored, expected.at(index)) << size;
    ASSERT_TRUE(log->recovery().cut) << size;
    EXPECT_NE(log->recovery().cut->message.find(path), std::string::npos);
    // Where each entry ends.
    const std::uint64_t ends[] = {8192 + 152, 8192 + 400, 12288 + 104, 16384 + 1048, 16384 + 1128};
    const auto whole_ones = std::ranges::count_if(ends, [&](auto end) { return end <= size; });
    ASSERT_EQ(found.size(), static_cast<std::size_t>(whole_ones)) << size;
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(Recovery, WithAnyByteFlippedItIsRefusedOrAPrefixThatSaysSo) {
  const TemporaryFolder temp(in_memory());
  // Two used segments, several groups each, entries that cross blocks.
  const Contents expected =
      make_log(temp, {{100, 20}, {3000, 2000}, {64}, {500, 40, 41}, {5000}, {300}});
  ASSERT_GE(used_files(temp / "clean").size(), 2u);
  copy_folder(temp / "clean", temp / "log");
  for (const std::string& path : segment_files(temp / "log")) {
    const Bytes clean = read_bytes(path);
    for (std::uint64_t at = 0; at < clean.size(); ++at) {
      // All bytes that mean something, and one in 61 of the others.
      const bool dull = clean[at] == std::byte{0} && at % 61 != 0;
      if (dull) continue;
      const std::string was = temp / "log";
      copy_folder(temp / "clean", was);
      flip(path, at, at % 2 == 0 ? std::byte{1} : std::byte{0xff});
      expect_prefix_or_refused(was, expected, path + " @" + std::to_string(at));
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }
}

TEST(Recovery, WithAnyBlockMissingItIsRefusedOrAPrefix) {
  const TemporaryFolder temp(in_memory());
  const Contents expected =
      make_log(temp, {{100, 20}, {3000, 2000}, {64}, {500, 40, 41}, {5000}, {300}});
  for (const std::string& name : segment_files(temp / "clean")) {
    for (std::uint64_t block = 0; block < 5; ++block) {
      for (const bool random : {false, true}) {
        copy_folder(temp / "clean", temp / "log");
        const std::string path = temp / "log/" + fs::path(name).filename().string();
        zero(path, block * 4096, 4096);
        if (random) {
          for (std::uint64_t i = 0; i < 4096; ++i) {
            flip(path, block * 4096 + i, static_cast<std::byte>(i * 37 + 11));
          }
        }
        auto log = Log::open(temp / "log", tiny_options(), kCluster);
        if (!log.ok()) {
          EXPECT_EQ(log.status().code(), StatusCode::device_failed);
          continue;
        }
        const Contents found = contents_of(**log);
        for (const auto& [index, stored] : found) ASSERT_EQ(stored, expected.at(index));
        // A hole where the last group alone was is as if it had never been written.
        EXPECT_TRUE((*log)->recovery().cut || found.size() + 1 >= expected.size()) << path << block;
      }
    }
  }
}

// --- torn and damaged ---------------------------------------------------------------------------

// Where old entries lie behind the end, no zeros tell that something is wrong.
TEST(Recovery, ADamagedLastEntryOfAFileThatIsUsedAgainIsTold) {
  const TemporaryFolder temp(in_memory());
  std::uint64_t last = 0;
  {
    const auto log = open(temp / "clean", tiny_options());
    for (int i = 0; i < 12; ++i) {
      (void)require(log->append(1, payload_of(1, 5000)));
      require(log->sync());
      log->trim_before(log->last_index());
      log->settle();
    }
    last = require(log->append(1, payload_of(2, 30)));
    require(log->sync());
    ASSERT_GE(log->counters().segments_reused, 2u);
  }
  const std::string name = fs::path(used_files(temp / "clean").back()).filename().string();
  const std::uint64_t at = offset_of(temp / "clean/" + name, last);
  for (std::uint64_t i = 0; i < 48 + 30; ++i) {
    copy_folder(temp / "clean", temp / "log");
    flip(temp / "log/" + name, at + i, std::byte{0xff});
    const auto log = open(temp / "log", tiny_options());
    ASSERT_EQ(log->last_index(), last - 1) << i;
    ASSERT_TRUE(log->recovery().cut) << "byte " << i << ": silently shorter";
  }
}

TEST(Recovery, ATornGroupIsCutOffAndTheLogGoesOnBehindIt) {
  const TemporaryFolder temp;
  Contents expected = make_log(temp, {{100}, {200, 3000, 3000, 500}});
  const std::string path = used_files(temp / "clean").at(0);
  zero(path, 3 * 4096 + 4096, 4096);  // the second block of the second group did not get there
  {
    const auto log = open(temp / "clean", tiny_options());
    ASSERT_TRUE(log->recovery().cut);
    EXPECT_EQ(log->recovery().cut->after, 3u) << "what of the group is whole is kept";
    EXPECT_EQ(log->last_index(), 3u);
    expected.erase(expected.find(4), expected.end());
    EXPECT_EQ(contents_of(*log), expected);
    append(*log, expected, 700, 2);
    require(log->sync());
  }
  const auto log = open(temp / "clean", tiny_options());
  EXPECT_FALSE(log->recovery().cut) << log->recovery().cut->message;
  EXPECT_EQ(contents_of(*log), expected);
}

TEST(Recovery, AHoleInTheLastGroupIsToldWithWhatIsBehindIt) {
  const TemporaryFolder temp;
  // The last group's entries begin on blocks, so that what survives is found.
  (void)make_log(temp, {{100}, {4048, 4048}});
  const std::string path = used_files(temp / "clean").at(0);
  zero(path, 3 * 4096, 4096);
  const auto log = open(temp / "clean", tiny_options());
  EXPECT_EQ(log->last_index(), 1u);
  ASSERT_TRUE(log->recovery().cut);
  EXPECT_EQ(log->recovery().cut->known_beyond, 3u);
  EXPECT_NE(log->recovery().cut->message.find("dropped entries 2 to 3"), std::string::npos)
      << log->recovery().cut->message;
}

TEST(Recovery, GarbageBehindTheEndOfANewFileIsTold) {
  const TemporaryFolder temp;
  (void)make_log(temp, {{100}});
  const std::string path = used_files(temp / "clean").at(0);
  flip(path, 3 * 4096 + 77, std::byte{5});
  const auto log = open(temp / "clean", tiny_options());
  EXPECT_EQ(log->last_index(), 1u);
  ASSERT_TRUE(log->recovery().cut);
  EXPECT_NE(log->recovery().cut->message.find("garbage at offset 12365"), std::string::npos)
      << log->recovery().cut->message;
}

TEST(Recovery, ADamagedMiddleIsRefusedWithFileOffsetEntryAndWhatToDo) {
  const TemporaryFolder temp;
  (void)make_log(temp, {{100}, {200}, {300}});
  const std::string path = used_files(temp / "clean").at(0);
  const std::uint64_t at = offset_of(path, 2);
  flip(path, at + 60, std::byte{1});
  const Status status = open_status(temp / "clean", tiny_options());
  EXPECT_EQ(status.code(), StatusCode::device_failed);
  for (const std::string& part : {path, "offset " + std::to_string(at), std::string("entry 2"),
                                  std::string("up to 2"), std::string("remove the folder")}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message() << ": " << part;
  }
  // It can be told again, nothing was changed; and described; and made anew.
  EXPECT_EQ(open_status(temp / "clean", tiny_options()).code(), StatusCode::device_failed);
  EXPECT_NE(require(Log::describe(temp / "clean")).find("damaged in the middle"),
            std::string::npos);
  require(Log::erase(temp / "clean"));
  EXPECT_TRUE(open_status(temp / "clean", tiny_options()).ok());
}

TEST(Recovery, ADamagedEarlierSegmentIsRefused) {
  const TemporaryFolder temp;
  (void)make_log(temp, {{5000}, {5000}, {5000}, {100}});
  const auto files = used_files(temp / "clean");
  ASSERT_GE(files.size(), 3u);
  flip(files[0], offset_of(files[0], 1) + 1000, std::byte{1});
  EXPECT_EQ(open_status(temp / "clean", tiny_options()).code(), StatusCode::device_failed);
}

TEST(Recovery, AMissingSegmentIsRefused) {
  const TemporaryFolder temp;
  (void)make_log(temp, {{5000}, {5000}, {5000}, {100}});
  const auto files = used_files(temp / "clean");
  ASSERT_GE(files.size(), 3u);
  fs::remove(files[1]);
  const Status status = open_status(temp / "clean", tiny_options());
  EXPECT_EQ(status.code(), StatusCode::device_failed);
  EXPECT_NE(status.message().find("missing"), std::string::npos) << status.message();
}

TEST(Recovery, ARenamedSegmentIsRefused) {
  const TemporaryFolder temp;
  (void)make_log(temp, {{5000}, {5000}, {5000}, {100}});
  const auto files = used_files(temp / "clean");
  fs::rename(files[0], temp / "clean/segment-0000000000000fff");
  EXPECT_EQ(open_status(temp / "clean", tiny_options()).code(), StatusCode::device_failed);
}

TEST(Recovery, ANewerFormatIsRefused) {
  const TemporaryFolder temp;
  (void)make_log(temp, {{10}});
  const std::string path = used_files(temp / "clean").at(0);
  flip(path, 8, std::byte{3});  // version 1 -> 2
  const Status status = open_status(temp / "clean", tiny_options());
  EXPECT_EQ(status.code(), StatusCode::not_supported);
  EXPECT_NE(status.message().find("format 2"), std::string::npos) << status.message();
}

TEST(Recovery, ASegmentWhoseBeginIsDamagedIsRefusedIfItHeldDurableEntries) {
  const TemporaryFolder temp;
  (void)make_log(temp, {{10}, {20}, {30}});
  flip(used_files(temp / "clean").at(0), format::kActivationAt + 3, std::byte{1});
  EXPECT_EQ(open_status(temp / "clean", tiny_options()).code(), StatusCode::device_failed);
}

TEST(Recovery, ASegmentThatWasJustBegunIsDroppedIfItsBeginDidNotGetThere) {
  const TemporaryFolder temp;
  Contents expected = make_log(temp, {{10}, {11000}});
  const auto files = used_files(temp / "clean");
  ASSERT_EQ(files.size(), 2u);
  zero(files[1], format::kActivationAt, 512);
  expected.erase(2);
  {
    const auto log = open(temp / "clean", tiny_options());
    ASSERT_TRUE(log->recovery().cut);
    EXPECT_EQ(contents_of(*log), expected);
    append(*log, expected, 60, 5);
    require(log->sync());
  }
  EXPECT_EQ(contents_of(*open(temp / "clean", tiny_options())), expected);
}

// A process that dies between two steps of making, recycling and cutting.
TEST(Recovery, HalfDoneWorkOfTheBackgroundIsFinishedOrForgotten) {
  const TemporaryFolder temp;
  Contents expected = make_log(temp, {{5000}, {5000}, {100}});
  const auto files = used_files(temp / "clean");
  write_bytes(temp / "clean/making.tmp", Bytes(5000));
  write_bytes(temp / "clean/free-0000000000000009", read_bytes(files[0]));  // any contents
  write_bytes(temp / "clean/free-000000000000000a", Bytes(3));              // a wrong size
  {
    const auto log = open(temp / "clean", tiny_options());
    EXPECT_FALSE(log->recovery().cut);
    EXPECT_FALSE(fs::exists(temp / "clean/making.tmp"));
    for (int i = 0; i < 20; ++i) append(*log, expected, 5000);
    require(log->sync());
    log->settle();
    EXPECT_GE(log->counters().segments_reused, 1u);
  }
  EXPECT_EQ(contents_of(*open(temp / "clean", tiny_options())), expected);
}

TEST(Recovery, SegmentsThatACutMadeVoidMayStillBeThere) {
  const TemporaryFolder temp;
  Contents expected = make_log(temp, {{5000}, {5000}, {5000}, {100}});
  const auto files = used_files(temp / "clean");
  ASSERT_GE(files.size(), 3u);
  copy_folder(temp / "clean", temp / "old");
  {
    const auto log = open(temp / "clean", tiny_options());
    require(log->truncate_after(1));
    log->settle();
  }
  expected.erase(expected.find(2), expected.end());
  // As before the recycling.
  for (const std::string& path : files) {
    const std::string name = fs::path(path).filename().string();
    fs::copy_file(temp / "old/" + name, temp / "clean/" + name,
                  fs::copy_options::overwrite_existing);
  }
  const auto log = open(temp / "clean", tiny_options());
  EXPECT_FALSE(log->recovery().cut) << log->recovery().cut->message;
  EXPECT_EQ(contents_of(*log), expected);
  log->settle();
}

TEST(Recovery, ADamageFoundWhileReadingIsTold) {
  const TemporaryFolder temp;
  LogOptions options = tiny_options();
  options.tail_bytes = 0;  // all from the files
  const auto log = open(temp / "log", options);
  Contents expected;
  for (int i = 0; i < 10; ++i) append(*log, expected, 3000);
  require(log->sync());
  const std::string path = used_files(temp / "log").at(0);
  flip(path, offset_of(path, 2) + 100, std::byte{4});
  std::uint64_t given = 0;
  const auto first = log->read(1, 1'000'000, [&](const Entry&) { return ++given, true; });
  EXPECT_EQ(require(first).next_index, 2u);
  const auto second = log->read(2, 1'000'000, [&](const Entry&) { return ++given, true; });
  EXPECT_EQ(second.status().code(), StatusCode::device_failed);
  EXPECT_NE(second.status().message().find(path), std::string::npos);
  EXPECT_EQ(given, 1u);
}

TEST(Recovery, ANewSegmentSizeIsTakenAsItComes) {
  const TemporaryFolder temp;
  Contents expected = make_log(temp, {{5000}, {5000}, {100}});
  LogOptions options = tiny_options();
  options.segment_bytes = 8 * 4096;
  {
    const auto log = open(temp / "clean", options);
    EXPECT_FALSE(log->recovery().cut);
    for (int i = 0; i < 20; ++i) append(*log, expected, 5000);
    require(log->sync());
    EXPECT_EQ(contents_of(*log), expected);
    log->trim_before(log->last_index());
    log->settle();
    expected.erase(expected.begin(), expected.find(log->first_index()));
  }
  EXPECT_EQ(contents_of(*open(temp / "clean", options)), expected);
}

}  // namespace
}  // namespace sluice::kv::testing
