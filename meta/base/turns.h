/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts a wait by turns.  By the clock, time passes while the whole machine stands still, as a virtual one does for
 * seconds: a thread that waits for another thread or process would give up on one that had no chance.  Of a turn no
 * more counts than it was to last.
 */
#ifndef SC_TURNS_H
#define SC_TURNS_H

#include "meta/base/sys.h"

struct sc_turns {
	int64_t turn_ns;	/* what one is to last */
	int64_t waited_ns;
	int64_t began_ns;	/* the one that runs, by sc_now_ns() */
};

/** Begins a turn.  Returns the time, by sc_now_ns(), until which the turn is to last. */
static inline int64_t sc_turn_begin(struct sc_turns *t)
{
	t->began_ns = sc_now_ns();
	return t->began_ns + t->turn_ns;
}

/** Ends the turn, and counts it. */
static inline void sc_turn_end(struct sc_turns *t)
{
	const int64_t took = sc_now_ns() - t->began_ns;

	t->waited_ns += took < t->turn_ns ? took : t->turn_ns;
}

#endif
