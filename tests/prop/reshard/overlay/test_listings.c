/* SPDX-License-Identifier: Apache-2.0 */
/* Listings of an overlay's folder that are read in parts (T8 of reshard/overlay/listing.h). */
#include "reshard/overlay/listing.h"
#include "tests/prop/reshard/overlay/overlay.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

static uint64_t state = 1;

static unsigned pick(unsigned below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(state >> 33) % below;
}

/* A reader lists a folder in parts, while names come and go; a commit and a restart come in between. */
static void listings(void **unused)
{
	enum { NAMES = 600 };
	static unsigned char seen[NAMES], there[NAMES], always[NAMES];
	struct rs_listing l = {0};
	struct bed b;
	struct sc_err err;
	char text[8];

	(void)unused;
	bed_make(&b);
	for (int round = 0; round < 30; round++) {
		uint64_t offset = 0;

		memset(seen, 0, sizeof(seen));
		memcpy(always, there, sizeof(always));
		for (;;) {
			size_t i;

			if (offset == 0 || rs_listing_is_old(b.overlay, &l))
				assert_int_equal(0, rs_listing_make(b.overlay, ROOT + 1, &l, &err));
			i = rs_listing_after(&l, offset);
			if (i == l.nr)
				break;
			for (size_t end = i + pick(60); i < l.nr && i <= end; i++) {
				seen[strtoul(l.at[i].name.at + 1, NULL, 10)]++;
				assert_true(l.at[i].offset >= RS_OFFSET_FIRST && l.at[i].offset >> 62 == 0);
				offset = l.at[i].offset;
			}
			for (int changes = (int)pick(60); changes > 0; changes--) {
				unsigned n = pick(NAMES);
				struct meta_inode_row what = {.mode = S_IFREG | 0644, .blob = 1};
				struct meta_bytes name = {text, 4};

				(void)snprintf(text, sizeof(text), "n%03u", n);
				if (there[n])
					assert_int_equal(0, rs_overlay_unlink(b.overlay, 1, ROOT + 1, name,
									      &err));
				else
					assert_int_equal(0, rs_overlay_make(b.overlay, 1, ROOT + 1, name,
									    &what, &err));
				there[n] = !there[n];
				always[n] = 0;
			}
			if (pick(8) == 0)
				bed_commit(&b);
			if (pick(8) == 0) {
				bed_stop(&b, pick(2));
				bed_start(&b);
				rs_listing_done(&l);
				assert_int_equal(0, rs_listing_make(b.overlay, ROOT + 1, &l, &err));
			}
		}
		for (unsigned n = 0; n < NAMES; n++)
			if (always[n] && seen[n] != 1)
				fail_msg("n%03u came %u times", n, seen[n]);
	}
	rs_listing_done(&l);
	bed_done(&b);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(listings)};

	if (argc > 1)
		state = strtoul(argv[1], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
