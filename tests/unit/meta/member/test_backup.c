/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a backup of the cluster's keys: with any one bit changed it is refused, before etcd is asked anything, and
 * so is one that is cut off or goes on; what programs from before have written is read, and said to have no checksum.
 */
#include "reshard/cluster/node/restore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/catalog/member.h"
#include "reshard/version/state/state_i.h"

#define OK(call) assert_int_equal(0, (call))

static char dir[] = "/tmp/scalai-backup.XXXXXX";
static struct sc_err err;
static char text[4096];
static size_t bytes;

/* What a store's catalog has, as text. */
static void print(void)
{
	static const uint8_t id[META_ID_BYTES] = {1, 2, 3};
	struct rs_service s = {.catalog = NULL};
	FILE *f = fopen("keys", "w+");

	assert_non_null(f);
	OK(meta_catalog_open("db", true, &s.catalog, &err));
	OK(meta_member_join(s.catalog, "test", id, 5, &err));
	OK(meta_catalog_begin(s.catalog, true, &err));
	OK(meta_backup_begin(s.catalog, &err));
	OK(meta_backup_put(s.catalog, true, "/scalai/test/meta",
			   "id 01020300000000000000000000000000\nprotocol_min 1\nprotocol_max 1\nfresh_ms 1000\nttl_ms 10000\n"
			   "copies 1\ndomains \n", &err));
	OK(meta_backup_put(s.catalog, true, "/scalai/test/names/gpt", "nr 7\n", &err));
	OK(meta_backup_done(s.catalog, true, 42, &err));
	OK(meta_catalog_end(s.catalog, 0, &err));
	OK(rs_backup_print(&s, f, &err));
	rewind(f);
	bytes = fread(text, 1, sizeof(text) - 1, f);
	(void)fclose(f);
	(void)meta_catalog_close(s.catalog);
}

/* The error that a rebuild from this text ends with.  There is no etcd: what is read is SC_E_SYSTEM. */
static int rebuild(const char *from, size_t nr)
{
	static const char *const path = "changed";
	const struct rs_member_options o = {.cluster = "test", .etcd = {"http://127.0.0.1:1"}, .nr_etcd = 1};
	sc_cleanup(sc_buf_done) struct sc_buf report = {0};
	FILE *f = fopen(path, "w");

	assert_true(f && fwrite(from, 1, nr, f) == nr && fclose(f) == 0);
	return rs_backup_restore(&o, &path, 1, false, &report, &err);
}

static void what_was_written_is_read(void **unused)
{
	(void)unused;
	assert_int_equal(SC_E_SYSTEM, rebuild(text, bytes));
	assert_non_null(strstr(err.msg, "etcd"));
}

static void any_bit_that_changed_is_seen(void **unused)
{
	char other[sizeof(text)];

	(void)unused;
	for (size_t i = 0; i < bytes * 8; i++) {
		memcpy(other, text, bytes);
		other[i / 8] = (char)(other[i / 8] ^ 1 << i % 8);
		if (rebuild(other, bytes) != SC_E_FORMAT)
			fail_msg("bit %zu of byte %zu, '%c': %s", i % 8, i / 8, text[i / 8], err.msg);
	}
}

static void it_ends_where_it_ends(void **unused)
{
	char other[sizeof(text)];

	(void)unused;
	for (size_t n = 0; n < bytes; n++)
		assert_int_equal(SC_E_FORMAT, rebuild(text, n));
	memcpy(other, text, bytes);
	other[bytes] = '\n';
	assert_int_equal(SC_E_FORMAT, rebuild(other, bytes + 1));
	assert_non_null(strstr(err.msg, "behind its end"));
}

/* "scalai-backup 1" and "end 2" with nothing after them. */
static void one_without_a_checksum_is_read(void **unused)
{
	char old[sizeof(text)], *end;

	(void)unused;
	memcpy(old, text, bytes + 1);
	old[strlen("scalai-backup ")] = '1';
	end = strstr(old, "\nend 2 ");
	assert_non_null(end);
	memcpy(end, "\nend 2\n", 8);
	assert_int_equal(SC_E_SYSTEM, rebuild(old, strlen(old)));
	memcpy(end, "\nend 2\n\n", 9);
	assert_int_equal(SC_E_FORMAT, rebuild(old, strlen(old)));
	memcpy(end, "\nend 3\n", 8);
	assert_int_equal(SC_E_FORMAT, rebuild(old, strlen(old)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(what_was_written_is_read),
	    cmocka_unit_test(any_bit_that_changed_is_seen),
	    cmocka_unit_test(it_ends_where_it_ends),
	    cmocka_unit_test(one_without_a_checksum_is_read),
	};
	char remove[sizeof(dir) + 10];
	int failed;

	if (!mkdtemp(dir) || chdir(dir) < 0)
		return 1;
	print();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	(void)snprintf(remove, sizeof(remove), "rm -r %s", dir);
	return system(remove) == 0 ? failed : 1;
}
