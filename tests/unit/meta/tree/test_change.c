/* SPDX-License-Identifier: Apache-2.0 */
/* Records of working trees as bytes: what is decoded is what was encoded, and nothing else is taken for a record. */
#include "meta/tree/change.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#define BYTES(text) {(text), sizeof(text) - 1}

static const struct meta_change samples[] = {
	{META_PUT_INODE,
	 .inode = {7, 3, 0120777, 1000, 100, 0, 2, -1, INT64_MIN, INT64_MAX, 5, META_NO_DATA, 0, BYTES("a\0b")}},
	{META_PUT_INODE,
	 .inode = {UINT64_MAX, 1, 0100644, UINT32_MAX, 0, 0, 0, 1, 2, 3, 0, META_LOWER_DATA, 9, {"", 0}}},
	{META_PUT_ENTRY, .entry = {7, BYTES("name \xff"), 8}},
	{META_DROP_ENTRY, .entry = {7, BYTES("name"), 0}},
	{META_PUT_XATTR, .xattr = {8, BYTES("user.x"), BYTES("value\0")}},
	{META_DROP_XATTR, .xattr = {8, BYTES("user.x"), {0}}},
	{META_DROP_INODE, .inode = {.ino = 8}},
	{META_PUT_AGAIN, .again = {7, 70}},
};
#define NR (sizeof(samples) / sizeof(*samples))

static void assert_same(struct meta_bytes a, struct meta_bytes b)
{
	assert_int_equal(a.nr, b.nr);
	assert_true(a.nr == 0 || memcmp(a.at, b.at, a.nr) == 0);
}

static void encode(struct sc_buf *buf)
{
	struct meta_changes all = {0};

	for (size_t i = 0; i < NR; i++)
		assert_int_equal(0, sc_vec_push(&all, samples[i]));
	meta_changes_encode(&all, buf);
	assert_false(buf->failed);
	meta_changes_done(&all);
}

static void what_is_decoded_was_encoded(void **unused)
{
	struct meta_changes got = {0};
	struct sc_buf buf = {0};
	struct sc_err err;

	(void)unused;
	encode(&buf);
	assert_int_equal(0, meta_changes_decode(buf.text, buf.bytes, &got, &err));
	assert_int_equal(NR, got.nr);
	for (size_t i = 0; i < NR; i++) {
		struct meta_change a = samples[i], b = got.at[i];

		assert_int_equal(a.kind, b.kind);
		if (a.kind == META_PUT_INODE) {
			assert_same(a.inode.target, b.inode.target);
			a.inode.target = b.inode.target = (struct meta_bytes){0};
			assert_memory_equal(&a.inode, &b.inode, sizeof(a.inode));
		} else if (a.kind == META_DROP_INODE) {
			assert_int_equal(a.inode.ino, b.inode.ino);
		} else if (a.kind == META_PUT_AGAIN) {
			assert_memory_equal(&a.again, &b.again, sizeof(a.again));
		} else if (a.kind == META_PUT_ENTRY || a.kind == META_DROP_ENTRY) {
			assert_int_equal(a.entry.parent, b.entry.parent);
			assert_int_equal(a.entry.ino, b.entry.ino);
			assert_same(a.entry.name, b.entry.name);
		} else {
			assert_int_equal(a.xattr.ino, b.xattr.ino);
			assert_same(a.xattr.name, b.xattr.name);
			assert_same(a.xattr.value, b.xattr.value);
		}
	}
	meta_changes_done(&got);
	sc_buf_done(&buf);
}

/* Each beginning of the bytes is the changes that are whole in it, or refused; a copy of exactly that size finds reads
 * beyond its end. */
static void beginnings(void **unused)
{
	struct sc_buf buf = {0};
	struct sc_err err;
	size_t whole = 0;

	(void)unused;
	encode(&buf);
	for (size_t n = 0; n < buf.bytes; n++) {
		char *part = sc_sys.alloc(n + !n);
		struct meta_changes got = {0};
		int rc;

		memcpy(part, buf.text, n);
		rc = meta_changes_decode(part, n, &got, &err);
		assert_true(rc == 0 || rc == SC_E_CORRUPT);
		whole += rc == 0;
		assert_true(rc == 0 || got.nr == 0);
		meta_changes_done(&got);
		sc_sys.release(part);
	}
	assert_int_equal(NR, whole); /* with the empty one */
	sc_buf_done(&buf);
}

static void garbage(void **unused)
{
	struct sc_err err;
	uint64_t x = 1;

	(void)unused;
	for (int round = 0; round < 100000; round++) {
		struct meta_changes got = {0};
		char part[64];
		size_t n = (size_t)round % sizeof(part);

		for (size_t i = 0; i < n; i++) {
			x = x * 6364136223846793005u + 1442695040888963407u;
			part[i] = (char)(x >> 60 ? x >> 61 : x >> 33);
		}
		(void)meta_changes_decode(part, n, &got, &err);
		for (size_t i = 0; i < got.nr; i++)
			if (got.at[i].kind == META_PUT_ENTRY)
				assert_true(got.at[i].entry.name.nr <= n);
		meta_changes_done(&got);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_decoded_was_encoded),
		cmocka_unit_test(beginnings),
		cmocka_unit_test(garbage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
