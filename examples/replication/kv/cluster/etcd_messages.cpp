// SPDX-License-Identifier: BSD-3-Clause
#include "kv/cluster/etcd_messages.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "kv/cluster/base64.hpp"

namespace sluice::kv::etcd {
namespace {

using nlohmann::json;

constexpr std::size_t kExcerptMax = 200;  // of a foreign text in a message

/// A foreign text for a message: short, and on one line.
std::string excerpt(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kExcerptMax))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
  if (text.size() > kExcerptMax) out += "...";
  return out;
}

Status malformed(std::string_view what) {
  return {StatusCode::io_error,
          fmt::format("the answer is not what etcd's JSON gateway sends: {}", what)};
}

// --- Reading fields ----------------------------------------------------------------------------
// Each reader leaves its output alone where the field is absent, and notes the first thing wrong.

/// Reads one JSON object's fields. The first failure stays.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail("an object was expected");
  }

  template <typename Integer>
  void number(const char* name, Integer& out) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (field->is_string()) {
      const auto& text = field->get_ref<const std::string&>();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
      if (text.empty() || error != std::errc{} || end != text.data() + text.size())
        fail(fmt::format("'{}' is no number of 64 bits: '{}'", name, excerpt(text)));
    } else if (field->is_number_unsigned()) {
      const auto value = field->get<std::uint64_t>();
      if (value > static_cast<std::uint64_t>(std::numeric_limits<Integer>::max()))
        return fail(fmt::format("'{}' is too large", name));
      out = static_cast<Integer>(value);
    } else if (field->is_number_integer() && std::is_signed_v<Integer>) {
      out = field->get<Integer>();
    } else {
      fail(fmt::format("'{}' is no whole number", name));
    }
  }
  /// A number that is never negative: revisions, versions, counts.
  void natural(const char* name, std::int64_t& out) {
    number(name, out);
    if (out < 0) fail(fmt::format("'{}' is negative: {}", name, out));
  }
  void flag(const char* name, bool& out) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_boolean()) return fail(fmt::format("'{}' is neither true nor false", name));
    out = field->get<bool>();
  }
  void text(const char* name, std::string& out) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_string()) return fail(fmt::format("'{}' is no text", name));
    out = field->get<std::string>();
  }
  void bytes(const char* name, std::string& out) {
    std::string encoded;
    text(name, encoded);
    auto decoded = base64_decode(encoded);
    if (!decoded) return fail(fmt::format("'{}' is no base64: '{}'", name, excerpt(encoded)));
    out = std::move(*decoded);
  }
  /// Nullptr where it is absent, null, or this is no object.
  const json* find(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  /// Calls each(item, its place) for what is in an array.
  template <typename Each>
  void list(const char* name, Each each) {
    const json* field = find(name);
    if (field == nullptr) return;
    if (!field->is_array()) return fail(fmt::format("'{}' is no list", name));
    for (std::size_t i = 0; i < field->size() && status_.ok(); ++i)
      take(each((*field)[i], fmt::format("{}.{}[{}]", where_, name, i)));
  }
  void take(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void fail(std::string_view what) { take(malformed(where_ + ": " + std::string(what))); }
  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] Status status() const { return status_; }

 private:
  const json& object_;
  std::string where_;
  Status status_;
};

Status read(const json& object, const std::string& where, KeyValue& out) {
  Fields fields(object, where);
  fields.bytes("key", out.key);
  fields.bytes("value", out.value);
  fields.natural("create_revision", out.create_revision);
  fields.natural("mod_revision", out.mod_revision);
  fields.natural("version", out.version);
  fields.number("lease", out.lease);
  return fields.status();
}

void read_header(Fields& fields, Header& out) {
  const json* const object = fields.find("header");
  if (object == nullptr) return;
  Fields header(*object, fields.where() + ".header");
  header.number("cluster_id", out.cluster_id);
  header.number("member_id", out.member_id);
  header.number("raft_term", out.raft_term);
  header.natural("revision", out.revision);
  fields.take(header.status());
}

/// The header of a whole answer: etcd always sends one, so an answer without comes from elsewhere.
void need_header(Fields& fields, Header& out) {
  if (fields.find("header") == nullptr) fields.fail("there is no header");
  read_header(fields, out);
  if (fields.status().ok() && out.cluster_id == 0) fields.fail("the header names no cluster");
}

void read_range(Fields& fields, RangeAnswer& out) {
  fields.list("kvs", [&](const json& item, const std::string& where) {
    return read(item, where, out.kvs.emplace_back());
  });
  fields.natural("count", out.count);
  fields.flag("more", out.more);
}

Status read_operation(const json& object, const std::string& where, OperationAnswer& out) {
  Fields fields(object, where);
  if (const json* const range = fields.find("response_range")) {
    Fields inner(*range, where + ".response_range");
    RangeAnswer answer;
    read_header(inner, answer.header);
    read_range(inner, answer);
    fields.take(inner.status());
    out = std::move(answer);
  } else if (const json* const put = fields.find("response_put")) {
    Fields inner(*put, where + ".response_put");
    PutAnswer answer;
    read_header(inner, answer.header);
    fields.take(inner.status());
    out = answer;
  } else if (const json* const deletion = fields.find("response_delete_range")) {
    Fields inner(*deletion, where + ".response_delete_range");
    DeleteAnswer answer;
    read_header(inner, answer.header);
    inner.natural("deleted", answer.deleted);
    fields.take(inner.status());
    out = answer;
  } else {
    fields.fail("none of the known responses");
  }
  return fields.status();
}

Status read_event(const json& object, const std::string& where, WatchEvent& out) {
  Fields fields(object, where);
  std::string type;  // PUT is the zero that is left out
  fields.text("type", type);
  if (!type.empty() && type != "PUT" && type != "DELETE")
    fields.fail(fmt::format("an event of type '{}'", excerpt(type)));
  out.deleted = type == "DELETE";
  const json* const kv = fields.find("kv");
  if (kv == nullptr) {
    fields.fail("an event without a key");
  } else {
    fields.take(read(*kv, where + ".kv", out.kv));
  }
  return fields.status();
}

/// Calls fill(fields, answer) on the object that `text` is.
template <typename Answer, typename Fill>
Result<Answer> decode(std::string_view text, Fill fill) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return malformed(fmt::format("no JSON: '{}'", excerpt(text)));
  Answer answer;
  Fields fields(object, "answer");
  fill(fields, answer);
  if (!fields.status().ok()) return fields.status();
  return answer;
}

/// The same for a line of a stream: {"result": ...} or {"error": ...}.
template <typename Answer, typename Fill>
Result<Answer> decode_line(std::string_view text, Fill fill) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return malformed(fmt::format("no JSON: '{}'", excerpt(text)));
  Fields line(object, "line");
  if (!line.status().ok()) return line.status();
  if (line.find("error") != nullptr) return decode_error(0, text);
  const json* const result = line.find("result");
  if (result == nullptr) return malformed("a line that is neither a result nor an error");
  Answer answer;
  Fields fields(*result, "line.result");
  fill(fields, answer);
  if (!fields.status().ok()) return fields.status();
  return answer;
}

// --- Writing -----------------------------------------------------------------------------------

json key_fields(std::string_view key, std::string_view range_end) {
  json object{{"key", base64_encode(key)}};
  if (!range_end.empty()) object["range_end"] = base64_encode(range_end);
  return object;
}

json to_json(const RangeRequest& request) {
  json object = key_fields(request.key, request.range_end);
  if (request.limit > 0) object["limit"] = std::to_string(request.limit);
  return object;
}
json to_json(const PutRequest& request) {
  json object{{"key", base64_encode(request.key)}, {"value", base64_encode(request.value)}};
  if (request.lease != 0) object["lease"] = std::to_string(request.lease);
  return object;
}
json to_json(const DeleteRequest& request) {
  return key_fields(request.key, request.range_end);
}
json to_json(const Operation& operation) {
  if (const auto* const range = std::get_if<RangeRequest>(&operation))
    return {{"request_range", to_json(*range)}};
  if (const auto* const put = std::get_if<PutRequest>(&operation))
    return {{"request_put", to_json(*put)}};
  return {{"request_delete_range", to_json(std::get<DeleteRequest>(operation))}};
}
json to_json(const Compare& compare) {
  static constexpr const char* kRelations[] = {"EQUAL", "GREATER", "LESS", "NOT_EQUAL"};
  json object{{"key", base64_encode(compare.key)},
              {"result", kRelations[static_cast<std::size_t>(compare.relation)]}};
  switch (compare.target) {
    case Compare::Target::version:
      object["target"] = "VERSION";
      object["version"] = std::to_string(compare.number);
      break;
    case Compare::Target::create_revision:
      object["target"] = "CREATE";
      object["create_revision"] = std::to_string(compare.number);
      break;
    case Compare::Target::mod_revision:
      object["target"] = "MOD";
      object["mod_revision"] = std::to_string(compare.number);
      break;
    case Compare::Target::value:
      object["target"] = "VALUE";
      object["value"] = base64_encode(compare.value);
      break;
  }
  return object;
}
template <typename Item>
json to_json(const std::vector<Item>& items) {
  json list = json::array();
  for (const Item& item : items) list.push_back(to_json(item));
  return list;
}

/// gRPC's status codes, as far as etcd uses them.
StatusCode code_of(std::int64_t grpc_code) {
  switch (grpc_code) {
    case 1: return StatusCode::cancelled;
    case 3: return StatusCode::invalid_argument;
    case 4: return StatusCode::timed_out;
    case 5:   // not found: a lease
    case 9:   // failed precondition
    case 11:  // out of range: a compacted or a future revision
      return StatusCode::rejected;
    case 7:
    case 16: return StatusCode::permission_denied;
    case 8: return StatusCode::resource_exhausted;
    case 14: return StatusCode::unreachable;
    default: return StatusCode::io_error;
  }
}

}  // namespace

std::string prefix_end(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xFF) end.pop_back();
  SLUICE_CHECK(!end.empty(), "prefix_end() of an empty prefix");
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

std::string encode(const RangeRequest& request) {
  return to_json(request).dump();
}
std::string encode(const PutRequest& request) {
  return to_json(request).dump();
}
std::string encode(const DeleteRequest& request) {
  return to_json(request).dump();
}
std::string encode(const TxnRequest& request) {
  return json{{"compare", to_json(request.compare)},
              {"success", to_json(request.success)},
              {"failure", to_json(request.failure)}}
      .dump();
}
std::string encode_grant(std::int64_t ttl_s) {
  return json{{"TTL", std::to_string(ttl_s)}}.dump();
}
std::string encode_lease(std::int64_t id) {
  return json{{"ID", std::to_string(id)}}.dump();
}
std::string encode_watch(std::string_view key, std::string_view range_end,
                         std::int64_t start_revision) {
  json request = key_fields(key, range_end);
  if (start_revision > 0) request["start_revision"] = std::to_string(start_revision);
  return json{{"create_request", std::move(request)}}.dump();
}
std::string encode_compaction(std::int64_t revision) {
  return json{{"revision", std::to_string(revision)}, {"physical", true}}.dump();
}

Result<RangeAnswer> decode_range(std::string_view text) {
  return decode<RangeAnswer>(text, [](Fields& fields, RangeAnswer& answer) {
    need_header(fields, answer.header);
    read_range(fields, answer);
  });
}
Result<PutAnswer> decode_put(std::string_view text) {
  return decode<PutAnswer>(
      text, [](Fields& fields, PutAnswer& answer) { need_header(fields, answer.header); });
}
Result<DeleteAnswer> decode_delete(std::string_view text) {
  return decode<DeleteAnswer>(text, [](Fields& fields, DeleteAnswer& answer) {
    need_header(fields, answer.header);
    fields.natural("deleted", answer.deleted);
  });
}
Result<TxnAnswer> decode_txn(std::string_view text) {
  return decode<TxnAnswer>(text, [](Fields& fields, TxnAnswer& answer) {
    need_header(fields, answer.header);
    fields.flag("succeeded", answer.succeeded);
    fields.list("responses", [&](const json& item, const std::string& where) {
      return read_operation(item, where, answer.responses.emplace_back());
    });
  });
}
Result<LeaseAnswer> decode_grant(std::string_view text) {
  return decode<LeaseAnswer>(text, [](Fields& fields, LeaseAnswer& answer) {
    need_header(fields, answer.header);
    fields.number("ID", answer.id);
    fields.natural("TTL", answer.ttl_s);
    std::string error;
    fields.text("error", error);
    if (!error.empty()) fields.fail(fmt::format("no lease: {}", excerpt(error)));
    if (answer.id == 0 || answer.ttl_s == 0) fields.fail("a lease without an ID or a TTL");
  });
}
Result<LeaseAnswer> decode_revoke(std::string_view text) {
  return decode<LeaseAnswer>(
      text, [](Fields& fields, LeaseAnswer& answer) { need_header(fields, answer.header); });
}
Result<LeaseAnswer> decode_keep_alive(std::string_view text) {
  return decode_line<LeaseAnswer>(text, [](Fields& fields, LeaseAnswer& answer) {
    need_header(fields, answer.header);
    fields.number("ID", answer.id);
    fields.natural("TTL", answer.ttl_s);
  });
}
Result<WatchAnswer> decode_watch_line(std::string_view line) {
  return decode_line<WatchAnswer>(line, [](Fields& fields, WatchAnswer& answer) {
    need_header(fields, answer.header);
    fields.flag("created", answer.created);
    fields.flag("canceled", answer.canceled);
    fields.natural("compact_revision", answer.compact_revision);
    fields.text("cancel_reason", answer.cancel_reason);
    fields.list("events", [&](const json& item, const std::string& where) {
      return read_event(item, where, answer.events.emplace_back());
    });
  });
}

Status decode_error(long http_status, std::string_view text) {
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) {
    // A unary call's error is {"error", "code"}; a stream's is {"error": {"grpc_code", "message"}}.
    const json* source = &object;
    const char* code_name = "code";
    if (const auto inner = object.find("error"); inner != object.end() && inner->is_object()) {
      source = &*inner;
      code_name = "grpc_code";
    }
    Fields fields(*source, "error");
    std::int64_t code = 0;
    std::string message;
    fields.number(code_name, code);
    fields.text("message", message);
    if (fields.status().ok() && code > 0)
      return {code_of(code), fmt::format("etcd says: {} (gRPC code {})", excerpt(message), code)};
  }
  if (http_status == 0)
    return malformed(fmt::format("an error of no known form: '{}'", excerpt(text)));
  return {StatusCode::io_error,
          fmt::format("HTTP status {}, which is not how etcd's JSON gateway answers: '{}'",
                      http_status, excerpt(text))};
}

bool surely_not_done(std::string_view error_text) {
  // Said before a request is proposed to the others; and the gateway's, when it cannot reach the
  // etcd that it is part of.
  return error_text.find("etcdserver: no leader") != std::string_view::npos ||
         error_text.find("Error while dialing") != std::string_view::npos;
}

}  // namespace sluice::kv::etcd
