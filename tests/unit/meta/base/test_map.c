/* SPDX-License-Identifier: Apache-2.0 */
/* The map of meta/base/mem.h: random puts and drops, compared with a list. */
#include "meta/base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#define KEYS 400

static void puts_and_drops(void **unused)
{
	char keys[KEYS][8];
	uintptr_t values[KEYS] = {0};
	struct sc_map map = {0};
	unsigned dice = 1;

	(void)unused;
	for (int i = 0; i < KEYS; i++)
		(void)snprintf(keys[i], sizeof(keys[i]), "%d", i);
	for (uintptr_t step = 1; step < 20000; step++) {
		size_t nr = 0;
		int i;

		dice = dice * 1103515245 + 12345;
		i = (int)((dice >> 16) % (step % 4000 < 2000 ? KEYS : 60));
		if (dice >> 15 & 1) {
			assert_int_equal(0, sc_map_put(&map, keys[i], strlen(keys[i]), (void *)step));
			values[i] = step;
		} else {
			sc_map_drop(&map, keys[i], strlen(keys[i]));
			values[i] = 0;
		}
		for (i = 0; i < KEYS; i++) {
			assert_int_equal(values[i], (uintptr_t)sc_map_get(&map, keys[i], strlen(keys[i])));
			nr += values[i] != 0;
		}
		assert_int_equal(nr, map.nr);
	}
	sc_map_done(&map);
}

static void *no_memory(size_t bytes)
{
	(void)bytes;
	return NULL;
}

static void reserved_room_is_there(void **unused)
{
	struct sc_sys real = sc_sys;
	char keys[1000][8];

	(void)unused;
	for (int more = 1; more < 1000; more += 37) {
		struct sc_map map = {0};

		for (int i = 0; i < 1000; i += more) {
			assert_int_equal(0, sc_map_reserve(&map, (size_t)more));
			sc_sys.alloc = no_memory;
			for (int k = i; k < i + more && k < 1000; k++) {
				(void)snprintf(keys[k], sizeof(keys[k]), "%d", k);
				assert_int_equal(0, sc_map_put(&map, keys[k], strlen(keys[k]), keys[k]));
			}
			sc_sys = real;
		}
		assert_int_equal(1000, map.nr);
		sc_map_done(&map);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(puts_and_drops),
		cmocka_unit_test(reserved_room_is_there),
	};

	return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
