/* SPDX-License-Identifier: Apache-2.0 */
/* A clone's versions have trees that say what the source's say, with numbers of their own. */
#include "tests/unit/meta/catalog/rows.h"

#include "meta/base/limits.h"

#define VIRTUAL(job, rank, at) meta_virtual((uint64_t)(job), rank, at)

/* --- the source: four versions, whose trees are a chain of three --- */

static uint64_t number;		/* the first of two blocks, which do not follow each other */
static uint64_t far;
static struct meta_version_row versions[4];

static void put_text(uint64_t ino, const char *name, const char *value)
{
	say((struct meta_change){META_PUT_XATTR, .xattr = {ino, text(name), text(value)}});
}

static void make_source(void)
{
	struct meta_job_row job = {.name = "source", .mode = 0755};
	uint64_t other;

	OK(meta_layout_put(catalog, "", "", &other, &err));
	OK(meta_job_add(catalog, &job, &err));
	assert_int_equal(1, job.id);
	root = job.root;
	OK(meta_numbers_take(catalog, 1, 16, &number, &err));
	OK(meta_numbers_take(catalog, 99, 1000, &other, &err));
	OK(meta_numbers_take(catalog, 1, 16, &far, &err));
	force("DELETE FROM number_block WHERE job = 99");
	assert_true(far > number + 1000);

	put_inode(root, S_IFDIR, 0);
	put_inode(root + 2, S_IFDIR, 0);
	put_inode(root + SC_RANKS_MAX, S_IFDIR, 0);
	put_inode(number, S_IFDIR, 0);
	record.at[record.nr - 1].inode.parent = root + 2;
	put_inode(number + 15, S_IFREG | 0644, 1);
	put_inode(far, S_IFLNK, 0);
	record.at[record.nr - 1].inode.target = text("to");
	put_inode(VIRTUAL(1, 2, 7), S_IFREG | 0600, 2);
	put_inode(VIRTUAL(1, 2, 8), S_IFDIR, 0);
	put_entry(root, "shared", number + 15);
	put_entry(root + 2, "folder", number);
	put_entry(root + SC_RANKS_MAX, "last", far);
	put_entry(number, "same", number + 15);
	put_entry(VIRTUAL(1, 2, 8), "in", far);
	put_text(number + 15, "user.x", "1");
	put_text(VIRTUAL(1, 2, 7), "user.y", "2");
	apply();
	versions[0] = commit(0);

	put_inode(number, S_IFDIR, 0);
	put_inode(root + 2, S_IFDIR, 0);
	put_inode(far + 15, S_IFDIR, 0);
	record.at[record.nr - 1].inode.parent = number;
	put_entry(number, "same", 0);
	put_entry(number, "deep", far + 15);
	put_entry(root + 2, "of tensors", VIRTUAL(1, 2, 9));
	apply();
	versions[1] = commit(versions[0].tree);
	versions[2] = versions[1];
	versions[2].nr = 0;
	OK(meta_version_add(catalog, &versions[2], &err));

	put_inode(number, S_IFDIR, 0);
	put_entry(number, "same", far);
	apply();
	versions[3] = commit(versions[2].tree);
	OK(meta_job_set_head(catalog, 1, versions[3].id, &err));
}

static int clone_job(uint64_t source, const char *name, uint64_t *ret_id, uint64_t *ret_root)
{
	int rc = meta_catalog_begin(catalog, true, &err);

	if (rc == 0)
		rc = meta_catalog_end(catalog, meta_job_clone(catalog, source, name, 0, 0, ret_id, ret_root, &err), &err);
	return rc;
}

/* --- two trees, walked over side by side --- */

struct sides {
	struct meta_tree mine, its;
	uint64_t job, its_job, root, its_root;
	struct {
		uint64_t at, its;
	} pair[64];
	unsigned nr;
};

struct list {
	struct meta_entry_row at[8];
	char names[8][16];
	unsigned nr;
};

static int on_child(void *arg, const struct meta_entry_row *e)
{
	struct list *l = arg;

	l->at[l->nr] = *e;
	(void)snprintf(l->names[l->nr], sizeof(l->names[0]), "%.*s", (int)e->name.nr, e->name.at);
	l->nr++;
	return 0;
}

static int on_xattr(void *arg, const struct meta_xattr_row *x)
{
	sc_buf_printf(arg, "%.*s=%.*s\n", (int)x->name.nr, x->name.at, (int)x->value.nr, x->value.at);
	return 0;
}

/* Finds or makes a pair; a number is of one pair. */
static bool paired(struct sides *s, uint64_t at, uint64_t its)
{
	for (unsigned i = 0; i < s->nr; i++)
		if (s->pair[i].at == at || s->pair[i].its == its) {
			assert_int_equal(at, s->pair[i].at);
			assert_int_equal(its, s->pair[i].its);
			return true;
		}
	assert_true(at != its && s->nr < 64);
	if (at >= META_VIRTUAL)
		assert_int_equal(its, at - (s->job << META_VIRTUAL_JOB) + (s->its_job << META_VIRTUAL_JOB));
	else if (at >= s->root && at <= s->root + SC_RANKS_MAX)
		assert_int_equal(its, at - s->root + s->its_root);
	else
		assert_int_equal(s->its_job, ask("SELECT job FROM number_block WHERE first <= %" PRIu64 " AND first + nr > %"
						 PRIu64, its, its));
	s->pair[s->nr].at = at;
	s->pair[s->nr++].its = its;
	return false;
}

static void same(struct sides *s, uint64_t at, uint64_t its)
{
	sc_cleanup(sc_buf_done) struct sc_buf target = {0}, its_target = {0}, attrs = {0}, its_attrs = {0};
	struct meta_inode_row row = {0}, its_row = {0};
	struct list names = {0}, its_names = {0};
	int rc;

	if (paired(s, at, its))
		return;
	rc = meta_tree_inode(catalog, &s->mine, at, &row, &target, &err);
	assert_int_equal(rc, meta_tree_inode(catalog, &s->its, its, &its_row, &its_target, &err));
	if (rc) {
		assert_int_equal(its, its_row.ino);
		assert_true(row.parent != 0);
		same(s, row.parent, its_row.parent);
		assert_true(row.mode == its_row.mode && row.nlink == its_row.nlink && row.blob == its_row.blob);
		assert_int_equal(row.target.nr, its_row.target.nr);
		assert_true(!row.target.nr || memcmp(row.target.at, its_row.target.at, row.target.nr) == 0);
	}
	OK(meta_tree_xattrs(catalog, &s->mine, at, on_xattr, &attrs, &err));
	OK(meta_tree_xattrs(catalog, &s->its, its, on_xattr, &its_attrs, &err));
	assert_string_equal(attrs.text ? attrs.text : "", its_attrs.text ? its_attrs.text : "");
	OK(meta_tree_children(catalog, &s->mine, at, on_child, &names, &err));
	OK(meta_tree_children(catalog, &s->its, its, on_child, &its_names, &err));
	assert_int_equal(names.nr, its_names.nr);
	for (unsigned i = 0; i < names.nr; i++) {
		assert_string_equal(names.names[i], its_names.names[i]);
		same(s, names.at[i].ino, its_names.at[i].ino);
	}
}

/* The trees say the same, and have no number in common. */
static void same_tree(uint64_t tree, uint64_t its_tree, const struct meta_job_row *job, const struct meta_job_row *its)
{
	struct sides s = {.mine.id = tree, .its.id = its_tree, .job = job->id, .its_job = its->id, .root = job->root,
			  .its_root = its->root};
	const uint64_t tops[] = {0, 2, SC_RANKS_MAX};

	for (size_t i = 0; i < 3; i++)
		same(&s, job->root + tops[i], its->root + tops[i]);
	for (uint64_t at = 7; at <= 9; at++)
		same(&s, VIRTUAL(job->id, 2, at), VIRTUAL(its->id, 2, at));
	assert_true(s.nr > 8);
	for (unsigned i = 0; i < s.nr; i++)
		for (unsigned k = 0; k < s.nr; k++)
			assert_true(s.pair[i].at != s.pair[k].its);
}

static int keep_version(void *arg, const struct meta_version_row *row)
{
	struct meta_version_row *to = arg;

	assert_true(row->nr >= 1 && row->nr <= 4);
	to[row->nr - 1] = *row;
	return 0;
}

static void same_versions(const struct meta_version_row *v, const struct meta_job_row *job, const struct meta_job_row *its,
			  struct meta_version_row *ret)
{
	OK(meta_version_each(catalog, its->id, keep_version, ret, &err));
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(v[i].floor_ns, ret[i].floor_ns);
		same_tree(v[i].tree, ret[i].tree, job, its);
	}
}

static char *all_rows(uint64_t trees)
{
	static char text_of[8][40];
	static unsigned turn;
	char *to = text_of[turn++ % 8];

	/* a sum that each value of each row changes */
	(void)snprintf(to, sizeof(text_of[0]), "%" PRId64 " %" PRId64 " %" PRId64,
		       ask("SELECT sum((ino * 7 + parent * 11 + blob * 13 + mode) * (tree + 3) %% 1000003) FROM tree_inode "
			   "WHERE tree <= %" PRIu64, trees),
		       ask("SELECT sum((ino * 7 + parent * 11 + length(name)) * (tree + 3) %% 1000003) FROM tree_entry WHERE "
			   "tree <= %" PRIu64, trees),
		       ask("SELECT sum(ino * (tree + 3) %% 1000003) FROM tree_xattr WHERE tree <= %" PRIu64, trees));
	return to;
}

static int count_complaints(void *arg, uint64_t id, const char *complaint, const char *more)
{
	(void)id;
	(void)more;
	print_message("# %s\n", complaint);
	(*(unsigned *)arg)++;
	return 0;
}

static void clones_have_trees_of_their_own(void **unused)
{
	struct meta_version_row its[4], third[4];
	struct meta_job_row source = {.id = 1}, clone = {0}, second = {0};
	const char *before;
	unsigned bad = 0;

	(void)unused;
	make_source();
	source.root = root;
	before = all_rows(3);
	OK(clone_job(1, "clone", &clone.id, &clone.root));
	same_versions(versions, &source, &clone, its);
	assert_string_equal(before, all_rows(3));
	/* each tree is copied once, and lies over a copy */
	assert_int_equal(its[1].tree, its[2].tree);
	assert_int_equal(6, ask("SELECT count(*) FROM tree"));
	assert_int_equal(3, ask("SELECT count(*) FROM tree WHERE root = %" PRIu64 " AND layout = 1 AND topology = 'dp=2' AND "
				"(base = 0 OR base > 3)", clone.root));
	assert_int_equal(clone.root, ask("SELECT root FROM job WHERE id = %" PRIu64, clone.id));
	/* a clone of the clone, without the two */
	OK(clone_job(clone.id, "second", &second.id, &second.root));
	same_versions(its, &clone, &second, third);
	same_versions(versions, &source, &second, third);
	OK(meta_catalog_check(catalog, count_complaints, &bad, &err));
	assert_int_equal(0, bad);
}

/* Every night the source has grown and is cloned again. */
static void many_clones_of_a_job_that_grows(void **unused)
{
	uint64_t first, id, its_root, last = 0;

	(void)unused;
	make_source();
	for (unsigned i = 0; i < 64; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "night-%u", i);
		OK(meta_numbers_take(catalog, 1, 16, &first, &err));
		put_inode(root, S_IFDIR, 0);
		put_inode(first + 3, S_IFLNK, 0);
		put_entry(root, name, first + 3);
		apply();
		versions[3] = commit(last ? last : versions[3].tree);
		last = versions[3].tree;
		if (i % 8 == 7) {
			OK(meta_catalog_begin(catalog, false, &err));
			OK(meta_tree_flatten(catalog, last, &err));
			OK(meta_catalog_end(catalog, 0, &err));
		}
		OK(clone_job(1, name, &id, &its_root));
	}
	assert_true(ask("SELECT next FROM counter") < INT64_C(1) << 28);
}

static void a_number_of_nobody_is_refused(void **unused)
{
	uint64_t id = 77, its_root = 78;
	const char *before;

	(void)unused;
	make_source();
	force("UPDATE tree_inode SET parent = 5000000 WHERE parent <> 0 AND tree = 2");
	before = all_rows(1000);
	assert_int_equal(SC_E_CATALOG, clone_job(1, "clone", &id, &its_root));
	assert_non_null(strstr(err.msg, "number that its job does not have"));
	assert_int_equal(77, id);
	assert_string_equal(before, all_rows(1000));
	assert_int_equal(1, ask("SELECT count(*) FROM job"));
	assert_int_equal(3, ask("SELECT count(*) FROM number_block"));
	force("UPDATE tree_inode SET parent = (SELECT root FROM job) WHERE tree = 2");
	force("DELETE FROM tree WHERE id = 1");
	assert_int_equal(SC_E_CORRUPT, clone_job(1, "clone", &id, &its_root));
	assert_non_null(strstr(err.msg, "tree 1"));
	/* a job without trees takes a block for its folders alone */
	force("DELETE FROM version");
	OK(clone_job(1, "clone", &id, &its_root));
	assert_int_equal(1, ask("SELECT count(*) FROM number_block WHERE job = %" PRIu64, id));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(clones_have_trees_of_their_own, fresh),
		cmocka_unit_test_setup(many_clones_of_a_job_that_grows, fresh),
		cmocka_unit_test_setup(a_number_of_nobody_is_refused, fresh),
	};

	make_place(true);
	return leave_place(cmocka_run_group_tests(tests, NULL, NULL));
}
