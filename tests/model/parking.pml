/* SPDX-License-Identifier: BSD-3-Clause
 *
 * The parking protocol of core/include/sluice/core/parking.hpp: two workers, two producers, a stop.
 * Every atomic step of the code is a step here; all of them are seq_cst in the code, or covered by
 * the argument at (5) (7), so interleaving is the right semantics. The numbers are those of the code.
 *
 * Properties: when nothing moves any more
 *   - no work is left, even if one of the two workers is stuck in its handler for ever (no wake is
 *     lost, and the last searcher passes on what it leaves);
 *   - after a stop, every worker that is not stuck has ended.
 * And always: the word counts what it says it counts.
 *
 *   VERIFY: -DFIRST=2 -DSECOND=1
 *   VERIFY: -DFIRST=2 -DSECOND=1 -DPRE_WAKE
 *   VERIFY: -DFIRST=1 -DSECOND=1 -DSTOP
 *   VERIFY: -DFIRST=1 -DSECOND=1 -DTIMEOUTS
 *   VERIFY: -DFIRST=1 -DSECOND=1 -DSIGNALS
 *   MUTANT: -DFIRST=2 -DSECOND=1 -DNO_FINAL_SCAN
 *   MUTANT: -DFIRST=2 -DSECOND=1 -DSCAN_BEFORE_MARK
 *   MUTANT: -DFIRST=2 -DSECOND=1 -DLAST_SEARCHER_KEEPS_QUIET
 *   MUTANT: -DFIRST=2 -DSECOND=1 -DFUTEX_WORD_READ_LATE
 *   MUTANT: -DFIRST=1 -DSECOND=1 -DSTOP -DNO_STOP_CHECK
 *   MUTANT: -DFIRST=2 -DSECOND=1 -DCANCEL_COUNTS_TWICE
 */

#define WORKERS 2

byte work;             /* elements in the rings */
byte taken;
byte published;

/* The word. */
byte searchers;
bool asleep[WORKERS];  /* the mask */

bool moved[WORKERS];   /* the futex word has been moved on since the worker has read it: only that
                          difference counts, so reading clears it */
bool in_kernel[WORKERS];

#if defined(TIMEOUTS) || defined(SIGNALS)
byte disturbances = 2; /* sleeps that end by something else than a wake */
#else
byte disturbances = 0;
#endif

bool stop_flag;
bool stopped;          /* stop() has returned */
bool stuck_used;       /* one handler may never return */
bool stuck[WORKERS];
bool ended[WORKERS];

/* (1), (4), (5) */
inline notify(any, target) {
  do
  :: atomic { searchers > 0 || (!asleep[0] && !asleep[1]) -> break }        /* (1) */
  :: atomic {                                                                /* (4), succeeded */
       else ->
       target = (asleep[0] -> 0 : 1);
       asleep[target] = false;
       searchers++
     };
     moved[target] = true;                                                    /* (5) */
     in_kernel[target] = false;                                              /* FUTEX_WAKE */
     target = 0;
     break
  od
}

inline wake_by_id(target) {
  if
  :: atomic { asleep[target] -> asleep[target] = false; searchers++ };
     moved[target] = true;
     in_kernel[target] = false
  :: atomic { !asleep[target] -> skip }
  fi
}

/* (6): the own bit withdrawn, or found to have been cleared by a waker */
inline withdraw(id) {
  atomic {
    if
    :: asleep[id] -> asleep[id] = false; searchers++
    :: else ->
#ifdef CANCEL_COUNTS_TWICE
       searchers++
#else
       skip
#endif
    fi
  }
}

proctype Producer(byte items) {
  byte i;
  byte target;
  for (i : 1 .. items) {
#ifdef PRE_WAKE
    if
    :: notify(0, target)
    :: skip
    fi;
#endif
    atomic { work++; published++ };
    notify(0, target)
  }
}

proctype Worker(byte id) {
  byte target;
  bool last;
  bool found;

  searchers++;                                         /* begin_search */
searching:
  atomic {                                             /* pop */
    if
    :: work > 0 -> work--; taken++; found = true
    :: else -> found = false
    fi
  };
  if
  :: found ->
     atomic {                                          /* (3) found_work */
       found = false;
       searchers--;
       last = (searchers == 0 && (asleep[0] || asleep[1]))
     };
#ifndef LAST_SEARCHER_KEEPS_QUIET
     if
     :: last ->
        if
        :: work > 0 -> notify(0, target)
        :: work == 0 -> skip
        fi
     :: else -> skip
     fi;
#endif
     last = false;
     if                                                /* the handler */
     :: skip
     :: atomic { !stuck_used -> stuck_used = true; stuck[id] = true }; false
     fi;
     do                                                /* on, while there is more */
     :: atomic { work > 0 -> work--; taken++ }
     :: work == 0 -> break
     od;
     searchers++;                                      /* begin_search */
     goto searching
  :: else -> skip
  fi;

#ifdef SCAN_BEFORE_MARK
  if
  :: work > 0 -> goto searching
  :: work == 0 -> skip
  fi;
#endif
  atomic { asleep[id] = true; searchers-- };           /* (2) prepare_park */
#ifndef NO_STOP_CHECK
  if
  :: stop_flag -> withdraw(id); goto done              /* (9) */
  :: !stop_flag -> skip
  fi;
#endif
#if !defined(NO_FINAL_SCAN) && !defined(SCAN_BEFORE_MARK)
  if                                                   /* the last scan */
  :: work > 0 -> withdraw(id); goto searching          /* cancel_park */
  :: work == 0 -> skip
  fi;
#endif
  do                                                   /* park */
  ::
#ifdef FUTEX_WORD_READ_LATE
     if
     :: !asleep[id] -> break
     :: asleep[id] -> skip
     fi;
     moved[id] = false;
#else
     moved[id] = false;                                /* (7) */
     if
     :: !asleep[id] -> break                           /* (6) */
     :: asleep[id] -> skip
     fi;
#endif
     atomic {                                          /* FUTEX_WAIT */
       if
       :: !moved[id] -> in_kernel[id] = true
       :: else -> skip
       fi
     };
     if
     :: !in_kernel[id]                                 /* woken, or it did not even wait */
     :: atomic { disturbances > 0 && in_kernel[id] -> disturbances--; in_kernel[id] = false };
#ifdef TIMEOUTS
        withdraw(id);                                  /* the deadline has passed */
        break
#endif
     fi
  od;
  moved[id] = false;
  if
  :: stop_flag -> goto done
  :: !stop_flag -> goto searching
  fi;
done:
  atomic { searchers--; ended[id] = true }
}

proctype Stopper() {
#ifdef STOP
  stop_flag = true;                                    /* (8) */
  wake_by_id(0);
  wake_by_id(1);
  stopped = true
#else
  skip
#endif
}

#define HANGING(id) (!stuck[id] && !ended[id])

/* Runs when nothing else can: then these must hold. */
proctype Observer() {
  timeout;
  assert(published == FIRST + SECOND);
  assert(taken + work == published);
  assert(stopped || work == 0);                        /* only one worker can be stuck */
  assert(!stopped || (!HANGING(0) && !HANGING(1)));
  assert(searchers == 0)
}

init {
  atomic {
    run Worker(0);
    run Worker(1);
    run Producer(FIRST);
    run Producer(SECOND);
    run Stopper();
    run Observer()
  }
}
