/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/sqlite_memory.h"

#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the above first */
#include <cmocka.h>

struct sqlite_memory sqlite_memory;
static sqlite3_mem_methods real;
static int benign;		/* SQLite goes on without these, and says so before */

static bool fails_now(void)
{
	if (!sqlite_memory.armed || benign || sqlite_memory.left-- > 0 ||
	    (sqlite_memory.failures && !sqlite_memory.lasts))
		return false;
	sqlite_memory.failures++;
	return true;
}

static void *bad_malloc(int bytes)
{
	return fails_now() ? NULL : real.xMalloc(bytes);
}

static void *bad_realloc(void *p, int bytes)
{
	return fails_now() ? NULL : real.xRealloc(p, bytes);
}

static void benign_begin(void)
{
	benign++;
}

static void benign_end(void)
{
	benign--;
}

int sqlite_memory_take(void **unused)
{
	sqlite3_mem_methods bad;

	(void)unused;
	assert_int_equal(SQLITE_OK, sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real));
	bad = real;
	bad.xMalloc = bad_malloc;
	bad.xRealloc = bad_realloc;
	assert_int_equal(SQLITE_OK, sqlite3_config(SQLITE_CONFIG_MALLOC, &bad));
	assert_int_equal(SQLITE_OK, sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0)); /* each is a call */
	assert_int_equal(SQLITE_OK, sqlite3_test_control(SQLITE_TESTCTRL_BENIGN_MALLOC_HOOKS, benign_begin, benign_end));
	return 0;
}
