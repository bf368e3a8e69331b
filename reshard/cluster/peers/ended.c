/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps which jobs were removed for good, when nothing else of them is in etcd any more.
 *
 * A job's id in the cluster has 28 bits that are given once, one after the other (key `jobs`), so that all that were
 * removed are few ranges: as many as there are jobs beside them, at most.  Key `all/ended` has these, a line "A" or
 * "A-B" each.  The 32 bits below are random: what an older copy of etcd's data gives anew is another job.
 *
 * 1. A range is put in the transaction that removes a job's last keys, which names what it removes by evidence: the key
 *    `removed`, or the range itself.
 * 2. A node has a version of a job only after its own key `bound` says that it may (rs_bound_know()).  So an etcd that
 *    says that a job has ended, and not that this node may have had it, has another history.
 */
#include "reshard/cluster/peers/peers_i.h"

#include <inttypes.h>
#include <string.h>

#include "meta/base/text.h"

#define NUMBERED (UINT64_C(1) << 60)	/* jobs of programs before have random numbers below that */

uint64_t rs_job_number(uint64_t id)
{
	return id & NUMBERED ? id >> 32 & RS_JOB_NUMBERS_MAX : 0;
}

uint64_t rs_job_with_number(uint64_t number, uint64_t random)
{
	return NUMBERED | number << 32 | (random & UINT32_MAX);
}

/* Reads a number up to the character `end`. */
static bool read_number(const char **p, const char *end, uint64_t *ret)
{
	const size_t n = strcspn(*p, end);
	uint32_t number = 0;
	const bool is = sc_number_parse(*p, n, &number) && number;

	*p += n;
	*ret = number;
	return is;
}

/* Reads a line, and goes on to the next one.  False: there is none any more, or *at is one that is wrong. */
static bool read_range(const char **at, uint64_t *ret_first, uint64_t *ret_last)
{
	const char *p = *at;
	bool is = *p && read_number(&p, "-\n", ret_first);

	*ret_last = *ret_first;
	if (is && *p == '-') {
		p++;
		is = read_number(&p, "\n", ret_last) && *ret_last > *ret_first;
	}
	if (!is || *p != '\n')
		return false;
	*at = p + 1;
	return true;
}

bool rs_ended_has(const char *text, uint64_t number)
{
	uint64_t first, last;

	for (const char *p = text ? text : ""; read_range(&p, &first, &last);)
		if (number >= first && number <= last)
			return true;
	return false;
}

static void print_range(struct sc_buf *to, uint64_t first, uint64_t last)
{
	if (first)
		sc_buf_printf(to, first < last ? "%" PRIu64 "-%" PRIu64 "\n" : "%" PRIu64 "\n", first, last);
}

int rs_ended_add(const char *text, uint64_t number, struct sc_buf *to, struct sc_err *err)
{
	uint64_t first, last, from = 0, until = 0;	/* what is to be printed; 0: nothing */
	const char *p = text ? text : "";
	bool more = read_range(&p, &first, &last);

	for (bool added = false; more || !added;) {
		uint64_t a = number, b = number;

		if (more && (added || first <= number)) {
			a = first;
			b = last;
			more = read_range(&p, &first, &last);
		} else {
			added = true;
		}
		if (from && a <= until + 1) {
			until = sc_max_u64(until, b);
			continue;
		}
		print_range(to, from, until);
		from = a;
		until = b;
	}
	print_range(to, from, until);
	if (*p)
		return sc_fail(err, SC_E_FORMAT, "etcd's key 'all/ended' cannot be read");
	return to->failed ? sc_nomem(err) : 0;
}

bool rs_ended_covers(const struct meta_answer *answer, uint64_t id)
{
	const uint64_t number = rs_job_number(id);

	for (uint32_t i = 0; number && i < answer->nr; i++)
		if (answer->records[i].key.kind == META_KEY_ENDED && answer->records[i].present)
			return rs_ended_has(answer->records[i].value.rest, number);
	return false;
}
