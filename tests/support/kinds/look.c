/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/kinds/look.h"

#include <assert.h>

struct rs_rounds_options rounds_options = {.window_bytes = 100000, .boxes_max = 100, .run_bytes = 256 << 10, .peers = 1};
void (*rounds_look)(struct rs_rounds *r, const struct rs_round *round, const struct rs_extent *rest, uint32_t nr_rest);

static uint32_t read_in_turns(void *arg, const struct rs_place *place)
{
	(void)arg;
	return (uint32_t)place->id % rounds_options.peers;
}

void look_at_rounds(const struct rs_target *targets, size_t nr)
{
	struct rs_rounds_options options = rounds_options;
	const struct rs_image *images[256];
	uint32_t writers[256];
	const struct rs_round *round;
	const struct rs_extent *rest;
	struct rs_rounds *r = NULL;
	struct sc_err err;
	uint32_t nr_rest;
	int rc;

	for (size_t i = 0; i < nr; i++) {
		images[i] = targets[i].image;
		writers[i] = (uint32_t)i % options.peers;
	}
	if (!options.reader) {
		options.writers = writers;
		options.reader = read_in_turns;
	}
	rc = rs_rounds_new(images, (uint32_t)nr, &options, &r, &err);
	while (rc == 0 && (rc = rs_rounds_next(r, &round, &err)) == 0 && round)
		rounds_look(r, round, NULL, 0);
	if (rc == 0)
		rc = rs_rounds_rest(r, &rest, &nr_rest, &err);
	assert(rc == 0);
	rounds_look(r, NULL, rest, nr_rest);
	rs_rounds_free(r);
}
