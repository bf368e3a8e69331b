/* SPDX-License-Identifier: Apache-2.0 */
/* What this room remembers of the working trees of all jobs: its own files alone include it. */
#ifndef RS_REQUESTS_I_H
#define RS_REQUESTS_I_H

#include "reshard/worktree/requests/tree_i.h"

#define RS_OPENED_BUCKETS 4096

struct rs_requests {
	struct {			/* changes that are not in the catalog yet (log.c) */
		struct meta_tail *tail;
		struct sc_thread thread;
		pthread_mutex_t lock;
		pthread_cond_t wake;
		uint64_t began;		/* where it ended when the service began */
		bool stop;
	} log;
	struct {			/* whose numbers are whose, by `first`; under service.lock (log.c) */
		size_t nr, room;
		struct rs_number_block {
			uint64_t first, nr, job;
		} *at;
	} numbers;
	size_t nameless;		/* objects without a name, of all jobs; atomic (own.c) */
	struct {			/* open files (opened.c) */
		pthread_mutex_t lock;
		pthread_cond_t fewer;	/* a count went down */
		struct rs_opened {
			uint64_t blob;
			uint32_t times, writers, reserved;
			int64_t until_ns;	/* of the last reservation */
			bool removed;		/* its file goes with the last close */
			struct rs_opened *next;
		} *buckets[RS_OPENED_BUCKETS];
	} opened;
	struct {			/* versions whose rows outlive them; under service.lock (hidden.c) */
		size_t nr, room;
		struct rs_hidden {
			uint64_t version;
			int64_t since_ns;	/* 0: it is not dropped */
			uint32_t opens;
		} *at;
		int64_t due_ns;		/* when to look for those that may go */
	} hidden;
	struct {			/* blobs that are being made: no garbage; under service.lock (pins.c) */
		size_t nr, room;
		uint64_t *at;
	} pinned;
};

/* --- opened.c --- */
void rs_opened_init(struct rs_service *s);
void rs_opened_done(struct rs_service *s);

#endif
