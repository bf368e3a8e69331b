/* SPDX-License-Identifier: Apache-2.0 */
/* A store with one job whose working tree is an overlay: its catalog, log, and the real folder that it is compared to. */
#ifndef TESTS_PROP_OVERLAY_H
#define TESTS_PROP_OVERLAY_H

#include "meta/tree/tail.h"
#include "reshard/overlay/committed.h"

#define RANKS 3
#define ROOT UINT64_C(1024)		/* number of the job's folder: it is the first job of its catalog */
#define VERSIONS_MAX 4000

struct bed {
	char top[64], real[80];		/* the real folder of now; top/vN has what version N was */
	int top_fd;
	struct meta_catalog *catalog;
	struct meta_tail *tail;
	struct rs_committed below;
	struct rs_overlay *overlay;
	uint64_t next, last;		/* numbers that were taken */
	uint64_t job, layout;
	uint64_t trees[VERSIONS_MAX];	/* of versions; [0]: none yet */
	unsigned versions, head;
	int64_t clock;
	bool log_fails;			/* the next record cannot be logged */
};

void bed_make(struct bed *b);
void bed_done(struct bed *b);
/** Opens catalog and log and loads the upper layer, as a daemon that starts. */
void bed_start(struct bed *b);
/** Ends the daemon; `drain`: in good order, else it is killed. */
void bed_stop(struct bed *b, bool drain);
/** Finds the rank whose tree an object is in, or the job's folder. */
uint64_t bed_home(const struct bed *b, uint64_t ino);
void bed_commit(struct bed *b);
/** Puts a version back (the head's: discard); `held`: what somebody holds, in order. */
void bed_back(struct bed *b, unsigned version, const struct rs_held *held);
/** Tells whether bed_back() takes the name of an object that is held, whatever the version has. */
bool bed_loses_name(const struct bed *b, uint64_t ino);
/** Checks that such an object, which was seen as `seen`, has no name; true: something else has come back for it. */
bool bed_has_parted(const struct bed *b, uint64_t ino, uint64_t seen);
/** Compares the overlay with the real folder, and the version of a number with the folder that it was. */
void bed_compare(struct bed *b);
void bed_compare_version(struct bed *b, unsigned version);

#endif
