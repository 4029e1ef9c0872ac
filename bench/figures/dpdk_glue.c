/* SPDX-License-Identifier: BSD-3-Clause */
#include "dpdk_glue.h"

#include <errno.h>
#include <rte_bus_vdev.h>
#include <rte_distributor.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eventdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBurst = 32, kInFlightMax = 4096, kWorkerBurst = 8 };

int dpdk_start(unsigned cpu) {
  char lcore[16];
  snprintf(lcore, sizeof lcore, "0@%u", cpu);
  char* arguments[] = {"sluice-bench", "--no-huge",   "--no-shconf",    "-m",
                       "512",          "--no-pci",    "--no-telemetry", "--lcores",
                       lcore,          "--log-level", "error",          NULL};
  const int count = (int)(sizeof arguments / sizeof *arguments) - 1;
  return rte_eal_init(count, arguments) < 0 ? rte_errno : 0;
}

/* --- event_dsw
 * ----------------------------------------------------------------------------------------------------
 */

enum { kQueue = 0, kProducerPort = 0, kWorkerPort = 1 };
static uint8_t dsw;

int dsw_open(void) {
  int failed = rte_vdev_init("event_dsw0", NULL);
  if (failed != 0) return -failed;
  const int device = rte_event_dev_get_dev_id("event_dsw0");
  if (device < 0) return ENODEV;
  dsw = (uint8_t)device;
  const struct rte_event_dev_config config = {.nb_event_queues = 1,
                                              .nb_event_ports = 2,
                                              .nb_events_limit = kInFlightMax,
                                              .nb_event_queue_flows = 1024,
                                              .nb_event_port_dequeue_depth = kBurst,
                                              .nb_event_port_enqueue_depth = kBurst};
  failed = rte_event_dev_configure(dsw, &config);
  if (failed != 0) return -failed;
  const struct rte_event_queue_conf queue = {.schedule_type = RTE_SCHED_TYPE_ATOMIC,
                                             .nb_atomic_flows = 1024,
                                             .nb_atomic_order_sequences = 1024,
                                             .priority = RTE_EVENT_DEV_PRIORITY_NORMAL};
  failed = rte_event_queue_setup(dsw, kQueue, &queue);
  if (failed != 0) return -failed;
  const struct rte_event_port_conf port = {
      .new_event_threshold = kInFlightMax, .dequeue_depth = kBurst, .enqueue_depth = kBurst};
  failed = rte_event_port_setup(dsw, kProducerPort, &port);
  if (failed == 0) failed = rte_event_port_setup(dsw, kWorkerPort, &port);
  if (failed != 0) return -failed;
  const uint8_t linked = kQueue;
  if (rte_event_port_link(dsw, kWorkerPort, &linked, NULL, 1) != 1) return rte_errno;
  return -rte_event_dev_start(dsw);
}

unsigned dsw_put(struct ibv_wc* completions, unsigned n) {
  struct rte_event events[kBurst];
  if (n > kBurst) n = kBurst;
  for (unsigned i = 0; i < n; ++i) {
    events[i].event = 0;
    events[i].flow_id = completions[i].qp_num;
    events[i].op = RTE_EVENT_OP_NEW;
    events[i].sched_type = RTE_SCHED_TYPE_ATOMIC;
    events[i].queue_id = kQueue;
    events[i].event_ptr = &completions[i];
  }
  return rte_event_enqueue_new_burst(dsw, kProducerPort, events, (uint16_t)n);
}

void dsw_flush(void) {
  rte_event_maintain(dsw, kProducerPort, RTE_EVENT_DEV_MAINT_OP_FLUSH);
}

unsigned dsw_take(struct ibv_wc** out, unsigned n) {
  struct rte_event events[kBurst];
  const uint16_t taken =
      rte_event_dequeue_burst(dsw, kWorkerPort, events, (uint16_t)(n < kBurst ? n : kBurst), 0);
  for (uint16_t i = 0; i < taken; ++i) out[i] = events[i].event_ptr;
  return taken;
}

/* --- rte_distributor
 * ---------------------------------------------------------------------------------------------- */

static struct rte_distributor* distributor;
static struct rte_mbuf*
    mbufs; /* [slot][per_slot]: one stands for each place that a completion can lie at */
static size_t mbufs_per_slot;

int distributor_open(char* base, size_t stride, size_t count, size_t per_slot) {
  distributor = rte_distributor_create("bench", 0, 1, RTE_DIST_ALG_BURST);
  if (distributor == NULL) return rte_errno;
  mbufs = aligned_alloc(_Alignof(struct rte_mbuf), count * per_slot * sizeof *mbufs);
  if (mbufs == NULL) return ENOMEM;
  memset(mbufs, 0, count * per_slot * sizeof *mbufs);
  mbufs_per_slot = per_slot;
  for (size_t slot = 0; slot < count; ++slot) {
    struct ibv_wc* const completions = (struct ibv_wc*)(void*)(base + slot * stride);
    for (size_t i = 0; i < per_slot; ++i) mbufs[slot * per_slot + i].buf_addr = &completions[i];
  }
  return 0;
}

unsigned distributor_put(struct ibv_wc* completions, size_t slot, size_t first, unsigned n) {
  struct rte_mbuf* given[kBurst];
  if (n > kBurst) n = kBurst;
  for (unsigned i = 0; i < n; ++i) {
    given[i] = &mbufs[slot * mbufs_per_slot + first + i];
    given[i]->hash.usr = completions[i].qp_num << 1; /* it sets bit 0 */
  }
  const int taken = rte_distributor_process(distributor, given, n);
  return taken < 0 ? 0 : (unsigned)taken;
}

unsigned distributor_take(struct ibv_wc** out) {
  static bool asked = false; /* the worker's */
  struct rte_mbuf* given[kWorkerBurst];
  if (!asked) {
    rte_distributor_request_pkt(distributor, 0, NULL, 0);
    asked = true;
  }
  const int count = rte_distributor_poll_pkt(distributor, 0, given);
  if (count < 0) return 0;
  asked = false;
  for (int i = 0; i < count; ++i) out[i] = given[i]->buf_addr;
  return (unsigned)count;
}
