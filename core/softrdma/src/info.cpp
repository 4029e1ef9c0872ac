// SPDX-License-Identifier: BSD-3-Clause
// Names and conversions that need no device.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstdlib>
#include <iterator>

namespace {

template <std::size_t N>
const char* pick(const char* const (&names)[N], int index) noexcept {
  return index >= 0 && index < static_cast<int>(N) ? names[index] : "unknown";
}

struct Rate {
  ibv_rate rate;
  int multiple;  // of 2.5 Gbit/s, 0: not a multiple
  int mbps;
};
constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},       {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},       {IBV_RATE_20_GBPS, 8, 20000},
    {IBV_RATE_30_GBPS, 12, 30000},      {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},      {IBV_RATE_80_GBPS, 32, 80000},
    {IBV_RATE_120_GBPS, 48, 120000},    {IBV_RATE_14_GBPS, 6, 14062},
    {IBV_RATE_56_GBPS, 22, 56250},      {IBV_RATE_112_GBPS, 45, 112500},
    {IBV_RATE_168_GBPS, 67, 168750},    {IBV_RATE_25_GBPS, 10, 25781},
    {IBV_RATE_100_GBPS, 41, 103125},    {IBV_RATE_200_GBPS, 82, 206250},
    {IBV_RATE_300_GBPS, 124, 309375},   {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},      {IBV_RATE_400_GBPS, 160, 425000},
    {IBV_RATE_600_GBPS, 240, 637500},   {IBV_RATE_800_GBPS, 320, 850000},
    {IBV_RATE_1200_GBPS, 480, 1275000},
};

}  // namespace

extern "C" {

const char* ibv_wc_status_str(ibv_wc_status status) {
  static constexpr const char* kNames[] = {"success",
                                           "local length error",
                                           "local QP operation error",
                                           "local EE context operation error",
                                           "local protection error",
                                           "Work Request Flushed Error",
                                           "memory management operation error",
                                           "bad response error",
                                           "local access error",
                                           "remote invalid request error",
                                           "remote access error",
                                           "remote operation error",
                                           "transport retry counter exceeded",
                                           "RNR retry counter exceeded",
                                           "local RDD violation error",
                                           "remote invalid RD request",
                                           "aborted error",
                                           "invalid EE context number",
                                           "invalid EE context state",
                                           "fatal error",
                                           "response timeout error",
                                           "general error",
                                           "TM error",
                                           "TM software rendezvous"};
  return pick(kNames, static_cast<int>(status));
}
const char* ibv_node_type_str(ibv_node_type type) {
  static constexpr const char* kNames[] = {"unknown",           "InfiniBand channel adapter",
                                           "InfiniBand switch", "InfiniBand router",
                                           "iWARP NIC",         "usNIC",
                                           "usNIC UDP",         "unspecified"};
  return pick(kNames, static_cast<int>(type));
}
const char* ibv_port_state_str(ibv_port_state state) {
  static constexpr const char* kNames[] = {
      "no state change (NOP)", "down", "init", "armed", "active", "active defer"};
  return pick(kNames, static_cast<int>(state));
}
const char* ibv_event_type_str(ibv_event_type type) {
  static constexpr const char* kNames[] = {"CQ error",
                                           "local work queue catastrophic error",
                                           "invalid request local work queue error",
                                           "local access violation work queue error",
                                           "communication established",
                                           "send queue drained",
                                           "path migrated",
                                           "path migration request error",
                                           "local catastrophic error",
                                           "port active",
                                           "port error",
                                           "LID change",
                                           "P_Key change",
                                           "SM change",
                                           "SRQ catastrophic error",
                                           "SRQ limit reached",
                                           "last WQE reached",
                                           "client reregistration",
                                           "GID table change",
                                           "WQ fatal"};
  return pick(kNames, static_cast<int>(type));
}
const char* rdma_event_str(rdma_cm_event_type event) {
  static constexpr const char* kNames[] = {
      "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
      "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
      "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
      "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
      "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
      "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
      "RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
      "RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT"};
  const int index = static_cast<int>(event);
  return index >= 0 && index < static_cast<int>(std::size(kNames)) ? kNames[index]
                                                                   : "UNKNOWN EVENT";
}

int ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& r : kRates) {
    if (r.rate == rate) return r.multiple;
  }
  return -1;
}
ibv_rate mult_to_ibv_rate(int multiple) {
  for (const Rate& r : kRates) {
    if (r.multiple == multiple) return r.rate;
  }
  return IBV_RATE_MAX;
}
int ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& r : kRates) {
    if (r.rate == rate) return r.mbps;
  }
  return -1;
}
ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& r : kRates) {
    if (r.mbps == mbps) return r.rate;
  }
  return IBV_RATE_MAX;
}

}  // extern "C"
