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

/* The same, but for no fewer than a third: of what is quickly done. */
static inline long every_third(void)
{
	return every() < 3 ? every() : 3;
}

/* The same, but for no fewer than a ninth: of what has few points. */
static inline long every_ninth(void)
{
	return every() < 9 ? every() : 9;
}

/* The point after `n`: one in three of the first thirty, which is all that many commands have, then one in EVERY. */
static inline long next_point(long n)
{
	return n + (n < 30 ? every_third() : every());
}

/* How many of `all` random cases are made, in which each kind of thing happens more than once. */
static inline unsigned some_of(unsigned all)
{
	return (all + (unsigned)every_third() - 1) / (unsigned)every_third();
}

#endif
