// SPDX-License-Identifier: BSD-3-Clause
/* softrdma: controls that exist only in the software device.
 *
 * A program that uses RDMA needs nothing from this header: it calls libibverbs, librdmacm or
 * librpma. Tests that link softrdma use it to make the device misbehave and to look inside. All
 * functions are thread-safe. */
#ifndef SOFTRDMA_SOFTRDMA_H
#define SOFTRDMA_SOFTRDMA_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Replaces the misbehaviour in force by `spec` (grammar: the README, "Misbehaviour on purpose";
 * NULL or "" means none) and restarts all fault counters. Decisions are a function of seed, object
 * and event number: the same seed and the same calls give the same faults. Takes effect for the
 * objects that exist and those to come, except that a connection's drop limit is drawn when it is
 * set up. Returns 0, or EINVAL after one line on stderr that says what is wrong with the spec; then
 * nothing has changed. */
int softrdma_set_faults(const char* spec, uint64_t seed);

/* Checks a spec without using it. Returns 0, or EINVAL with a message (always terminated) in
 * `message`. */
int softrdma_check_faults(const char* spec, char* message, size_t message_size);

/* How many calls of the named fault point ("create_cq", "reg_mr", ...; "any" for all) there were
 * since the last softrdma_set_faults(). A test that fails each call in turn is done when the limit
 * was not reached. Unknown names give UINT64_MAX. */
uint64_t softrdma_fault_calls(const char* point);

struct softrdma_stats {
  uint64_t frames_sent;
  uint64_t frames_received;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t protocol_errors; /* connections closed since the peer sent rubbish */
  uint64_t access_errors;   /* remote accesses refused */
  uint64_t faults_injected;
  uint64_t rnr_waits;
  /* Objects alive now. */
  uint32_t pds, mrs, cqs, comp_channels, srqs, qps, cm_ids, event_channels;
  /* Connections the engine holds a socket of, those that are still closing included. */
  uint32_t links;
};

/* Fills `stats`; counters are process-wide and never reset. */
void softrdma_get_stats(struct softrdma_stats* stats);

/* Puts a CQ into the error state, as an overflow would. */
int softrdma_force_cq_error(struct ibv_cq* cq);

/* Cuts a queue pair's connection as if the peer had been killed. ENOTCONN when it has none. */
int softrdma_cut_connection(struct ibv_qp* qp);

/* Delivers an asynchronous event that has no object (IBV_EVENT_PORT_ERR, IBV_EVENT_DEVICE_FATAL,
 * ...) or, with `qp`, one that concerns a queue pair. Returns EINVAL when the two do not go
 * together. */
int softrdma_raise_async(struct ibv_context* context, enum ibv_event_type type, struct ibv_qp* qp);

#ifdef __cplusplus
}
#endif
#endif
