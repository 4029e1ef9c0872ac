// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <librpma.h>

#include <utility>

#include "sluice/core/rpma/handles.hpp"

namespace sluice::rpma {

/// RAII over rpma_conn_cfg, filled from a ConnectionConfig.
class ConnectionCfg {
 public:
  static Result<ConnectionCfg> make(const ConnectionConfig& config,
                                    const ConnectionConfig::Sizes& sizes);
  ConnectionCfg(ConnectionCfg&& other) noexcept : cfg_(std::exchange(other.cfg_, nullptr)) {}
  ConnectionCfg& operator=(ConnectionCfg&&) = delete;
  ~ConnectionCfg();
  [[nodiscard]] const rpma_conn_cfg* get() const noexcept { return cfg_; }

 private:
  ConnectionCfg() = default;
  rpma_conn_cfg* cfg_ = nullptr;
};

}  // namespace sluice::rpma
