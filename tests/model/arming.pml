/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Arming and sleeping, the contract C1 of completion sources: a poller that goes from hot to cold
 * and sleeps; a device that adds completions. One CQ on a channel, or a pair of CQs that share one
 * (librpma's shared channel).
 *
 * The device: a completion on an armed CQ disarms it and queues one event on the channel. Arming
 * takes no notice of completions that are there already. librpma arms at creation.
 * The poller: hot, it polls and never touches events. Turning cold it consumes events until there
 * is none, each re-arming the CQ that it names (take the event, then arm: two steps); polls every
 * CQ to empty; then sleeps on the channel's descriptor, level-triggered.
 *
 * Properties:
 *   INV-ARM    each CQ is armed or has an event queued (or the poller is just between the two);
 *   INV-EMPTY  at the moment of falling asleep each CQ has been seen empty since its last re-arm;
 *   and it never sleeps for ever with a completion in a CQ: in the end all have been delivered.
 * HANG_ONLY leaves INV-EMPTY unasserted, to see that its breach does lead to a sleep for ever.
 *
 *   VERIFY: -DCQS=1 -DCOMPLETIONS=4
 *   VERIFY: -DCQS=2 -DCOMPLETIONS=3
 *   MUTANT: -DCQS=1 -DCOMPLETIONS=3 -DNO_POLL_AFTER_REARM
 *   MUTANT: -DCQS=2 -DCOMPLETIONS=3 -DNO_POLL_AFTER_REARM -DHANG_ONLY
 *   MUTANT: -DCQS=1 -DCOMPLETIONS=3 -DBUDGET_USED_UP
 *   MUTANT: -DCQS=2 -DCOMPLETIONS=2 -DREARMS_THE_WRONG_CQ
 *   MUTANT: -DCQS=2 -DCOMPLETIONS=2 -DPOLLS_ONLY_THE_LAST_NAMED
 *   MUTANT: -DCQS=1 -DCOMPLETIONS=2 -DIGNORES_FAILED_REARM
 */

byte cq[CQS];               /* completions waiting */
bool armed[CQS];
byte channel_events[CQS];   /* events queued on the one channel, by the CQ they name */
byte delivered;
bool seen_empty[CQS];       /* polled to empty since its last re-arm */
bool device_done;
byte rearming = CQS;        /* the CQ whose event is taken and which is not yet armed again */
bool sleeping;

#if CQS == 1
#define ANY_EVENT (channel_events[0] > 0)
#else
#define ANY_EVENT (channel_events[0] > 0 || channel_events[1] > 0)
#endif

proctype Device() {
  byte left[CQS];
  byte i;
  for (i : 0 .. CQS - 1) { left[i] = COMPLETIONS }
  i = 0;
  do
  :: atomic {
       left[0] > 0 -> left[0]--; cq[0]++;
       if
       :: armed[0] -> armed[0] = false; channel_events[0]++
       :: else -> skip
       fi
     }
#if CQS == 2
  :: atomic {
       left[1] > 0 -> left[1]--; cq[1]++;
       if
       :: armed[1] -> armed[1] = false; channel_events[1]++
       :: else -> skip
       fi
     }
  :: left[0] == 0 && left[1] == 0 -> break
#else
  :: left[0] == 0 -> break
#endif
  od;
  device_done = true
}

/* One poll of one CQ: some of what is there. */
inline poll_some(i) {
  atomic {
    if
    :: cq[i] > 0 -> cq[i]--; delivered++
    :: cq[i] > 1 -> cq[i] = cq[i] - 2; delivered = delivered + 2
    :: cq[i] == 0 -> seen_empty[i] = true
    fi
  }
}

inline poll_to_empty(i) {
  do
  :: atomic { cq[i] > 0 -> cq[i]--; delivered++ };
#ifdef BUDGET_USED_UP
     seen_empty[i] = true;
     break
#endif
  :: atomic { cq[i] == 0 -> seen_empty[i] = true; break }
  od
}

inline arm(i) {
  atomic {
#ifdef IGNORES_FAILED_REARM
    if
    :: armed[i] = true
    :: skip
    fi;
#else
    armed[i] = true;
#endif
    seen_empty[i] = false
  }
}

/* Non-blocking wait: takes one event and re-arms the CQ that it names. */
inline consume_until_none(named) {
  do
  :: atomic { channel_events[0] > 0 -> channel_events[0]--; named = 0; rearming = 0 };
     arm(0);
     rearming = CQS
#if CQS == 2
  :: atomic { channel_events[1] > 0 -> channel_events[1]--; named = 1; rearming = 1 };
#ifdef REARMS_THE_WRONG_CQ
     arm(0);
#else
     arm(1);
#endif
     rearming = CQS
#endif
  :: atomic { !ANY_EVENT -> break }
  od
}

proctype Poller() {
  byte named;
hot:
  do
  :: poll_some(0)
#if CQS == 2
  :: poll_some(1)
#endif
  :: break
  od;

#ifdef NO_POLL_AFTER_REARM
  poll_to_empty(0);
#if CQS == 2
  poll_to_empty(1);
#endif
  consume_until_none(named);
#else
  consume_until_none(named);
#ifdef POLLS_ONLY_THE_LAST_NAMED
  if
  :: named == 0 -> poll_to_empty(0)
  :: else -> poll_to_empty(1)
  fi;
#else
  poll_to_empty(0);
#if CQS == 2
  poll_to_empty(1);
#endif
#endif
#endif

#ifndef HANG_ONLY
  assert(seen_empty[0]);                              /* INV-EMPTY */
#if CQS == 2
  assert(seen_empty[1]);
#endif
#endif
  sleeping = true;
  ANY_EVENT;                                          /* epoll_wait, level-triggered */
  sleeping = false;
  named = 0;
  goto hot
}

/* INV-ARM, at every moment. */
proctype Arming() {
end:
  do
  :: atomic { !armed[0] && channel_events[0] == 0 && rearming != 0 -> assert(false) }
#if CQS == 2
  :: atomic { !armed[1] && channel_events[1] == 0 && rearming != 1 -> assert(false) }
#endif
  od
}

proctype Observer() {
  timeout;
  assert(device_done && sleeping);
  assert(delivered == CQS * COMPLETIONS)
}

init {
  atomic {
    armed[0] = true;
#if CQS == 2
    armed[1] = true;
#endif
    run Device();
    run Poller();
    run Arming();
    run Observer()
  }
}
