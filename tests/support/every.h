/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a long test is done: one point in EVERY, of the environment; all of them without it. */
#ifndef TEST_EVERY_H
#define TEST_EVERY_H

#include <stdlib.h>

static inline long every(void)
{
	const char *text = getenv("EVERY");
	const long n = text ? strtol(text, NULL, 10) : 1;

	return n > 0 ? n : 1;
}

/* The same, but no fewer than one in `most`: 3 of what is quickly done, 9 of what has few points. */
static inline long every_at_most(long most)
{
	return every() < most ? every() : most;
}

/* The point after `n`: one in three of the first thirty, which is all that many commands have, then one in EVERY. */
static inline long next_point(long n)
{
	return n + (n < 30 ? every_at_most(3) : every());
}

/* How many of `all` random cases are made, in which each kind of thing happens more than once. */
static inline unsigned some_of(unsigned all)
{
	return (all + (unsigned)every_at_most(3) - 1) / (unsigned)every_at_most(3);
}

#endif
