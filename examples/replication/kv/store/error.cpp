// SPDX-License-Identifier: BSD-3-Clause
#include "kv/store/error.hpp"

#include <algorithm>

namespace sluice::kv {

Status from_rocksdb(const rocksdb::Status& why, const std::string& what) {
  SLUICE_CHECK(!why.ok(), "a success of RocksDB was taken for a failure");
  std::string message = what + ": " + why.ToString();
  std::ranges::replace(message, '\n', ' ');
  // Where the system's own words come through, RocksDB has no code for "full".
  if (why.IsNoSpace() || message.find("No space left on device") != std::string::npos)
    return {StatusCode::resource_exhausted, message + " (the disk is full)"};
  if (why.IsIOError() || why.IsCorruption() || why.IsIncomplete())
    return {StatusCode::io_error, message};
  if (why.IsNotSupported()) return {StatusCode::not_supported, message};
  return {StatusCode::internal, message};
}

}  // namespace sluice::kv
