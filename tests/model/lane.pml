/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A lane (core/include/sluice/core/lane_queue.hpp) with its ring of runnable lanes: two producers,
 * two workers. The head word is IDLE, 0 (scheduled, empty) or a list, here its length; a CAS that
 * compares lengths succeeds more often than one that compares pointers, which only adds behaviours.
 *
 * Properties: never two workers in the lane; the ring (one slot per lane) never refuses it; in the
 * end every node has been consumed and the lane is idle; nobody consumes a lane that is idle.
 *
 *   VERIFY: -DITEMS=2
 *   VERIFY: -DITEMS=3
 *   MUTANT: -DITEMS=2 -DIDLE_WITHOUT_RECHECK
 *   MUTANT: -DITEMS=2 -DPUSH_SCHEDULES_WHEN_EMPTY
 *   MUTANT: -DITEMS=2 -DTOUCHES_LANE_AFTER_HANDOVER
 *   MUTANT: -DITEMS=2 -DPUSH_SCHEDULES_BEFORE_LINKING
 */

#define PRODUCERS 2
#define IDLE 255

byte head = IDLE;
byte in_ring;        /* how often the lane is in the ring of runnable lanes */
byte holders;
byte consumed;

inline schedule() {
  atomic { assert(in_ring == 0); in_ring++ }
}

proctype Producer() {
  byte i;
  byte seen;
  for (i : 1 .. ITEMS) {
    seen = head;
#ifdef PUSH_SCHEDULES_BEFORE_LINKING
    if
    :: seen == IDLE -> schedule()
    :: else -> skip
    fi;
#endif
    do
    :: atomic { head == seen -> head = (seen == IDLE -> 1 : seen + 1); break }   /* (1) */
    :: atomic { head != seen -> seen = head }
    od;
#ifndef PUSH_SCHEDULES_BEFORE_LINKING
    if
#ifdef PUSH_SCHEDULES_WHEN_EMPTY
    :: seen == IDLE || seen == 0 -> schedule()
#else
    :: seen == IDLE -> schedule()
#endif
    :: else -> skip
    fi;
#endif
    seen = 0
  }
}

proctype Worker() {
  byte list;
  bool idle;
end:
  do
  :: atomic { in_ring > 0 -> in_ring-- };
     holders++;
     assert(holders == 1);
again:
     atomic {                                         /* (2) take_all */
       assert(head != IDLE);
       list = head;
       head = 0
     };
     consumed = consumed + list;
     list = 0;
     assert(holders == 1);
     if
     :: holders--; schedule()                         /* its share is over: put it back */
#ifdef TOUCHES_LANE_AFTER_HANDOVER
        ; atomic { assert(head != IDLE); list = head; head = 0 };
        holders++;
        assert(holders == 1);
        consumed = consumed + list;
        holders--;
        list = 0
#endif
     :: holders--;
#ifdef IDLE_WITHOUT_RECHECK
        idle = (head == 0);
        if
        :: idle -> head = IDLE
        :: else -> skip
        fi;
#else
        atomic {                                      /* (3) try_idle */
          idle = (head == 0);
          if
          :: idle -> head = IDLE
          :: else -> skip
          fi
        };
#endif
        if
        :: idle -> skip
        :: !idle -> holders++; goto again
        :: !idle -> schedule()
        fi
     fi;
     idle = false
  od
}

proctype Observer() {
  timeout;
  assert(consumed == PRODUCERS * ITEMS);
  assert(head == IDLE);
  assert(in_ring == 0 && holders == 0)
}

init {
  atomic {
    run Producer();
    run Producer();
    run Worker();
    run Worker();
    run Observer()
  }
}
