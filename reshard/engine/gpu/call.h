/* SPDX-License-Identifier: Apache-2.0 */
/* A call to a helper: the daemon gives it rounds, and it asks for their input, and for their output to be written. */
#ifndef RS_CALL_H
#define RS_CALL_H

#include "reshard/engine/io/fds.h"
#include "reshard/engine/gpu/crew.h"
#include "reshard/engine/gpu/helper.h"

struct rs_call {
	struct rs_helper *h;
	struct rs_pool pool;		/* the helper's */
	struct rs_rounds *rounds;
	struct rs_fds fds;		/* of their files */
	struct rs_crew *crew;		/* that reads them; NULL: the caller does */
	const struct rs_round *round;	/* that is being put */
	rs_helper_tick_fn *tick;	/* while the helper is waited for, or NULL */
	/** Fills the windows of the round that is being put: rs_call_fill(), if it is one of `rounds`. */
	int (*fill)(void *arg, uint64_t nr, struct sc_err *err);
	/** Writes what round `nr` has put out.  NULL: the pass ends in a buffer. */
	int (*drain)(void *arg, uint64_t nr, struct sc_err *err);
	void *arg;
};

/** Returns a window of round `nr`. */
unsigned char *rs_call_window(const struct rs_call *c, uint32_t peer, uint64_t nr, enum rs_pool_part part);
/** Fills the windows of input of the round that is being put.  Errors: those of sources. */
int rs_call_fill(struct rs_call *c, uint64_t nr, struct sc_err *err);
/** Sends a message of a kind, with a number.  Errors: as rs_helper_say(). */
int rs_call_say(struct rs_call *c, enum rs_wire_kind kind, uint64_t nr, struct sc_err *err);
/** Does what the helper asks for, until it says `last`.  Errors: as rs_helper_hear(), those of fill() and drain(). */
int rs_call_converse(struct rs_call *c, enum rs_wire_kind last, struct sc_err *err);
/** Puts a round, and has the earlier round drained that had the same slot.  Errors: as rs_call_converse(). */
int rs_call_put(struct rs_call *c, const struct rs_round *round, struct sc_err *err);

#endif
