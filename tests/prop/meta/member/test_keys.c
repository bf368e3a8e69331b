/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of a cluster: what is printed is parsed, and printed again the same; text with bytes changed is
 * refused with a sentence, or is text that prints as it was read; limits are refused, not cut.
 *
 *     test_keys [ROUNDS [SEED]]
 */
#include "meta/member/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "tests/prop/pick.h"

static unsigned long rounds = 20000, seed = 1;
static uint64_t number(void)
{
	return pick(4) ? draw() % 1000 : (draw() << 32 ^ draw()) >> pick(64);
}

static struct meta_hash hash(void)
{
	struct meta_hash h;

	for (size_t i = 0; i < sizeof(h.at); i++)
		h.at[i] = (uint8_t)pick(256);
	return h;
}

static const char *text(struct sc_arena *a, bool of_key)
{
	size_t n = 1 + pick(12);
	char *t = sc_arena_alloc(a, n + 1);

	for (size_t i = 0; i < n; i++) {
		t[i] = of_key ? "ab \n.0\x80\xff"[pick(8)] : "ab \\\n\t\x01\xff"[pick(8)];
		if (t[i] == 0)
			t[i] = 'x';
	}
	return t;
}

static struct meta_key random_key(struct sc_arena *a)
{
	struct meta_key k = {.kind = (enum meta_key_kind)pick(META_KEY_KINDS_NR)};

	k.job = number();
	k.nr = number();
	k.node = pick(META_NODES_MAX);
	k.hash = hash();
	k.text = text(a, true);
	return k;
}

static void fill_lists(struct sc_arena *a, struct meta_value *v)
{
	uint32_t nr = pick(6);
	struct meta_member *members = sc_arena_array(a, 8, sizeof(*members));
	struct meta_set_name *sets = sc_arena_array(a, 8, sizeof(*sets));
	struct meta_hash *uses = sc_arena_array(a, 8, sizeof(*uses));
	const char **addresses = sc_arena_array(a, 8, sizeof(*addresses));

	for (uint32_t i = 0; i < nr; i++) {
		members[i] = (struct meta_member){i * 100 + pick(100), number()};
		sets[i] = (struct meta_set_name){hash(), number(), text(a, false)};
		uses[i] = hash();
		addresses[i] = text(a, false);
	}
	switch (v->kind) {
	case META_KEY_MEMBERS:
		v->members = (struct meta_members_value){nr, members};
		break;
	case META_KEY_STORE:
		v->store = (struct meta_store_value){nr, sets, pick(2)};
		break;
	case META_KEY_LOW:
		v->low = (struct meta_low_value){number(), nr, uses};
		break;
	default:
		v->node.addresses = (struct meta_text_list){nr > 4 ? 4 : nr, addresses};
	}
}

static struct meta_value random_value(struct sc_arena *a)
{
	struct meta_value v = {.kind = (enum meta_key_kind)pick(META_KEY_KINDS_NR)};
	uint64_t n[7];

	for (size_t i = 0; i < 7; i++)
		n[i] = number();
	switch (v.kind) {
	case META_KEY_CLUSTER:
		v.cluster = (struct meta_cluster_value){
		    {n[0], n[1]}, n[2], n[3], n[4], n[5], n[6], pick(2) ? text(a, false) : NULL, pick(3)};
		break;
	case META_KEY_BOUND:
		v.bound = (struct meta_bound_value){{n[0], n[1]}, n[2], n[3], pick(2) ? n[4] : 0};
		break;
	case META_KEY_NODE:
		v.node = (struct meta_node_value){text(a, false), text(a, false), pick(2) ? text(a, false) : NULL,
						  n[0],           n[1],           n[2],
						  n[3],           n[4],           pick(2),
						  pick(2),        {0, NULL}};
		fill_lists(a, &v);
		break;
	case META_KEY_MEMBERS:
	case META_KEY_STORE:
	case META_KEY_LOW:
		fill_lists(a, &v);
		break;
	case META_KEY_KEEPER:
		v.keeper = (struct meta_keeper_value){n[0], n[1]};
		break;
	case META_KEY_FIRST:
		v.first = (struct meta_first_value){hash(), pick(2) ? text(a, false) : NULL};
		break;
	case META_KEY_HEAD:
		v.head = (struct meta_head_value){n[0], n[1], n[2], hash(), n[3], n[4]};
		break;
	case META_KEY_PROPOSAL:
		v.proposal =
		    (struct meta_proposal_value){n[0], n[1], n[2], n[3], n[4], (enum meta_command_kind)pick(6), hash()};
		break;
	case META_KEY_VERSION:
		v.version = (struct meta_version_value){n[0],   n[1],   (enum meta_command_kind)pick(6), text(a, false),
							hash(), hash(), pick(2) ? text(a, false) : NULL};
		break;
	case META_KEY_READY:
		v.ready = (struct meta_ready_value){n[0], n[1], n[2], hash()};
		break;
	case META_KEY_COPIED:
		v.copied = (struct meta_copied_value){n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[0]};
		break;
	case META_KEY_SHOWN:
	case META_KEY_REMOVED:
	case META_KEY_JOBS:
	case META_KEY_SWEEP:
	case META_KEY_TAG:
	case META_KEY_NAME:
	case META_KEY_NUMBER:
	case META_KEY_NUMBERS:
		v.number = (struct meta_number_value){n[0]};
		break;
	default:
		v.rest = v.kind == META_KEY_TICK ? "" : text(a, false);
		return v;
	}
	v.rest = pick(3) ? NULL : "later 7\nthan this program\n";
	return v;
}

/* Prints; fails the test where the value is within its limits. */
static void print(const struct meta_value *v, struct sc_buf *buf)
{
	struct sc_err err;

	buf->bytes = 0;
	if (meta_value_print(v, buf, &err) < 0)
		fail_msg("seed %lu: %s", seed, err.msg);
}

static void same_again(enum meta_key_kind kind, const struct sc_buf *buf, bool is_ours)
{
	struct sc_arena a = {0};
	struct sc_buf again = {0}, third = {0};
	struct meta_value v, w;
	struct sc_err err;

	if (meta_value_parse(kind, buf->text ? buf->text : "", buf->bytes, &a, &v, &err) < 0) {
		if (is_ours)
			fail_msg("seed %lu: kind %d: %s: what was printed is refused:\n%s", seed, kind, err.msg,
				 buf->text);
		assert_true(*err.msg && err.errnum > 0);
	} else if (meta_value_print(&v, &again, &err) == 0) {
		if (is_ours && again.bytes &&
		    (again.bytes != buf->bytes || memcmp(again.text, buf->text, again.bytes) != 0))
			fail_msg("seed %lu: kind %d: printed again it is another:\n%s\n%s", seed, kind, buf->text,
				 again.text);
		/* lines in another order are sorted, once */
		assert_int_equal(0, meta_value_parse(kind, again.text ? again.text : "", again.bytes, &a, &w, &err));
		assert_int_equal(0, meta_value_print(&w, &third, &err));
		assert_int_equal(again.bytes, third.bytes);
		assert_true(again.bytes == 0 || memcmp(again.text, third.text, again.bytes) == 0);
	}
	sc_buf_done(&again);
	sc_buf_done(&third);
	sc_arena_done(&a);
}

static void values_print_and_parse(void **unused)
{
	struct sc_buf buf = {0};

	(void)unused;
	for (unsigned long i = 0; i < rounds; i++) {
		struct sc_arena a = {0};
		struct meta_value v = random_value(&a);

		print(&v, &buf);
		same_again(v.kind, &buf, true);
		for (unsigned n = pick(4); n && buf.bytes; n--) {
			size_t at = pick((unsigned)buf.bytes);

			if (pick(3) == 0)
				memmove(buf.text + at, buf.text + at + 1, --buf.bytes - at);
			else
				buf.text[at] = pick(2) ? "0\n :m9a\\"[pick(8)] : (char)pick(256);
		}
		same_again(v.kind, &buf, false);
		sc_arena_done(&a);
	}
	sc_buf_done(&buf);
}

static void keys_print_and_parse(void **unused)
{
	struct sc_buf buf = {0}, again = {0};
	struct sc_err err;

	(void)unused;
	for (unsigned long i = 0; i < rounds; i++) {
		struct sc_arena a = {0};
		struct meta_key k = random_key(&a), got;

		buf.bytes = 0;
		assert_int_equal(0, meta_key_print("train", &k, &buf, &err));
		assert_true(buf.bytes <= META_KEY_BYTES_MAX);
		if (meta_key_parse("train", buf.text, buf.bytes, &a, &got, &err) < 0)
			fail_msg("seed %lu: %s: '%s'", seed, err.msg, buf.text);
		assert_int_equal(k.kind, got.kind);
		assert_int_not_equal(0, meta_key_parse("trai", buf.text, buf.bytes, &a, &got, &err));
		buf.text[pick((unsigned)buf.bytes)] = pick(2) ? "/0a%"[pick(4)] : (char)pick(256);
		if (meta_key_parse("train", buf.text, buf.bytes, &a, &got, &err) == 0) {
			again.bytes = 0;
			assert_int_equal(0, meta_key_print("train", &got, &again, &err));
			assert_int_equal(again.bytes, buf.bytes);
			assert_memory_equal(again.text, buf.text, buf.bytes);
		}
		sc_arena_done(&a);
	}
	sc_buf_done(&buf);
	sc_buf_done(&again);
}

static void limits_are_refused(void **unused)
{
	static struct meta_member members[META_MEMBERS_MAX + 1];
	struct meta_value v = {.kind = META_KEY_MEMBERS, .members = {META_MEMBERS_MAX, members}}, got;
	struct meta_key key = {.kind = META_KEY_TAG, .text = "a/b"};
	struct sc_buf buf = {0};
	struct sc_arena a = {0};
	struct sc_err err;

	(void)unused;
	for (uint32_t i = 0; i <= META_MEMBERS_MAX; i++)
		members[i] = (struct meta_member){i, UINT64_C(1) << 62};
	print(&v, &buf);
	assert_int_equal(0, meta_value_parse(META_KEY_MEMBERS, buf.text, buf.bytes, &a, &got, &err));
	assert_int_equal(META_MEMBERS_MAX, got.members.nr);
	v.members.nr++;
	assert_int_equal(SC_E_LIMIT, meta_value_print(&v, &buf, &err));
	buf.bytes = 0;
	sc_buf_printf(&buf, "m 2:1\nm 1:1\n");
	assert_int_equal(SC_E_FORMAT, meta_value_parse(META_KEY_MEMBERS, buf.text, buf.bytes, &a, &got, &err));
	assert_int_equal(SC_E_FORMAT, meta_value_parse(META_KEY_SHOWN, "nr 1\nnr 1\n", 10, &a, &got, &err));
	assert_int_equal(SC_E_FORMAT, meta_value_parse(META_KEY_SHOWN, "", 0, &a, &got, &err));
	assert_int_equal(SC_E_LIMIT, meta_key_print("train", &key, &buf, &err));
	key.text = "a";
	assert_int_equal(SC_E_LIMIT, meta_key_print("a/b", &key, &buf, &err));
	sc_buf_done(&buf);
	sc_arena_done(&a);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(values_print_and_parse),
	    cmocka_unit_test(keys_print_and_parse),
	    cmocka_unit_test(limits_are_refused),
	};

	if (argc > 1)
		rounds = strtoul(argv[1], NULL, 0);
	if (argc > 2)
		seed = strtoul(argv[2], NULL, 0);
	random_state = seed;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
