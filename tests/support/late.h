/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds on time: a figure, and asserted on a quiet machine only (BOUNDS=assert), as tests/e2e/late.py does it. */
#ifndef TESTS_LATE_H
#define TESTS_LATE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** Reports milliseconds and their bound; false: they are more, and that is asserted. */
static inline bool in_time(const char *what, int64_t ms, int64_t bound_ms)
{
	const char *asserted = getenv("BOUNDS");
	char load[100] = "?";
	FILE *f;

	fprintf(stderr, "figure: %s: %ld ms, %ld ms allowed\n", what, (long)ms, (long)bound_ms);
	if (ms <= bound_ms || !asserted || strcmp(asserted, "assert") != 0)
		return true;
	f = fopen("/proc/loadavg", "re");
	if (f && fscanf(f, "%99s", load) != 1)
		(void)snprintf(load, sizeof(load), "?");
	if (f)
		(void)fclose(f);
	fprintf(stderr, "late: %s: %ld ms, %ld ms allowed, load %s\n", what, (long)ms, (long)bound_ms, load);
	return false;
}

#endif
