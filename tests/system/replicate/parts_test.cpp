// SPDX-License-Identifier: BSD-3-Clause
// The parts of sluice-replicate that need neither a device nor a second process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "commit_tracker.hpp"
#include "crc32c.hpp"
#include "files.hpp"
#include "latency.hpp"
#include "one_at_a_time.hpp"
#include "options.hpp"
#include "protocol.hpp"
#include "record_log.hpp"
#include "sha256.hpp"
#include "summary.hpp"

namespace replicate {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::vector<std::byte> frame_of(FrameKind kind, std::uint64_t number,
                                std::span<const std::byte> payload, std::uint64_t session = 7) {
  std::vector<std::byte> frame(FrameHeader::kBytes + payload.size());
  std::ranges::copy(payload, frame.begin() + FrameHeader::kBytes);
  seal_frame(frame, {.kind = kind,
                     .session = session,
                     .number = number,
                     .length = static_cast<std::uint32_t>(payload.size())});
  return frame;
}

class TemporaryFolder {
 public:
  TemporaryFolder() : folder_(OutputFolder::open("", false)) {}
  fs::path operator/(const char* name) { return fs::path(folder_->path()) / name; }

 private:
  sluice::Result<OutputFolder> folder_;
};

// --- CRC32C ------------------------------------------------------------------------------------

TEST(Crc32c, HasTheVectorsOfRfc3720) {
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});
  std::vector<std::byte> up(32), down(32);
  for (unsigned i = 0; i < 32; ++i) {
    up[i] = static_cast<std::byte>(i);
    down[i] = static_cast<std::byte>(31 - i);
  }
  for (auto* const crc : {&crc32c, &crc32c_portable}) {
    EXPECT_EQ(crc(bytes_of("123456789"), 0), 0xe3069283U);
    EXPECT_EQ(crc(zeros, 0), 0x8a9136aaU);
    EXPECT_EQ(crc(ones, 0), 0x62a8ab43U);
    EXPECT_EQ(crc(up, 0), 0x46dd794eU);
    EXPECT_EQ(crc(down, 0), 0x113fdb5cU);
    EXPECT_EQ(crc({}, 0), 0U);
  }
}

TEST(Crc32c, TablesAndInstructionAgreeForEachLengthAlignmentAndSplit) {
  const auto data = random_bytes(300, 1);
  for (std::size_t from = 0; from < 9; ++from)
    for (std::size_t size = 0; size + from <= data.size(); size += 7) {
      const auto part = std::span(data).subspan(from, size);
      const auto whole = crc32c(part);
      ASSERT_EQ(whole, crc32c_portable(part)) << from << " " << size;
      ASSERT_EQ(whole, crc32c(part.subspan(size / 3), crc32c(part.first(size / 3))))
          << from << " " << size;
    }
}

TEST(Sha256, HasTheVectorOfFips180) {
  Sha256 sha;
  sha.update(bytes_of("ab"));
  sha.update(bytes_of("c"));
  EXPECT_EQ(to_hex(sha.finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// --- percentiles -------------------------------------------------------------------------------

TEST(Latency, SmallValuesAreExact) {
  LatencyHistogram histogram;
  for (std::uint64_t value = 1; value <= 20; ++value) histogram.add(value);
  EXPECT_EQ(histogram.percentile(0.5), 10U);
  EXPECT_EQ(histogram.percentile(0.05), 1U);
  EXPECT_EQ(histogram.percentile(0.051), 2U);
  EXPECT_EQ(histogram.percentile(1.0), 20U);
  EXPECT_EQ(histogram.percentile(0.0), 1U);
}

TEST(Latency, NothingGivesZero) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.percentile(0.5), 0U);
  EXPECT_EQ(histogram.max(), 0U);
}

TEST(Latency, PercentilesAreNeverTooLowAndAtMostOne32ndTooHigh) {
  std::mt19937_64 random(2);
  std::vector<std::uint64_t> values;
  LatencyHistogram histogram;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(random() >> (random() % 63));
    histogram.add(values.back());
  }
  std::ranges::sort(values);
  for (const double fraction : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999}) {
    const auto rank =
        static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(values.size()))) - 1;
    const std::uint64_t exact = values[rank];
    const std::uint64_t got = histogram.percentile(fraction);
    EXPECT_GE(got, exact) << fraction;
    EXPECT_LE(got - exact, exact / 32) << fraction;
  }
  EXPECT_EQ(histogram.percentile(1.0), values.back());
}

TEST(Latency, TheLargestValueHasABucket) {
  LatencyHistogram histogram;
  histogram.add(~std::uint64_t{0});
  histogram.add(1);
  EXPECT_EQ(histogram.percentile(1.0), ~std::uint64_t{0});
  EXPECT_EQ(histogram.percentile(0.5), 1U);
}

TEST(Latency, MergedHistogramsCountTogether) {
  LatencyHistogram a, b;
  a.add(1);
  b.add(1000);
  b.add(1000);
  a.merge(b);
  EXPECT_EQ(a.count(), 3U);
  EXPECT_EQ(a.max(), 1000U);
  EXPECT_EQ(a.percentile(0.34), 1000U);
}

// --- frames ------------------------------------------------------------------------------------

TEST(Protocol, AFrameComesBackAsItWent) {
  const auto payload = random_bytes(1000, 3);
  const auto bytes = frame_of(FrameKind::data, 0x1122334455667788, payload);
  const Frame frame = open_frame(bytes, 7);
  ASSERT_TRUE(frame.ok()) << to_string(frame.error);
  EXPECT_EQ(frame.header.kind, FrameKind::data);
  EXPECT_EQ(frame.header.number, 0x1122334455667788U);
  EXPECT_TRUE(std::ranges::equal(frame.payload, payload));
}

TEST(Protocol, AnyChangedBitIsDetected) {
  auto bytes = frame_of(FrameKind::data, 5, random_bytes(64, 4));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    const Frame frame = open_frame(bytes, 7);
    EXPECT_FALSE(frame.ok()) << bit;
    EXPECT_TRUE(frame.payload.empty()) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
  EXPECT_TRUE(open_frame(bytes, 7).ok());
}

TEST(Protocol, EachErrorIsNamed) {
  const auto good = frame_of(FrameKind::ack, 5, {});
  EXPECT_EQ(open_frame({}, 7).error, FrameError::too_short);
  EXPECT_EQ(open_frame(std::span(good).first(31), 7).error, FrameError::too_short);
  EXPECT_EQ(open_frame(good, 8).error, FrameError::wrong_session);
  const auto changed = [&](std::size_t at) {
    auto bytes = good;
    bytes[at] ^= std::byte{0x40};
    return open_frame(bytes, 7).error;
  };
  EXPECT_EQ(changed(0), FrameError::bad_magic);
  EXPECT_EQ(changed(4), FrameError::bad_version);
  EXPECT_EQ(changed(6), FrameError::bad_kind);
  EXPECT_EQ(changed(9), FrameError::bad_crc);
  EXPECT_EQ(changed(24), FrameError::bad_length);
  EXPECT_EQ(changed(28), FrameError::bad_crc);
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_EQ(open_frame(longer, 7).error, FrameError::bad_length);
}

TEST(Protocol, DecodersSurviveArbitraryBytes) {
  std::mt19937_64 random(5);
  const auto valid = frame_of(FrameKind::report, 1, random_bytes(Report::kBytes, 6));
  for (int round = 0; round < 20000; ++round) {
    auto bytes = round % 2 == 0 ? random_bytes(random() % 1200, random()) : valid;
    for (std::size_t change = random() % 4; change > 0 && !bytes.empty(); --change)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.resize(random() % (bytes.size() + 1));
    const Frame frame = open_frame(bytes, 7);
    EXPECT_TRUE(frame.ok() || frame.payload.empty());
    (void)decode_end(bytes);
    (void)decode_hello(bytes);
    (void)decode_welcome(bytes);
    if (const auto report = decode_report(bytes)) {
      EXPECT_LE(report->text_size, Report::kTextMax);
      EXPECT_LE(report->load.workers, Load::kWorkersMax);
    }
  }
}

TEST(Protocol, SetUpDataComesBackAlsoWhenPadded) {
  const auto hello = encode(
      Hello{.session = 9, .replica = 2, .connection = 3, .connections = 4, .record_size = 5});
  std::vector<std::byte> padded(hello.begin(), hello.end());
  padded.resize(56);  // what a provider makes of it
  const auto decoded = decode_hello(padded);
  ASSERT_TRUE(decoded.value) << decoded.error;
  EXPECT_EQ(decoded.value->session, 9U);
  EXPECT_EQ(decoded.value->replica, 2U);
  EXPECT_EQ(decoded.value->connection, 3U);
  EXPECT_EQ(decoded.value->connections, 4U);
  EXPECT_EQ(decoded.value->record_size, 5U);
  const auto welcome =
      decode_welcome(encode(Welcome{.receive_depth = 64, .record_size_max = 4096}));
  ASSERT_TRUE(welcome.value);
  EXPECT_EQ(welcome.value->receive_depth, 64U);
  EXPECT_EQ(welcome.value->record_size_max, 4096U);
}

TEST(Protocol, SetUpDataOfSomebodyElseIsRefusedWithAReason) {
  const Hello hello{
      .session = 9, .replica = 0, .connection = 0, .connections = 1, .record_size = 5};
  EXPECT_THAT(decode_hello({}).error, HasSubstr("0 bytes"));
  auto bytes = encode(hello);
  bytes[0] ^= std::byte{1};
  EXPECT_THAT(decode_hello(bytes).error, HasSubstr("no sluice-replicate"));
  bytes = encode(hello);
  bytes[4] = std::byte{99};
  EXPECT_THAT(decode_hello(bytes).error, HasSubstr("version 99"));
  EXPECT_THAT(decode_hello(encode(Hello{.session = 0, .connections = 1, .record_size = 1})).error,
              HasSubstr("session"));
  EXPECT_THAT(
      decode_hello(encode(Hello{.session = 1, .connection = 2, .connections = 2, .record_size = 1}))
          .error,
      HasSubstr("2 of 2"));
  EXPECT_THAT(decode_hello(encode(Hello{.session = 1, .connections = 1, .record_size = 0})).error,
              HasSubstr("0 bytes"));
  EXPECT_FALSE(decode_welcome(encode(hello)).value);
}

TEST(Protocol, AReportComesBackAsOneLine) {
  Report report;
  report.outcome = Report::Outcome::differs;
  report.bytes = 77;
  report.digest.fill(std::byte{0xab});
  report.load = {.polls = 1,
                 .empty_polls = 2,
                 .sleeps = 3,
                 .wakes = 4,
                 .worker_wakes = 5,
                 .completions = 6,
                 .workers = 2};
  report.load.handled[1] = 11;
  report.set_why("two\nlines" + std::string(500, 'x'));
  std::vector<std::byte> bytes(Report::kBytes);
  encode(report, std::span(bytes).first<Report::kBytes>());
  const auto decoded = decode_report(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->outcome, Report::Outcome::differs);
  EXPECT_EQ(decoded->bytes, 77U);
  EXPECT_EQ(decoded->digest, report.digest);
  EXPECT_EQ(decoded->load.worker_wakes, 5U);
  EXPECT_EQ(decoded->load.handled[1], 11U);
  EXPECT_EQ(decoded->why().size(), Report::kTextMax);
  EXPECT_TRUE(decoded->why().starts_with("two?lines"));
}

TEST(Protocol, RecordsAreCountedPerConnection) {
  for (std::uint32_t connections = 1; connections < 5; ++connections) {
    std::vector<std::uint64_t> counts(connections);
    for (std::uint64_t records = 0; records < 20; ++records) {
      for (std::uint32_t i = 0; i < connections; ++i)
        EXPECT_EQ(records_of(records, i, connections), counts[i]);
      ++counts[records % connections];
    }
  }
}

// --- the commit mark ---------------------------------------------------------------------------

TEST(CommitTracker, TheQuorumMarkIsTheQuorumthHighest) {
  const std::vector<std::uint64_t> marks{5, 9, 7};
  EXPECT_EQ(quorum_mark(marks, 1), 9U);
  EXPECT_EQ(quorum_mark(marks, 2), 7U);
  EXPECT_EQ(quorum_mark(marks, 3), 5U);
}

TEST(CommitTracker, CommitsWhatAQuorumHasAndTimesEachRecordOnce) {
  CommitTracker tracker(3, 2, 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(tracker.has_room());
    tracker.sent();
  }
  EXPECT_FALSE(tracker.has_room());
  EXPECT_TRUE(tracker.appended(0, 3));
  EXPECT_EQ(tracker.committed(), 0U);
  EXPECT_TRUE(tracker.appended(1, 2));
  EXPECT_EQ(tracker.committed(), 2U);
  EXPECT_TRUE(tracker.appended(1, 1));  // overtaken on another connection: changes nothing
  EXPECT_EQ(tracker.appended_by(1), 2U);
  EXPECT_TRUE(tracker.appended(2, 4));
  EXPECT_EQ(tracker.committed(), 3U);
  EXPECT_EQ(tracker.latencies().count(), 3U);
  EXPECT_TRUE(tracker.has_room());
  EXPECT_FALSE(tracker.appended(2, 5)) << "five were never sent";
}

TEST(CommitTracker, ConcurrentAnswersCommitEverythingOnce) {
  constexpr std::uint64_t kRecords = 20000;
  CommitTracker tracker(3, 2, kRecords);
  std::atomic<std::uint64_t> sent{0};
  std::vector<std::thread> replicas;
  for (std::uint32_t replica = 0; replica < 3; ++replica)
    replicas.emplace_back([&, replica] {
      for (std::uint64_t mine = 0; mine < kRecords;) {
        const std::uint64_t there = sent.load(std::memory_order_acquire);
        if (there == mine) std::this_thread::yield();
        if (there > mine) mine = std::min(there, mine + 1 + replica);
        EXPECT_TRUE(tracker.appended(replica, mine));
      }
    });
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    tracker.sent();
    sent.store(i + 1, std::memory_order_release);
  }
  for (auto& replica : replicas) replica.join();
  EXPECT_EQ(tracker.committed(), kRecords);
  EXPECT_EQ(tracker.latencies().count(), kRecords);
}

TEST(OneAtATime, NoCallIsMissedAndNoneOverlap) {
  OneAtATime one;
  std::atomic<std::uint64_t> left{0};
  std::uint64_t taken = 0;  // no atomic: the object under test protects it
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 20000; ++round) {
        left.fetch_add(1, std::memory_order_relaxed);
        one.run([&]() noexcept { taken += left.exchange(0, std::memory_order_relaxed); });
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(left.load(), 0U);
  EXPECT_EQ(taken, 80000U);
}

// --- files and the log -------------------------------------------------------------------------

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(OutputFile, GetsItsNameOnlyWhenCommitted) {
  TemporaryFolder folder;
  const auto path = folder / "copy";
  std::ofstream(path) << "what was there before";
  {
    auto file = OutputFile::create(path.string());
    ASSERT_TRUE(file) << file.status().message();
    EXPECT_TRUE(fs::exists(OutputFile::partial_name(path.string())));
    EXPECT_EQ(content_of(path), "what was there before");
  }
  EXPECT_FALSE(fs::exists(OutputFile::partial_name(path.string()))) << "left half-written";
  EXPECT_EQ(content_of(path), "what was there before");

  auto file = OutputFile::create(path.string());
  std::string hello = "hello ", world = "world";
  iovec pieces[] = {{hello.data(), hello.size()}, {world.data(), world.size()}};
  ASSERT_TRUE(file->append(pieces).ok());
  EXPECT_EQ(file->size(), 11U);
  Sha256 sha;
  sha.update(bytes_of("hello world"));
  EXPECT_EQ(*file->digest(), sha.finish());
  ASSERT_TRUE(file->commit(true).ok());
  EXPECT_EQ(content_of(path), "hello world");
  EXPECT_FALSE(fs::exists(OutputFile::partial_name(path.string())));
}

class Log : public ::testing::Test {
 protected:
  RecordLog make(std::uint32_t depth) {
    return {std::move(*OutputFile::create((folder_ / "copy").string())), depth, false};
  }
  RecordLog::Put put(RecordLog& log, std::uint64_t number, std::string_view payload) {
    kept_.push_back(frame_of(FrameKind::data, number, bytes_of(payload)));
    return log.put(open_frame(kept_.back(), 7), {});
  }
  RecordLog::Put put_end(RecordLog& log, std::uint64_t number, std::uint64_t bytes) {
    std::vector<std::byte> payload(EndOfStream::kBytes);
    encode(EndOfStream{.bytes = bytes, .digest = {}},
           std::span(payload).first<EndOfStream::kBytes>());
    kept_.push_back(frame_of(FrameKind::end, number, payload));
    return log.put(open_frame(kept_.back(), 7), {});
  }
  static std::uint64_t append_all(RecordLog& log) {
    std::uint64_t records = 0;
    for (auto run = log.append_ready(); run.records > 0; run = log.append_ready())
      records += run.records;
    return records;
  }
  TemporaryFolder folder_;
  std::vector<std::vector<std::byte>> kept_;
};

TEST_F(Log, AppendsInOrderWhateverTheOrderOfArrival) {
  RecordLog log = make(4);
  EXPECT_EQ(put(log, 2, "c"), RecordLog::Put::ok);
  EXPECT_EQ(put(log, 1, "b"), RecordLog::Put::ok);
  EXPECT_EQ(append_all(log), 0U);
  EXPECT_EQ(put_end(log, 3, 3), RecordLog::Put::ok);
  EXPECT_EQ(log.end(), nullptr);
  EXPECT_EQ(put(log, 0, "a"), RecordLog::Put::ok);
  EXPECT_EQ(append_all(log), 3U);
  EXPECT_EQ(log.appended(), 3U);
  ASSERT_NE(log.end(), nullptr);
  EXPECT_EQ(log.end()->bytes, 3U);
  ASSERT_TRUE(log.file().commit(false).ok());
  EXPECT_EQ(content_of(folder_ / "copy"), "abc");
}

TEST_F(Log, RefusesWhatCannotBe) {
  RecordLog log = make(2);
  EXPECT_EQ(put(log, 0, "a"), RecordLog::Put::ok);
  EXPECT_EQ(put(log, 0, "a"), RecordLog::Put::repeated);
  EXPECT_EQ(put(log, 3, "d"), RecordLog::Put::too_far_ahead);
  EXPECT_EQ(put(log, ~std::uint64_t{0}, "x"), RecordLog::Put::too_far_ahead);
  EXPECT_EQ(append_all(log), 1U);
  EXPECT_EQ(put(log, 0, "a"), RecordLog::Put::repeated);
  EXPECT_EQ(put(log, 3, "d"), RecordLog::Put::ok);
}

TEST_F(Log, AnEndFrameWithTheWrongPayloadIsRefused) {
  RecordLog log = make(2);
  kept_.push_back(frame_of(FrameKind::end, 0, bytes_of("short")));
  EXPECT_EQ(log.put(open_frame(kept_.back(), 7), {}), RecordLog::Put::bad_end);
}

TEST_F(Log, MoreThanOneRunIsWrittenRunByRun) {
  constexpr std::uint64_t kRecords = RecordLog::kRunMax * 2 + 5;
  RecordLog log = make(kRecords);
  std::string all;
  for (std::uint64_t i = 0; i < kRecords; ++i) {
    all += std::to_string(i);
    EXPECT_EQ(put(log, i, std::to_string(i)), RecordLog::Put::ok);
  }
  EXPECT_EQ(log.append_ready().records, RecordLog::kRunMax);
  EXPECT_EQ(append_all(log), kRecords - RecordLog::kRunMax);
  ASSERT_TRUE(log.file().commit(false).ok());
  EXPECT_EQ(content_of(folder_ / "copy"), all);
}

// --- options -----------------------------------------------------------------------------------

TEST(Options, HostAndPortAreTakenApart) {
  EXPECT_EQ(parse_host_port("10.0.0.1:7204", false)->host, "10.0.0.1");
  EXPECT_EQ(parse_host_port("[fe80::1]:7204", false)->host, "fe80::1");
  EXPECT_EQ(parse_host_port("[fe80::1]:7204", false)->port, 7204);
  for (const char* bad :
       {"", "host", ":1", "host:", "host:x", "host:70000", "host:-1", "host:1x", "host:0"})
    EXPECT_FALSE(parse_host_port(bad, false)) << bad;
  EXPECT_TRUE(parse_host_port("host:0", true));
}

TEST(Options, DefaultsDependOnTheOthers) {
  Options options;
  ASSERT_TRUE(complete_and_validate(options).ok());
  EXPECT_EQ(options.replicas, 2U);
  EXPECT_EQ(*options.quorum, 1U);
  EXPECT_EQ(default_quorum(3), 2U);
  EXPECT_EQ(default_quorum(5), 3U);
  EXPECT_EQ(options.effective_window(), 64U);
  options.connections = 64;
  EXPECT_EQ(options.effective_window(), 7U);
  options.record_size = 64 << 20;
  EXPECT_EQ(options.effective_window(), 2U);
}

TEST(Summary, NumbersAreReadable) {
  EXPECT_EQ(human_bytes(700), "700 B");
  EXPECT_EQ(human_bytes(16384), "16 KiB");
  EXPECT_EQ(human_bytes(8800000), "8.4 MiB");
  EXPECT_EQ(human_time(850), "850 ns");
  EXPECT_EQ(human_time(12345), "12.3 us");
  EXPECT_EQ(human_time(4560000), "4.56 ms");
}

}  // namespace
}  // namespace replicate
