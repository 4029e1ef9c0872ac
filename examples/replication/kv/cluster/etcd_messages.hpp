// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sluice/core/status.hpp"

/// What goes to etcd's v3 JSON gateway and what comes back: values, without any connection.
/// Keys and values are bytes here and base64 there; 64-bit numbers are text there, and a field that
/// holds its type's zero is left out.
namespace sluice::kv::etcd {

/// One key. `lease` is 0 for a key that is bound to none.
struct KeyValue {
  std::string key, value;
  std::int64_t create_revision = 0;  ///< of the write that created it
  std::int64_t mod_revision = 0;     ///< of the last write
  std::int64_t version = 0;          ///< writes since it was created, from 1
  std::int64_t lease = 0;
};

/// Who answered, and how far the store was then.
struct Header {
  std::uint64_t cluster_id = 0, member_id = 0, raft_term = 0;
  std::int64_t revision = 0;
};

struct RangeAnswer {
  Header header;
  std::vector<KeyValue> kvs;
  std::int64_t count = 0;  ///< of all that match, also when a limit cut `kvs` short
  bool more = false;
};
struct PutAnswer {
  Header header;
};
struct DeleteAnswer {
  Header header;
  std::int64_t deleted = 0;
};
using OperationAnswer = std::variant<RangeAnswer, PutAnswer, DeleteAnswer>;
struct TxnAnswer {
  Header header;
  bool succeeded = false;  ///< every comparison held: `responses` are those of `success`
  std::vector<OperationAnswer> responses;
};
/// Of a grant, a keep-alive or a revocation. `ttl_s` 0: there is no such lease.
struct LeaseAnswer {
  Header header;
  std::int64_t id = 0;
  std::int64_t ttl_s = 0;
};
struct WatchEvent {
  bool deleted = false;  ///< then only `kv.key` and `kv.mod_revision` (of the deletion) are set
  KeyValue kv;
};
/// One line of a watch.
struct WatchAnswer {
  Header header;
  bool created = false;
  bool canceled = false;
  std::int64_t compact_revision = 0;  ///< > 0: the history that was asked for no longer exists
  std::string cancel_reason;
  std::vector<WatchEvent> events;
};

// --- Requests ----------------------------------------------------------------------------------

/// A key, or with `range_end` all keys in [key, range_end).
struct RangeRequest {
  std::string key, range_end;
  std::int64_t limit = 0;  ///< 0: none
};
struct PutRequest {
  std::string key, value;
  std::int64_t lease = 0;
};
struct DeleteRequest {
  std::string key, range_end;
};
using Operation = std::variant<RangeRequest, PutRequest, DeleteRequest>;

/// One comparison of a transaction. A key that does not exist has create_revision, mod_revision and
/// version 0.
struct Compare {
  enum class Target : std::uint8_t { version, create_revision, mod_revision, value };
  enum class Relation : std::uint8_t { equal, greater, less, not_equal };
  std::string key;
  Target target = Target::version;
  Relation relation = Relation::equal;
  std::int64_t number = 0;  ///< for all targets but `value`
  std::string value;

  [[nodiscard]] static Compare absent(std::string key) {
    return {std::move(key), Target::create_revision, Relation::equal, 0, {}};
  }
  [[nodiscard]] static Compare created_at(std::string key, std::int64_t revision) {
    return {std::move(key), Target::create_revision, Relation::equal, revision, {}};
  }
  [[nodiscard]] static Compare modified_at(std::string key, std::int64_t revision) {
    return {std::move(key), Target::mod_revision, Relation::equal, revision, {}};
  }
};
struct TxnRequest {
  std::vector<Compare> compare;
  std::vector<Operation> success, failure;
};

/// The end of the range of all keys that begin with `prefix` (not empty, not all 0xFF bytes).
[[nodiscard]] std::string prefix_end(std::string_view prefix);

[[nodiscard]] std::string encode(const RangeRequest& request);
[[nodiscard]] std::string encode(const PutRequest& request);
[[nodiscard]] std::string encode(const DeleteRequest& request);
[[nodiscard]] std::string encode(const TxnRequest& request);
[[nodiscard]] std::string encode_grant(std::int64_t ttl_s);
/// Of a keep-alive or a revocation.
[[nodiscard]] std::string encode_lease(std::int64_t id);
/// `start_revision` > 0: the first revision that is of interest.
[[nodiscard]] std::string encode_watch(std::string_view key, std::string_view range_end,
                                       std::int64_t start_revision);
[[nodiscard]] std::string encode_compaction(std::int64_t revision);

// --- Answers: io_error with what is wrong for everything that the gateway does not send ----------

[[nodiscard]] Result<RangeAnswer> decode_range(std::string_view text);
[[nodiscard]] Result<PutAnswer> decode_put(std::string_view text);
[[nodiscard]] Result<DeleteAnswer> decode_delete(std::string_view text);
[[nodiscard]] Result<TxnAnswer> decode_txn(std::string_view text);
[[nodiscard]] Result<LeaseAnswer> decode_grant(std::string_view text);
[[nodiscard]] Result<LeaseAnswer> decode_revoke(std::string_view text);
/// A keep-alive is a stream of one line.
[[nodiscard]] Result<LeaseAnswer> decode_keep_alive(std::string_view text);
/// One line of a watch's stream. An error that etcd ends the stream with is a Status, as from
/// decode_error().
[[nodiscard]] Result<WatchAnswer> decode_watch_line(std::string_view line);

/// An answer with another HTTP status than 200: the gRPC code that it carries, as a Status.
/// rejected: no such lease, or a compacted revision; unreachable: etcd has no leader or is not up;
/// timed_out; permission_denied; resource_exhausted; invalid_argument; else io_error.
[[nodiscard]] Status decode_error(long http_status, std::string_view text);

/// True for an error that says that nothing was carried out, whatever the request was.
[[nodiscard]] bool surely_not_done(std::string_view error_text);

}  // namespace sluice::kv::etcd
