// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/checkpoint.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "kv/store/files.hpp"

namespace sluice::kv {
namespace {

using nlohmann::json;

constexpr std::size_t kNameBytesMax = 255;  // NAME_MAX

Status malformed(const std::string& what) {
  return {StatusCode::invalid_argument, "a malformed listing of a checkpoint: " + what};
}

/// A number of that name that fits; false: there is none.
template <typename T>
bool take(const json& from, const char* name, T& out) {
  const auto at = from.find(name);
  if (at == from.end() || !at->is_number_unsigned()) return false;
  const auto value = at->template get<std::uint64_t>();
  out = static_cast<T>(value);
  return out == value;
}

/// RocksDB's names are letters, digits and little else; nothing that a shell, a path or a log line
/// could take for something else.
bool is_file_name(const std::string& name) {
  return !name.empty() && name.size() <= kNameBytesMax && name.front() != '.' &&
         name != kCheckpointListing && std::ranges::all_of(name, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                  c == '.' || c == '-' || c == '_';
         });
}

Result<std::vector<std::string>> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error))
    names.push_back(at->path().filename().string());
  if (error)
    return Status(StatusCode::io_error, "cannot list the checkpoint " + folder, error.value());
  std::erase(names, kCheckpointListing);
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::uint64_t Checkpoint::bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const File& file : files) sum += file.bytes;
  return sum;
}

std::string to_text(const Checkpoint& checkpoint) {
  json files = json::array();
  for (const auto& file : checkpoint.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"crc32c", file.crc32c}});
  const json all = {{"format", checkpoint.format},
                    {"cluster_id", checkpoint.cluster_id},
                    {"epoch", checkpoint.epoch},
                    {"index", checkpoint.index},
                    {"files", std::move(files)}};
  return all.dump(1) + "\n";
}

Result<Checkpoint> parse_checkpoint(const std::string& text) {
  // Nesting is bounded before anything is built: a listing is three deep.
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= 3; };
  const json all = json::parse(text, shallow, false);
  if (!all.is_object()) return malformed("it is no JSON object");
  Checkpoint checkpoint;
  if (!take(all, "format", checkpoint.format)) return malformed("no format");
  if (checkpoint.format > kStoreFormat)
    return Status(StatusCode::not_supported,
                  "a checkpoint of format " + std::to_string(checkpoint.format) +
                      ", made by a newer version; this one reads format " +
                      std::to_string(kStoreFormat));
  if (!take(all, "cluster_id", checkpoint.cluster_id)) return malformed("no cluster id");
  if (!take(all, "epoch", checkpoint.epoch) || !take(all, "index", checkpoint.index))
    return malformed("no position");
  const auto files = all.find("files");
  if (files == all.end() || !files->is_array() || files->size() > kCheckpointFilesMax)
    return malformed("no files");
  for (const json& one : *files) {
    Checkpoint::File file;
    const auto name = one.is_object() ? one.find("name") : one.end();
    if (!one.is_object() || name == one.end() || !name->is_string())
      return malformed("a file without a name");
    file.name = name->get<std::string>();
    if (!is_file_name(file.name)) return malformed("a file with a name that cannot be");
    if (!take(one, "bytes", file.bytes) || !take(one, "crc32c", file.crc32c))
      return malformed("no size or CRC of " + file.name);
    if (!checkpoint.files.empty() && checkpoint.files.back().name >= file.name)
      return malformed("files out of order at " + file.name);
    checkpoint.files.push_back(std::move(file));
  }
  return checkpoint;
}

Result<Checkpoint> read_checkpoint(const std::string& folder) {
  const auto text = read_file(folder + "/" + kCheckpointListing, kListingBytesMax);
  if (!text) return text.status().with_context("no checkpoint lies in " + folder);
  auto checkpoint = parse_checkpoint(*text);
  if (!checkpoint) return checkpoint.status().with_context(folder);
  return checkpoint;
}

Status verify_checkpoint(const std::string& folder, const Checkpoint& checkpoint) {
  const auto names = names_in(folder);
  if (!names) return names.status();
  for (const std::string& name : *names) {
    if (!std::ranges::binary_search(checkpoint.files, name, {}, &Checkpoint::File::name))
      return {StatusCode::io_error, "the checkpoint " + folder +
                                        " has a file that is not in its "
                                        "listing: " +
                                        name};
  }
  for (const auto& file : checkpoint.files) {
    const auto sum = sum_file(folder + "/" + file.name);
    if (!sum) return sum.status().with_context("the checkpoint is not whole");
    if (sum->bytes != file.bytes)
      return {StatusCode::io_error, "the checkpoint's file " + folder + "/" + file.name + " has " +
                                        std::to_string(sum->bytes) + " bytes, not " +
                                        std::to_string(file.bytes)};
    if (sum->crc32c != file.crc32c)
      return {StatusCode::io_error, "the checkpoint's file " + folder + "/" + file.name +
                                        " is damaged: its CRC differs from the listing's"};
  }
  return {};
}

Status list_checkpoint(const std::string& folder, Checkpoint& checkpoint) {
  const auto names = names_in(folder);
  if (!names) return names.status();
  checkpoint.files.clear();
  for (const std::string& name : *names) {
    if (!is_file_name(name))
      return {StatusCode::internal, "a checkpoint has a file of a strange name: " + name};
    const auto sum = sum_file(folder + "/" + name);
    if (!sum) return sum.status();
    checkpoint.files.push_back({name, sum->bytes, sum->crc32c});
  }
  return write_file_atomically(folder + "/" + kCheckpointListing, to_text(checkpoint));
}

}  // namespace sluice::kv
