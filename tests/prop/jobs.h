/* SPDX-License-Identifier: Apache-2.0 */
/* Random jobs of the property tests: a layout with all kinds of rules, a state that fits it, topologies. */
#ifndef PROP_JOBS_H
#define PROP_JOBS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "meta/model/view.h"
#include "tests/prop/pick.h"

#define ONE_OF(...)                                                                                \
	({                                                                                         \
		static const char *const of_[] = {__VA_ARGS__};                                    \
		of_[pick(sizeof(of_) / sizeof(*of_))];                                             \
	})

/* q and k of a layer in one tensor, or not. */
static inline const char *fused(const char *number)
{
	static char text[200];

	(void)snprintf(text, sizeof(text), "l.%s.fused join=l.%s.q,l.%s.k order=listed over=0%s", number, number, number, ONE_OF("", " strip"));
	return pick(2) ? text : "";
}

static inline void random_layout(char *text, size_t bytes)
{
	static const char *const zeros[][2] = {{"", ""},
					       {"dp=0 chunk", "edp=0 chunk"},
					       {"flat dp=0 pad=1", "flat edp=0 pad=1"},
					       {"flat dp=0 pad=lcm(4)", "flat edp=0 pad=lcm(4)"}};
	unsigned z = pick(4);
	const char *zero = zeros[z][0];
	const char *row = *zero ? "" : ONE_OF("", "dp=0 chunk"); /* an axis cuts once */
	/* states that are joined: members that dp cuts are only put together, the others are cut by dp then */
	const char *joined = z == 2 || z == 3 ? ONE_OF("", "z.{K} join=!*.x.*,opt.{K}.*", "z.{K} join=!*.x.*,o*.{K}.* order=reverse align=4")
			     : z == 0 && !*row
				     ? ONE_OF("", "z.{K} join=!*.x.*,opt.{K}.* dp=0 pad=2", "z.{K} join=!*.x.*,opt.{K}.* dp=0 pad=2 strip",
					      "z.{K} join=!*.x.*,opt.{K}.* order=name align=3 dp=0 chunk",
					      "z.{B}.{K} join=!*.x.*,opt.{K}.* order=reverse align=4 bucket=150 alone=*.emb dp=0 pad=lcm(8)")
				     : "";
	const char *number = ONE_OF("{L}", "{G}"), *expert = ONE_OF("{E}", "{X}");

	(void)snprintf(text, bytes,
		       "mesh tp dp pp\n"
		       "mesh etp=tp ep edp=* pp\n"
		       "opt.{K}.{P} like={P} %s\n"
		       "opt.{K}.{P} like={P} %s\n" /* experts are cut by edp, which dense ones have not */
		       "emb stage=first tp=0 pad=%s size=37\n"
		       "l.%s.col tp=0 %s\n"
		       "l.%s.row tp=1 %s\n"
		       "l.%s.norm copy\n"
		       "l.%s.deep tp=1\n"
		       "l.%s.wide tp=2 pad=1 size=7\n"
		       "l.%s.x.%s.up etp=0 sections=1:1\n"
		       "l.%s.x.%s.down etp=1\n"
		       "head stage=last tp=0 pad=%s size=37 tied=emb\n"
		       "end stage=last copy\n"
		       "l.%s.q tp=0 %s\n"
		       "l.%s.k tp=0 upto=%s\n"
		       "l.%s.qk tp=0 sections=2:1 upto=-:%s\n"
		       "%s\n"
		       "%sstacked %s name=%sl.{G}.s tp=1 pad=%s size=8 %s\n"
		       "%s\n",
		       zero, zeros[z][1], ONE_OF("1", "4"), number, ONE_OF("", "sections=1:1", "sections=2:1:1"), number, row, number, number,
		       number, number, expert, number, expert, ONE_OF("1", "4"), number, row, number, ONE_OF("1", "2", "4"), number, ONE_OF("1", "2"),
		       fused(number), "", "stack={G}", "", ONE_OF("1", "3"), row, joined);
}

/* Some rows of padding are known behind tensors whose rules pad them: fewer than a topology has, or more. */
static inline void random_padding(struct meta_state *s, const char *key)
{
	const struct meta_tensor of = *meta_state_find(s, key);
	const size_t n = strlen(key);
	const int dim = strcmp(key + n - 4, "wide") == 0 ? 2 : strcmp(key + n - 2, ".s") == 0 ? 1 : strcmp(key + n - 3, "emb") == 0 ? 0 : -1;

	if (dim >= 0 && pick(3))
		assert_int_equal(0, meta_state_add_padding(s, &of, dim, 1 + pick(5)));
}

/* `scale`: makes the dimensions longer that no rule cuts. */
static inline void random_tensors(struct meta_state *s, enum meta_dtype dtype, unsigned scale)
{
	static const struct {
		const char *name;
		uint64_t a, b, c;
		char long_one;	/* which of them */
	} of[] = {{"l.col", 16, 5, 0, 'b'}, {"l.row", 6, 8, 0, 'a'}, {"l.norm", 5, 0, 0, 'a'},
		  {"l.q", 16, 3, 0, 'b'}, {"l.k", 8, 3, 0, 'b'}, {"l.qk", 12, 3, 0, 'b'}, {"l.s", 3, 8, 0, 'a'},
		  {"l.deep", 1, 8, 3, 'c'}, {"l.wide", 3, 4, 7, 'b'}, {"l.x.0.up", 8, 3, 0, 'b'},
		  {"l.x.1.up", 8, 3, 0, 'b'}, {"l.x.0.down", 3, 4, 0, 'a'}, {"l.x.1.down", 3, 4, 0, 'a'},
		  {"emb", 37, 3, 0, 'b'}, {"end", 7, 0, 0, 'a'}};
	const bool padded = !pick(3);
	char key[100];

	for (int opt = 0; opt < 2; opt++)
		for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++)
			for (int g = 0; g < (*of[i].name == 'l' ? 4 : 1); g++) {
				struct meta_shape shape = {.dim = {of[i].a, of[i].b, of[i].c}};
				const char *prefix = opt ? "o.bin:opt.m." : "m.bin:";

				while (shape.dim[shape.nr])
					shape.nr++;
				shape.dim[of[i].long_one - 'a'] *= scale;
				if (*of[i].name == 'l')
					(void)snprintf(key, sizeof(key), "%sl.%d.%s", prefix, g, of[i].name + 2);
				else
					(void)snprintf(key, sizeof(key), "%s%s", prefix, of[i].name);
				assert_int_equal(0, meta_state_add(s, key, strlen(key), dtype, &shape));
				if (padded)
					random_padding(s, key);
			}
}

static inline void random_topology(char *text, size_t bytes)
{
	unsigned tp = 1u << pick(3), dp = 1 + pick(4), pp = 1u << pick(3), ep = 1 + pick(2);

	(void)snprintf(text, bytes, "tp=%u dp=%u pp=%u ep=%u%s", tp, dp, pp, ep, pick(4) ? "" : " order=tp-pp-dp");
}

#endif
