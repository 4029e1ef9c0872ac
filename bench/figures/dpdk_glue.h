/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* DPDK's event_dsw and rte_distributor behind a few calls. In C and in a file of its own: DPDK's
 * headers want more instructions than the rest of this program is built for, and inline functions
 * of C++ would carry them along.
 *
 * All pass pointers to completions; a completion's flow is its qp_num, 1..64. One producer, one
 * worker; the calls of one side are made by one thread at a time. */

/* Starts DPDK in this process, once: no huge pages, no devices, nothing shared. The calling
 * thread's affinity is the caller's to restore. 0; else an errno. */
int dpdk_start(unsigned cpu);

/* An event device with one atomic queue, a producer's port and a worker's port. 0; else an errno.
 */
int dsw_open(void);
/* Enqueues up to n completions; returns how many of the first were taken. */
unsigned dsw_put(struct ibv_wc* completions, unsigned n);
/* Passes on what the producer's port holds back; the producer calls it whenever it has nothing to
 * put. */
void dsw_flush(void);
/* Dequeues up to n (at most 32). */
unsigned dsw_take(struct ibv_wc** out, unsigned n);

/* A distributor with one worker, for completions in `count` slots of `stride` bytes from `base`,
 * `per_slot` in each. 0; else an errno. */
int distributor_open(char* base, size_t stride, size_t count, size_t per_slot);
/* Distributes up to n; returns how many were taken. With n = 0: passes on what was held back. May
 * wait for the worker if more than 8 are given. `slot`: the index of the slot that they lie at the
 * front of, `first` the first's index in it. */
unsigned distributor_put(struct ibv_wc* completions, size_t slot, size_t first, unsigned n);
/* What the worker is given, at most 8; it asks for more by this call, without waiting. */
unsigned distributor_take(struct ibv_wc** out);

#ifdef __cplusplus
}
#endif
