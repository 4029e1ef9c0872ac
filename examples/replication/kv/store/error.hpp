// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <rocksdb/status.h>

#include <string>

#include "sluice/core/status.hpp"

namespace sluice::kv {

/// RocksDB's failure as one line: "<what>: <its words>". A full disk is resource_exhausted, the
/// rest of what the disk may do io_error; `why` must be a failure.
[[nodiscard]] Status from_rocksdb(const rocksdb::Status& why, const std::string& what);

}  // namespace sluice::kv
