/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes say to each other.  Frames are formatted and parsed back; with bytes changed they are refused, or say the
 * same when formatted again.  Pulls pack what a slow loop packs, and fit exactly if all their bytes do.  Sessions open
 * for who knows the secret, and take each frame once, in order, unchanged.
 *
 *     test_frames [ROUNDS [SEED]]
 */
#include "reshard/cluster/net/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/prop/pick.h"

#define FRAME_MAX (RS_FRAME_HEADER + RS_FRAME_BODY_MAX)

static unsigned long rounds = 20000, seed = 1;
static void fill(void *to, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		((uint8_t *)to)[i] = (uint8_t)pick(256);
}

static void text(char *to, size_t min, size_t max)
{
	size_t n = min + (pick(10) ? pick(12) : pick((unsigned)(max - min + 1)));

	for (size_t i = 0; i < n; i++)
		to[i] = (char)(1 + pick(255));
	to[n] = 0;
}

static const uint8_t kinds[] = {RS_FRAME_HELLO, RS_FRAME_PREPARED, RS_FRAME_REFUSED, RS_FRAME_HIDDEN, RS_FRAME_PULL,
				RS_FRAME_DATA,  RS_FRAME_OBJECT,   RS_FRAME_CANCEL,  RS_FRAME_ACK};

static void random_pull(struct rs_pull *p)
{
	p->job = draw();
	fill(p->set, sizeof(p->set));
	p->rank = (uint32_t)draw();
	text(p->file, 1, RS_FRAME_FILE_MAX);
	text(p->tensor, 0, RS_FRAME_TENSOR_MAX);
	p->from = draw();
	p->run = draw();
	p->nr = (uint8_t)pick(RS_FRAME_DIMS_MAX + 1);
	for (unsigned i = 0; i < p->nr; i++) {
		p->extent[i] = draw();
		p->stride[i] = draw();
	}
	p->at = draw();
	p->bytes = 1 + pick(RS_FRAME_PAYLOAD_MAX);
	p->deadline_ms = (uint32_t)draw();
}

static void random_frame(struct rs_net_frame *f)
{
	memset(f, 0, sizeof(*f));
	f->kind = kinds[pick(sizeof(kinds))];
	f->protocol = (uint8_t)pick(256);
	f->id = (uint32_t)draw();
	f->epoch = draw();
	switch (f->kind) {
	case RS_FRAME_HELLO:
		fill(&f->hello, sizeof(f->hello));
		f->hello.step = (uint8_t)(1 + pick(3));
		f->hello.node = pick(65536);
		f->hello.protocol_max = (uint8_t)(f->hello.protocol_min | f->hello.protocol_max);
		break;
	case RS_FRAME_PREPARED:
	case RS_FRAME_REFUSED:
		f->message.token = draw();
		f->message.code = f->kind == RS_FRAME_REFUSED ? 1 + pick(200) : 0;
		if (f->kind == RS_FRAME_REFUSED)
			text(f->message.text, 0, RS_FRAME_TEXT_MAX);
		break;
	case RS_FRAME_HIDDEN:
		f->message.nr = draw();
		break;
	case RS_FRAME_PULL:
		random_pull(&f->pull);
		break;
	case RS_FRAME_DATA:
		f->payload_bytes = pick(RS_FRAME_PAYLOAD_MAX + 1);
		/* fall through */
	case RS_FRAME_ACK:
		f->data = (struct rs_data){(uint8_t)pick(RS_CODES_NR), (uint32_t)draw(), draw()};
		break;
	case RS_FRAME_OBJECT:
		fill(f->object, sizeof(f->object));
		break;
	default:
		f->cancelled = (uint32_t)draw();
	}
}

static int parse(const uint8_t *bytes, size_t nr, struct rs_net_frame *f)
{
	struct sc_err err = {0};
	int rc = rs_frame_header(bytes, f, &err);

	if (rc == 0 && nr - RS_FRAME_HEADER != f->body_bytes)
		return SC_E_FORMAT;
	if (rc == 0)
		rc = rs_frame_body(f, bytes + RS_FRAME_HEADER, &err);
	assert_true(rc == 0 || (rc == SC_E_FORMAT && *err.msg));
	return rc;
}

static void frames_format_and_parse(void **unused)
{
	static uint8_t bytes[FRAME_MAX], again[FRAME_MAX];
	static struct rs_net_frame f, got;
	struct sc_err err;

	(void)unused;
	for (unsigned long i = 0; i < rounds; i++) {
		int n, m;

		random_frame(&f);
		n = rs_frame_format(&f, bytes, &err);
		if (n < 0)
			fail_msg("seed %lu: %s", seed, err.msg);
		if (parse(bytes, (size_t)n, &got) < 0)
			fail_msg("seed %lu: a frame of kind %u is refused", seed, f.kind);
		assert_int_equal(n, rs_frame_format(&got, again, &err));
		assert_memory_equal(bytes, again, (size_t)n);
		for (unsigned k = 1 + pick(3); k; k--)
			bytes[pick((unsigned)n)] ^= (uint8_t)(1 + pick(255));
		if (parse(bytes, (size_t)n, &got) == 0) {
			m = rs_frame_format(&got, again, &err);
			assert_int_equal(n, m);
			memset(bytes + 24, 0, 8); /* the mac */
			assert_memory_equal(bytes, again, (size_t)n);
		}
	}
}

static void what_is_too_long_is_refused_before_it_is_taken(void **unused)
{
	static const uint32_t body[] = {RS_FRAME_BODY_MAX + 1, UINT32_MAX},
			      payload[] = {RS_FRAME_PAYLOAD_MAX + 1, UINT32_MAX};
	static struct rs_net_frame f;
	static uint8_t bytes[FRAME_MAX];
	struct sc_err err;

	(void)unused;
	f.kind = RS_FRAME_CANCEL;
	assert_true(rs_frame_format(&f, bytes, &err) > 0);
	for (unsigned i = 0; i < 2; i++) {
		uint8_t bad[RS_FRAME_HEADER];

		memcpy(bad, bytes, sizeof(bad));
		memcpy(bad + 4, &body[i], 4);
		assert_int_equal(SC_E_FORMAT, rs_frame_header(bad, &f, &err));
		memcpy(bad, bytes, sizeof(bad));
		memcpy(bad + 8, &payload[i], 4);
		assert_int_equal(SC_E_FORMAT, rs_frame_header(bad, &f, &err));
	}
	f = (struct rs_net_frame){.kind = RS_FRAME_PULL,
				  .pull = {.nr = RS_FRAME_DIMS_MAX + 1, .bytes = 1, .file = "a"}};
	assert_int_equal(SC_E_LIMIT, rs_frame_format(&f, bytes, &err));
}

/* --- pulls --- */

#define TENSOR 4096

/* All bytes that the region packs, by loops over its indexes; false: one of them is not in the tensor. */
static bool pack_slowly(const struct rs_pull *p, const uint8_t *tensor, uint8_t *to, uint64_t *ret_bytes)
{
	uint64_t index[RS_FRAME_DIMS_MAX] = {0}, n = 0;

	for (;;) {
		uint64_t at = p->from;

		for (unsigned i = 0; i < p->nr; i++)
			at += index[i] * p->stride[i];
		for (uint64_t k = 0; k < p->run; k++, n++) {
			if (at + k >= TENSOR)
				return false;
			to[n] = tensor[at + k];
		}
		for (unsigned i = p->nr;; i--) {
			if (i == 0) {
				*ret_bytes = n;
				return true;
			}
			if (++index[i - 1] < p->extent[i - 1])
				break;
			index[i - 1] = 0;
		}
	}
}

static void pulls_pack_what_a_slow_loop_packs(void **unused)
{
	static uint8_t tensor[TENSOR], all[1 << 16], got[1 << 16];
	unsigned fits = 0;

	(void)unused;
	fill(tensor, sizeof(tensor));
	for (unsigned long i = 0; i < rounds; i++) {
		struct rs_pull p = {.from = pick(200), .run = 1 + pick(16), .nr = (uint8_t)pick(4), .file = "a"};
		uint64_t packed = 0, at;
		bool inside;

		for (unsigned k = 0; k < p.nr; k++) {
			p.extent[k] = 1 + pick(5);
			p.stride[k] = pick(k == 0 ? 1500 : 200);
		}
		p.at = pick(100);
		p.bytes = 1 + pick(200);
		inside = pack_slowly(&p, tensor, all, &packed) && p.at + p.bytes <= packed;
		if (rs_pull_fits(&p, TENSOR) != inside)
			fail_msg("seed %lu round %lu: fits: %d, in truth: %d", seed, i, !inside, inside);
		if (!inside)
			continue;
		fits++;
		rs_pull_gather(&p, tensor, got);
		assert_memory_equal(all + p.at, got, p.bytes);
		if (rs_pull_is_run(&p, &at))
			assert_memory_equal(tensor + at, got, p.bytes);
	}
	assert_true(fits > rounds / 10);
}

/* The bytes of a file are the same for a program that does not look for the size of the whole. */
static void the_size_of_the_whole_changes_no_bytes(void **unused)
{
	static uint8_t file[TENSOR], with[TENSOR], without[TENSOR], bytes[RS_FRAME_HEADER + RS_FRAME_BODY_MAX];

	(void)unused;
	fill(file, sizeof(file));
	for (unsigned long i = 0; i < rounds; i++) {
		struct rs_net_frame f = {.protocol = 1, .kind = RS_FRAME_PULL, .pull.file = "7"}, got = {0};
		const uint64_t from = pick(TENSOR);
		struct rs_pull old = {.file = "7", .from = from, .run = 1 + pick((unsigned)(TENSOR - from))};
		uint64_t at = 0, old_at = 1;
		struct sc_err err;

		old.bytes = (uint32_t)old.run;
		rs_pull_of_file(&f.pull, old.from, old.bytes, TENSOR);
		assert_true(rs_frame_format(&f, bytes, &err) > 0);
		assert_int_equal(0, rs_frame_header(bytes, &got, &err));
		assert_int_equal(0, rs_frame_body(&got, bytes + RS_FRAME_HEADER, &err));
		assert_int_equal(TENSOR, rs_pull_whole(&got.pull));
		assert_int_equal(0, rs_pull_whole(&old));
		assert_true(rs_pull_fits(&got.pull, TENSOR) && rs_pull_fits(&old, TENSOR));
		assert_true(rs_pull_is_run(&got.pull, &at) && rs_pull_is_run(&old, &old_at) && at == old_at);
		assert_true(got.pull.from + got.pull.at == old.from && got.pull.bytes == old.bytes);
		rs_pull_gather(&got.pull, file, with);
		rs_pull_gather(&old, file, without);
		assert_memory_equal(without, with, old.bytes);
	}
}

static void sums_that_overflow_do_not_fit(void **unused)
{
	struct rs_pull p = {.run = 1, .nr = 2, .extent = {1ull << 32, 1ull << 32}, .bytes = 1};

	(void)unused;
	assert_false(rs_pull_fits(&p, UINT64_MAX)); /* packed: 2^64 */
	p = (struct rs_pull){.run = 1, .nr = 1, .extent = {3}, .stride = {1ull << 63}, .bytes = 1};
	assert_false(rs_pull_fits(&p, UINT64_MAX));
	p = (struct rs_pull){.from = UINT64_MAX, .run = 1, .bytes = 1};
	assert_false(rs_pull_fits(&p, UINT64_MAX));
	p = (struct rs_pull){.run = 8, .at = UINT64_MAX, .bytes = 2};
	assert_false(rs_pull_fits(&p, UINT64_MAX));
	p = (struct rs_pull){.run = 0, .bytes = 1};
	assert_false(rs_pull_fits(&p, UINT64_MAX));
}

/* Frames may say so, and a daemon asks this first of what another node asks for. */
static void what_does_not_fit_is_no_run(void **unused)
{
	static const struct rs_pull pulls[] = {
		{.run = 0, .bytes = 1},
		{.run = 4, .bytes = 1, .nr = 1, .extent = {0}},
		{.run = 4, .bytes = 5},
		{.run = 8, .at = UINT64_MAX, .bytes = 2},
		{.run = 8, .from = UINT64_MAX, .bytes = 1},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(pulls) / sizeof(*pulls); i++)
		assert_false(rs_pull_is_run(&pulls[i], &(uint64_t){0}));
}

/* --- sessions --- */

static struct rs_session a, b;

static void begin(const uint8_t (*of_a)[RS_SECRET_BYTES], unsigned nr_a, const uint8_t (*of_b)[RS_SECRET_BYTES],
		  unsigned nr_b)
{
	struct rs_node_id x = {.node = 1, .epoch = 11, .boot = 111, .protocol_min = 1, .protocol_max = 1};
	struct rs_node_id y = {.node = 2, .epoch = 22, .boot = 222, .protocol_min = 1, .protocol_max = 2};
	uint8_t nonce[2][32];

	fill(nonce, sizeof(nonce));
	rs_session_begin(&a, true, &x, of_a, nr_a, nonce[0]);
	rs_session_begin(&b, false, &y, of_b, nr_b, nonce[1]);
}

/* Hands hellos over, with a byte of hello `bent` changed; 0: both are open. */
static int shake(unsigned bent)
{
	struct rs_session *from = &a, *to = &b;
	static uint8_t bytes[FRAME_MAX];
	static struct rs_net_frame f, got;
	struct sc_err err;
	int n, rc;

	for (unsigned step = 1; step <= 3; step++) {
		assert_int_equal(1, rs_session_hello(from, &f));
		n = rs_frame_format(&f, bytes, &err);
		assert_true(n > 0);
		if (step == bent)
			bytes[RS_FRAME_HEADER + 1 + pick((unsigned)n - RS_FRAME_HEADER - 1)] ^= (uint8_t)(1 << pick(8));
		if (parse(bytes, (size_t)n, &got) < 0)
			return SC_E_FORMAT;
		rc = rs_session_take_hello(to, &got, &err);
		if (rc < 0)
			return rc;
		to = from;
		from = from == &a ? &b : &a;
	}
	assert_true(a.open && b.open);
	assert_int_equal(0, rs_session_hello(from, &f));
	return 0;
}

static void only_who_knows_the_secret_gets_in(void **unused)
{
	static uint8_t secrets[3][RS_SECRET_BYTES];

	(void)unused;
	fill(secrets, sizeof(secrets));
	begin(&secrets[0], 1, &secrets[0], 1);
	assert_int_equal(0, shake(0));
	assert_int_equal(22, a.peer.epoch);
	assert_int_equal(1, b.peer.node);
	assert_memory_equal(a.key[0], b.key[1], 32);
	assert_memory_equal(a.key[1], b.key[0], 32);
	assert_int_not_equal(0, memcmp(a.key[0], a.key[1], 32));
	begin(&secrets[0], 1, &secrets[1], 1);
	assert_int_equal(SC_E_PERMISSION, shake(0));
	begin(&secrets[0], 2, &secrets[0], 1); /* secrets change */
	assert_int_equal(0, shake(0));
	begin(&secrets[0], 2, &secrets[1], 1);
	assert_int_equal(0, shake(0));
	begin(&secrets[2], 1, &secrets[0], 2);
	assert_int_equal(SC_E_PERMISSION, shake(0));
	for (unsigned i = 0; i < 3000; i++) {
		begin(&secrets[0], 1, &secrets[0], 1);
		assert_int_not_equal(0, shake(1 + i % 3));
	}
	begin(&secrets[0], 1, &secrets[0], 1);
	b.me.cluster[3] = 1;
	assert_int_equal(SC_E_PERMISSION, shake(0));
	begin(&secrets[0], 1, &secrets[0], 1);
	b.me.protocol_min = 2;
	assert_int_equal(SC_E_UNSUPPORTED, shake(0));
}

static void both_speak_the_newest_that_both_know(void **unused)
{
	static uint8_t secret[1][RS_SECRET_BYTES], bytes[FRAME_MAX];
	struct sc_err err;

	(void)unused;
	for (unsigned i = 0; i < 3000; i++) {
		const unsigned low[2] = {1 + pick(4), 1 + pick(4)}, high[2] = {low[0] + pick(4), low[1] + pick(4)};
		const unsigned newest = high[0] < high[1] ? high[0] : high[1];
		const bool can = low[0] <= newest && low[1] <= newest;

		begin(secret, 1, secret, 1);
		a.me.protocol_min = (uint8_t)low[0];
		a.me.protocol_max = (uint8_t)high[0];
		b.me.protocol_min = (uint8_t)low[1];
		b.me.protocol_max = (uint8_t)high[1];
		assert_int_equal(can ? 0 : SC_E_UNSUPPORTED, shake(0));
		if (!can)
			continue;
		assert_int_equal(newest, rs_session_protocol(&a));
		assert_int_equal(newest, rs_session_protocol(&b));
		rs_session_seal(&a, bytes, RS_FRAME_HEADER);
		assert_int_equal(newest, bytes[2]);
		assert_int_equal(0, rs_session_check(&b, bytes, RS_FRAME_HEADER, &err));
		b.me.protocol_max = b.peer.protocol_max = (uint8_t)(newest + 1); /* and no other */
		rs_session_seal(&a, bytes, RS_FRAME_HEADER);
		assert_int_equal(SC_E_PERMISSION, rs_session_check(&b, bytes, RS_FRAME_HEADER, &err));
	}
}

static void a_hello_sent_back_opens_nothing(void **unused)
{
	static uint8_t secret[1][RS_SECRET_BYTES];
	static struct rs_net_frame f, g;
	struct sc_err err;

	(void)unused;
	begin(secret, 1, secret, 1);
	assert_int_equal(1, rs_session_hello(&a, &f));
	assert_int_equal(SC_E_PERMISSION, rs_session_take_hello(&a, &f, &err));
	assert_int_equal(0, rs_session_take_hello(&b, &f, &err));
	assert_int_equal(1, rs_session_hello(&b, &g));
	g.hello.step = 3; /* the asked one's own proof */
	assert_int_equal(SC_E_PERMISSION, rs_session_take_hello(&b, &g, &err));
	assert_false(b.open);
}

static void each_frame_is_taken_once_in_order_unchanged(void **unused)
{
	static uint8_t secret[1][RS_SECRET_BYTES], first[FRAME_MAX], second[FRAME_MAX];
	static struct rs_net_frame f;
	struct rs_session before;
	struct sc_err err;

	(void)unused;
	for (unsigned i = 0; i < 2000; i++) {
		int n, m;

		begin(secret, 1, secret, 1);
		assert_int_equal(0, shake(0));
		random_frame(&f);
		n = rs_frame_format(&f, first, &err);
		rs_session_seal(&a, first, (size_t)n);
		random_frame(&f);
		m = rs_frame_format(&f, second, &err);
		rs_session_seal(&a, second, (size_t)m);
		before = b;
		assert_int_equal(SC_E_PERMISSION, rs_session_check(&b, second, (size_t)m, &err)); /* not the next */
		b = before;
		assert_int_equal(SC_E_PERMISSION, rs_session_check(&a, first, (size_t)n, &err)); /* sent back */
		first[pick((unsigned)n)] ^= (uint8_t)(1 << pick(8));
		assert_int_equal(SC_E_PERMISSION, rs_session_check(&b, first, (size_t)n, &err));
		b = before;
		b.count[1] = 1;
		assert_int_equal(0, rs_session_check(&b, second, (size_t)m, &err));
		assert_int_equal(SC_E_PERMISSION, rs_session_check(&b, second, (size_t)m, &err)); /* again */
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(frames_format_and_parse),
	    cmocka_unit_test(what_is_too_long_is_refused_before_it_is_taken),
	    cmocka_unit_test(pulls_pack_what_a_slow_loop_packs),
	    cmocka_unit_test(the_size_of_the_whole_changes_no_bytes),
	    cmocka_unit_test(sums_that_overflow_do_not_fit),
	    cmocka_unit_test(what_does_not_fit_is_no_run),
	    cmocka_unit_test(both_speak_the_newest_that_both_know),
	    cmocka_unit_test(only_who_knows_the_secret_gets_in),
	    cmocka_unit_test(a_hello_sent_back_opens_nothing),
	    cmocka_unit_test(each_frame_is_taken_once_in_order_unchanged),
	};

	if (argc > 1)
		rounds = strtoul(argv[1], NULL, 0);
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 0);
	random_state = seed;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
