/* SPDX-License-Identifier: Apache-2.0 */
/* What catalogs of several nodes have in common: numbers, blobs of others, names of objects, numbers of versions. */
#include "tests/unit/meta/catalog/rows.h"

#include "meta/base/limits.h"
#include "meta/catalog/nodes.h"

#define REFUSED(code_, says, call) \
	({ \
		assert_int_equal((code_), (call)); \
		if (!strstr(err.msg, (says))) \
			fail_msg("%s", err.msg); \
	})
#define NODE(n) ((uint64_t)(n) << META_NODE_NUMBERS)

static struct meta_job_row add_job(const char *name, uint64_t its_root)
{
	struct meta_job_row job = {.name = name, .mode = 0755, .root = its_root};

	OK(meta_job_add(catalog, &job, &err));
	return job;
}

static void begin(void)
{
	OK(meta_catalog_begin(catalog, false, &err));
}

static void end(void)
{
	OK(meta_catalog_end(catalog, 0, &err));
}

static int on_complaint(void *arg, uint64_t id, const char *complaint, const char *more)
{
	(void)id;
	(void)more;
	sc_buf_printf(arg, "%s\n", complaint);
	return 0;
}

static void expect_said(const char *want)
{
	struct sc_buf said = {0};

	OK(meta_catalog_check(catalog, on_complaint, &said, &err));
	if (want ? !said.text || !strstr(said.text, want) : said.bytes > 0)
		fail_msg("'%s' was said, not '%s'", said.bytes ? said.text : "", want ? want : "");
	sc_buf_done(&said);
}

/* --- numbers --- */

static void numbers_are_those_of_the_node(void **unused)
{
	uint64_t first;

	(void)unused;
	REFUSED(SC_E_STATE, "there is no node 0", meta_numbers_of_node(catalog, 0, &err));
	REFUSED(SC_E_STATE, "there is no node 65536", meta_numbers_of_node(catalog, 65536, &err));
	OK(meta_numbers_of_node(catalog, 65535, &err));
	assert_true(add_job("one", 0).root == NODE(65535));
	OK(meta_numbers_of_node(catalog, 65535, &err));
	REFUSED(SC_E_STATE, "not those of node 65534", meta_numbers_of_node(catalog, 65534, &err));
	catalog = meta_catalog_close(catalog);
	open_catalog();
	OK(meta_numbers_take(catalog, 1, 10, &first, &err));
	assert_true(first == NODE(65535) + SC_RANKS_MAX + 1);
	force("UPDATE counter SET next = next + (1 << 42) - 2000000");
	assert_int_equal(SC_E_LIMIT, meta_numbers_take(catalog, 1, 1000000, &first, &err));
}

static void a_store_of_its_own_is_no_nodes(void **unused)
{
	uint64_t first;

	(void)unused;
	(void)add_job("one", 0);
	REFUSED(SC_E_STATE, "start a new store", meta_numbers_of_node(catalog, 1, &err));
	force("UPDATE counter SET next = (1 << 42) - 10");
	assert_int_equal(SC_E_LIMIT, meta_numbers_take(catalog, 1, 11, &first, &err));
	OK(meta_numbers_take(catalog, 1, 10, &first, &err));
}

static void blocks_of_other_nodes_are_noted(void **unused)
{
	uint64_t first, job, other;

	(void)unused;
	OK(meta_numbers_of_node(catalog, 2, &err));
	job = add_job("its", NODE(1)).id;
	other = add_job("mine", 0).id;
	assert_int_equal(job, ask("SELECT job FROM number_block WHERE first = %" PRIu64, NODE(1)));
	OK(meta_numbers_take(catalog, other, 100, &first, &err));
	assert_int_equal(1, meta_numbers_put(catalog, NODE(1) + 5000000, 1000, job, &err));
	assert_int_equal(0, meta_numbers_put(catalog, NODE(1) + 5000000, 1000, job, &err));
	assert_int_equal(0, meta_numbers_put(catalog, first, 100, other, &err));
	REFUSED(SC_E_CORRUPT, "another job's", meta_numbers_put(catalog, NODE(1) + 5000000, 1000, other, &err));
	REFUSED(SC_E_CORRUPT, "another job's", meta_numbers_put(catalog, NODE(1) + 5000999, 1000, job, &err));
	REFUSED(SC_E_CORRUPT, "another job's", meta_numbers_put(catalog, NODE(1) + 4999001, 1000, job, &err));
	REFUSED(SC_E_CORRUPT, "has not given", meta_numbers_put(catalog, first + 100, 1, other, &err));
	REFUSED(SC_E_CORRUPT, "no files have", meta_numbers_put(catalog, 0, 1, job, &err));
	REFUSED(SC_E_CORRUPT, "no files have", meta_numbers_put(catalog, SC_NUMBERS_MAX - 1, 2, job, &err));
	REFUSED(SC_E_CORRUPT, "no files have", meta_numbers_put(catalog, NODE(3), UINT64_MAX, job, &err));
	assert_int_equal(1, meta_numbers_put(catalog, NODE(1) + 5001000, 1, job, &err));
	assert_int_equal(SC_E_CORRUPT, meta_job_add(catalog, &(struct meta_job_row){.name = "x", .root = NODE(1)}, &err));
	assert_int_equal(0, ask("SELECT count(*) FROM job WHERE name = 'x'"));
}

/* --- blobs of other nodes --- */

static uint64_t away(uint32_t node, uint64_t number, uint64_t bytes)
{
	uint64_t id;

	begin();
	OK(meta_blob_put_away(catalog, node, number, bytes, &id, &err));
	end();
	return id;
}

static int on_blob(void *arg, const struct meta_blob_row *row)
{
	uint64_t *n = arg;

	n[0]++;
	n[1] = row->id;
	n[2] = row->away;
	return 0;
}

static uint64_t one_set(uint64_t blob)
{
	struct meta_set_row set = {.file = "a", .format = "x", .layout = 1, .topology = "", .tensors = "", .report = ""};
	struct meta_set_blob_row file = {.path = 1, .blob = blob};
	uint64_t id;

	OK(meta_set_add(catalog, &set, &id, &err));
	OK(meta_set_add_blob(catalog, id, &file, &err));
	return id;
}

static struct meta_version_row version(uint64_t nr)
{
	struct meta_version_row v = {.job = 1, .nr = nr, .note = "", .made_by = "", .layout = 1, .topology = "",
				     .request = 77 + nr};

	OK(meta_version_add(catalog, &v, &err));
	return v;
}

static int never(void *arg, uint64_t blob)
{
	(void)arg;
	fail_msg("blob %" PRIu64 " has a file here", blob);
	return 0;
}

static int count(void *arg, uint64_t blob)
{
	(void)blob;
	(*(unsigned *)arg)++;
	return 0;
}

static void collect(meta_id_fn *fn, void *arg)
{
	begin();
	OK(meta_garbage(catalog, fn, arg, &err));
	end();
}

static void a_blob_of_another_node_has_no_file(void **unused)
{
	uint64_t mine, its, same, number, seen[3] = {0};
	uint32_t node;

	(void)unused;
	OK(meta_blob_add(catalog, &mine, &err));
	OK(meta_blob_seal(catalog, mine, 10, &err));
	its = away(7, mine, 20);
	assert_int_not_equal(its, mine);
	assert_int_not_equal(its, away(8, mine, 20));
	assert_int_equal(its, away(7, mine, 20));
	REFUSED(SC_E_CORRUPT, "has 20 bytes", meta_blob_put_away(catalog, 7, mine, 21, &same, &err));
	assert_int_equal(1, meta_blob_away(catalog, its, &node, &number, &err));
	assert_true(node == 7 && number == mine);
	assert_int_equal(0, meta_blob_away(catalog, mine, &node, &number, &err));
	OK(meta_blob_bytes(catalog, its, &number, &err));
	assert_int_equal(20, number);
	OK(meta_blob_unhashed(catalog, on_blob, seen, &err));
	assert_true(seen[0] == 1 && seen[1] == mine);
	OK(meta_blob_sealed(catalog, its, on_blob, seen, &err));
	assert_int_equal(1, seen[0]);
	OK(meta_blob_each(catalog, on_blob, seen, &err));
	assert_true(seen[0] == 4 && seen[2]);
	/* an empty file of a tree is sealed, too, by its row there */
	force("INSERT INTO tree_inode VALUES (1, 5, 33188, 0, 0, 1, 0, 0, 0, 0, 2, x'')");
	OK(meta_blob_sealed(catalog, its, on_blob, seen, &err));
	assert_int_equal(4, seen[0]);
}

static int on_home(void *arg, const struct meta_home_row *row)
{
	*(struct meta_home_row *)arg = *row;
	return 0;
}

static void what_a_node_keeps_of_others_is_here(void **unused)
{
	struct meta_home_row home = {0};
	struct meta_version_row v;
	uint64_t its, copy, made, number, seen[3] = {0}, layout;
	unsigned files = 0;
	uint32_t node;

	(void)unused;
	(void)add_job("one", 0);
	OK(meta_layout_put(catalog, "", "", &layout, &err));
	its = away(7, 1, 20);
	copy = away(7, 2, 30);
	OK(meta_blob_came(catalog, copy, &err));
	assert_int_equal(1, meta_blob_away(catalog, its, &node, &number, &err));
	assert_int_equal(0, meta_blob_away(catalog, copy, &node, &number, &err));
	assert_int_equal(1, meta_blob_origin(catalog, copy, &node, &number, &err));
	assert_true(node == 7 && number == 2);
	assert_int_equal(copy, away(7, 2, 30));
	OK(meta_blob_unhashed(catalog, on_blob, seen, &err));
	assert_true(seen[0] == 1 && seen[1] == copy);
	begin();
	v = version(0);
	OK(meta_blob_add(catalog, &made, &err));
	OK(meta_home_put(catalog, &(struct meta_home_row){v.id, 3, 1, made, 40}, &err));
	OK(meta_job_set_head(catalog, v.job, v.id, &err));
	end();
	OK(meta_home_each(catalog, v.id, on_home, &home, &err));
	assert_true(home.rank == 3 && home.blob == made && home.bytes == 40);
	collect(count, &files); /* the copy, which nothing uses; of the other one there is no file */
	assert_int_equal(1, files);
	assert_int_equal(1, meta_blob_known(catalog, made, &err));
	assert_int_equal(0, ask("SELECT count(*) FROM away"));
	begin();
	v = version(0);
	OK(meta_job_set_head(catalog, v.job, v.id, &err));
	end();
	collect(count, &files);
	assert_int_equal(2, files);
	assert_int_equal(0, meta_blob_known(catalog, made, &err));
}

static int on_same(void *arg, const struct meta_same_row *row)
{
	struct meta_same_row *same = arg;

	assert_int_equal(0, same->home);
	*same = *row;
	return 0;
}

static struct meta_same_row same_of(uint64_t version)
{
	struct meta_same_row same = {0};

	OK(meta_home_same(catalog, version, on_same, &same, &err));
	return same;
}

static void what_a_node_made_may_be_anothers_file(void **unused)
{
	struct meta_version_row v;
	uint64_t its, made, shorter, layout;

	(void)unused;
	(void)add_job("one", 0);
	OK(meta_layout_put(catalog, "", "", &layout, &err));
	its = away(7, 1, 20);
	OK(meta_blob_add(catalog, &made, &err));
	OK(meta_blob_add(catalog, &shorter, &err));
	begin();
	v = version(0);
	OK(meta_version_add_set(catalog, v.id, one_set(its), &err));
	end();
	assert_int_equal(0, same_of(v.id).home);
	OK(meta_home_put(catalog, &(struct meta_home_row){v.id, 1, 1, made, 20}, &err)); /* another rank's */
	assert_int_equal(0, same_of(v.id).home);
	OK(meta_home_put(catalog, &(struct meta_home_row){v.id, 0, 1, shorter, 19}, &err));
	assert_int_equal(0, same_of(v.id).home);
	OK(meta_home_put(catalog, &(struct meta_home_row){v.id, 0, 1, made, 20}, &err));
	assert_true(same_of(v.id).home == made && same_of(v.id).away == its && same_of(v.id).bytes == 20);
	OK(meta_blob_came(catalog, its, &err));
	assert_int_equal(0, same_of(v.id).home);
}

static void what_was_the_storage_is_held(void **unused)
{
	struct meta_version_row v;
	uint64_t blob, made, old, set, layout;
	unsigned files = 0;

	(void)unused;
	(void)add_job("one", 0);
	OK(meta_layout_put(catalog, "", "", &layout, &err));
	OK(meta_blob_add(catalog, &blob, &err));
	OK(meta_blob_add(catalog, &made, &err));
	begin();
	v = version(0);
	old = one_set(blob);
	set = one_set(made);
	OK(meta_version_add_set(catalog, v.id, old, &err));
	end();
	force("UPDATE blob_set SET verified = 1, tensors = 'of the first' WHERE id = 1");
	begin();
	assert_int_equal(1, meta_version_settle(catalog, v.id, set, &err));
	assert_int_equal(0, meta_version_settle(catalog, v.id, set, &err));
	REFUSED(SC_E_CORRUPT, "no set of version row", meta_version_settle(catalog, v.id + 1, set, &err));
	end();
	assert_int_equal(2, ask("SELECT count(*) FROM blob_set WHERE verified = 1 AND tensors = 'of the first'"));
	collect(count, &files);
	assert_int_equal(0, files);
	OK(meta_set_let_go(catalog, old, &err));
	collect(count, &files);
	assert_int_equal(1, files);
	assert_int_equal(0, meta_blob_known(catalog, blob, &err));
	assert_int_equal(1, meta_blob_known(catalog, made, &err));
}

static void garbage_of_other_nodes_is_rows_alone(void **unused)
{
	const struct meta_object named[] = {{META_OBJECT_SET, 1, "set", 1}, {META_OBJECT_PAYLOAD, 1, "payload", 1},
					    {META_OBJECT_LAYOUT, 1, "layout", 1}, {META_OBJECT_TREE, 1, "tree", 1},
					    {META_OBJECT_DATASET, 1, "dataset", 1}};
	struct meta_version_row v;
	uint64_t blob, unused_one, layout, id;
	unsigned files = 0;

	(void)unused;
	(void)add_job("one", 0);
	OK(meta_layout_put(catalog, "", "", &layout, &err));
	blob = away(7, 1, 20);
	unused_one = away(7, 2, 30);
	begin();
	v = version(0);
	OK(meta_version_add_set(catalog, v.id, one_set(blob), &err));
	OK(meta_dataset_add(catalog, &(struct meta_dataset_row){.name = "d", .spec = "", .form = ""}, &id, &err));
	OK(meta_version_add_data(catalog, v.id, id, 0, 0, &err));
	OK(meta_payload_put(catalog, "p", 1, &id, &err));
	for (size_t i = 0; i < sizeof(named) / sizeof(*named); i++)
		OK(meta_object_put(catalog, &named[i], &err));
	end();
	force("INSERT INTO tree (id, base, root, layout, topology) VALUES (1, 0, 1, 1, '')");
	force("UPDATE version SET tree = 1");
	force("UPDATE set_blob SET payload = 1");
	expect_said(NULL);
	collect(never, NULL);
	assert_int_equal(0, meta_blob_known(catalog, unused_one, &err));
	assert_int_equal(1, meta_blob_known(catalog, blob, &err));
	assert_int_equal(1, ask("SELECT count(*) FROM away"));
	assert_int_equal(5, ask("SELECT count(*) FROM object"));
	begin();
	OK(meta_version_remove(catalog, v.id, &err));
	end();
	OK(meta_blob_add(catalog, &id, &err));
	collect(count, &files);
	assert_int_equal(1, files);
	assert_int_equal(0, ask("SELECT (SELECT count(*) FROM away) + (SELECT count(*) FROM blob)"));
	assert_int_equal(1, ask("SELECT count(*) FROM object"));
	expect_said(NULL);
}

/* --- objects, versions --- */

static void objects_are_found_by_name_and_by_what_they_name(void **unused)
{
	struct meta_object o = {META_OBJECT_TREE, 4, "a", 3}, found;

	(void)unused;
	OK(meta_object_put(catalog, &o, &err));
	assert_int_equal(SC_E_EXISTS, meta_object_put(catalog, &o, &err)); /* for ever */
	o.id = 3;
	OK(meta_object_put(catalog, &o, &err)); /* they say the same */
	assert_int_equal(1, meta_object_named(catalog, META_OBJECT_TREE, o.name, &found, &err));
	assert_int_equal(3, found.id);
	assert_int_equal(0, meta_object_named(catalog, META_OBJECT_SET, o.name, &found, &err));
	assert_int_equal(1, meta_object_of(catalog, META_OBJECT_TREE, 4, &found, &err));
	assert_true(found.depth == 3 && found.kind == META_OBJECT_TREE && memcmp(found.name, o.name, 32) == 0);
	assert_int_equal(0, meta_object_of(catalog, META_OBJECT_SET, 4, &found, &err));
}

static int on_version(void *arg, const struct meta_version_row *row)
{
	*(uint64_t *)arg = row->request;
	return 0;
}

static void a_version_has_the_number_that_it_is_given(void **unused)
{
	struct meta_version_row v = {.job = 1, .nr = 5, .note = "", .made_by = "", .layout = 1, .topology = ""};
	uint64_t request;

	(void)unused;
	assert_int_equal(1, version(0).nr);
	assert_int_equal(5, version(5).nr);
	assert_int_equal(6, version(0).nr);
	assert_int_equal(3, version(3).nr);
	assert_int_equal(SC_E_EXISTS, meta_version_add(catalog, &v, &err));
	assert_int_equal(4, ask("SELECT count(*) FROM version"));
	OK(meta_version_get(catalog, 2, on_version, &request, &err));
	assert_int_equal(82, request);
}

static void a_check_names_what_is_missing(void **unused)
{
	(void)unused;
	force("INSERT INTO away (blob, node, number) VALUES (4, 7, 9)");
	expect_said("blob 4, which is blob 9 of node 7, is missing");
	force("DELETE FROM away");
	for (int kind = 1; kind < 7; kind++) {
		char sql[100];

		(void)snprintf(sql, sizeof(sql), "INSERT INTO object VALUES (%d, 4, x'ab', 1)", kind);
		force(sql);
		expect_said("object ab: what it names, row 4 of kind");
		force("DELETE FROM object");
	}
	expect_said(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(numbers_are_those_of_the_node, fresh),
		cmocka_unit_test_setup(a_store_of_its_own_is_no_nodes, fresh),
		cmocka_unit_test_setup(blocks_of_other_nodes_are_noted, fresh),
		cmocka_unit_test_setup(a_blob_of_another_node_has_no_file, fresh),
		cmocka_unit_test_setup(what_a_node_keeps_of_others_is_here, fresh),
		cmocka_unit_test_setup(what_a_node_made_may_be_anothers_file, fresh),
		cmocka_unit_test_setup(what_was_the_storage_is_held, fresh),
		cmocka_unit_test_setup(garbage_of_other_nodes_is_rows_alone, fresh),
		cmocka_unit_test_setup(objects_are_found_by_name_and_by_what_they_name, fresh),
		cmocka_unit_test_setup(a_version_has_the_number_that_it_is_given, fresh),
		cmocka_unit_test_setup(a_check_names_what_is_missing, fresh),
	};

	make_place(true);
	return leave_place(cmocka_run_group_tests_name("nodes", tests, NULL, NULL));
}
