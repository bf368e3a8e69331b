/* SPDX-License-Identifier: Apache-2.0 */
/* A store of its own with one job, and system calls that fail one after another: for tests of the service. */
#ifndef TEST_HOUSE_H
#define TEST_HOUSE_H

#include "meta/base/sys.h"
#include "reshard/service/service.h"

struct house {
	char dir[40];
	struct rs_service *s;
	struct rs_job *job;
};

/** Makes a store in memory with the job `gpt`, without versions; close_house() removes it. */
void open_house(struct house *h, bool quiet_worker);
void close_house(struct house *h);
/** Commits the sample as the first version. */
void commit_sample(struct house *h);

extern struct sc_sys real;	/* a test sets it before it replaces a call */
extern long left;		/* calls until one fails */
extern bool failed;
bool fails_now(void);

#endif
