/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite's allocations, which a test makes fail: the one behind the next `left`, or that one and all after it. */
#ifndef TESTS_FAULT_SQLITE_MEMORY_H
#define TESTS_FAULT_SQLITE_MEMORY_H

#include <stdbool.h>

struct sqlite_memory {
	bool armed;		/* calls are counted */
	bool lasts;		/* all after the one that fails do, too */
	long left, failures;	/* calls until one fails; those that did */
};
extern struct sqlite_memory sqlite_memory;

/** Takes SQLite's memory over; a group's setup, before the first catalog is opened. */
int sqlite_memory_take(void **unused);

#endif
