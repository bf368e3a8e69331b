/* SPDX-License-Identifier: Apache-2.0 */
/* Working trees of nodes in memory, and requests on them, for test_join. */
#include "tests/prop/reshard/exchange/merge/nodes.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#define NUMBERS 42		/* bits of a number below its node's */

static int on_number(void *arg, uint64_t *ret, struct sc_err *err)
{
	struct tree *t = arg;

	(void)err;
	*ret = t->next++;
	return 0;
}

static int on_record(void *arg, const struct meta_changes *record, struct sc_err *err)
{
	(void)arg;
	(void)record;
	(void)err;
	return 0;
}

/* Below the first one are only the folders of the job and of two ranks. */
static int no_inode(void *arg, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret, struct sc_err *err)
{
	(void)arg;
	(void)texts;
	(void)err;
	if (ino < ROOT || ino > ROOT + 2)
		return 0;
	*ret = (struct meta_inode_row){.ino = ino, .mode = S_IFDIR | 0755, .nlink = ino == ROOT ? 4 : 2, .parent = ROOT};
	return 1;
}

static int no_child(void *arg, uint64_t folder, struct meta_bytes name, uint64_t *ret, struct sc_err *err)
{
	(void)arg;
	(void)err;
	*ret = folder == ROOT && name.nr == 1 && (*name.at == '0' || *name.at == '1') ? ROOT + 1 + (uint64_t)(*name.at - '0')
										       : 0;
	return 0;
}

static int no_children(void *arg, uint64_t folder, rs_child_fn *fn, void *fn_arg, struct sc_err *err)
{
	int rc = 0;

	(void)arg;
	(void)err;
	for (unsigned r = 0; folder == ROOT && rc == 0 && r < 2; r++)
		rc = fn(fn_arg, (struct meta_bytes){r ? "1" : "0", 1}, ROOT + 1 + r);
	return rc;
}

static int no_xattrs(void *arg, uint64_t ino, rs_xattr_fn *fn, void *fn_arg, struct sc_err *err)
{
	(void)arg;
	(void)ino;
	(void)fn;
	(void)fn_arg;
	(void)err;
	return 0;
}

static int of_inode(void *arg, uint64_t ino, struct sc_arena *texts, struct meta_inode_row *ret, struct sc_err *err)
{
	int rc = rs_overlay_inode(arg, ino, texts, ret, err);

	if (rc > 0 && ret->data == META_OWN_DATA) /* it is committed */
		ret->data = META_LOWER_DATA;
	return rc > 0 && !ret->nlink ? 0 : rc;
}

static int of_child(void *arg, uint64_t folder, struct meta_bytes name, uint64_t *ret, struct sc_err *err)
{
	return rs_overlay_child(arg, folder, name, ret, err);
}

static int of_children(void *arg, uint64_t folder, rs_child_fn *fn, void *fn_arg, struct sc_err *err)
{
	return rs_overlay_children(arg, folder, fn, fn_arg, err);
}

static int of_xattrs(void *arg, uint64_t ino, rs_xattr_fn *fn, void *fn_arg, struct sc_err *err)
{
	return rs_overlay_xattrs(arg, ino, fn, fn_arg, err);
}

void tree_open(struct tree *t, unsigned node, struct rs_overlay *below)
{
	struct sc_err err;

	*t = (struct tree){.next = ((uint64_t)node << NUMBERS) + 1000, .log = {on_number, on_record, t}};
	t->lower = below ? (struct rs_lower){of_inode, of_child, of_children, of_xattrs, below}
			 : (struct rs_lower){no_inode, no_child, no_children, no_xattrs, NULL};
	assert_int_equal(0, rs_overlay_open(1, ROOT, &t->lower, &t->log, &t->o, &err));
}

/* --- requests --- */

const char *const paths[PATHS] = {"0/a", "0/b", "0/d", "0/d/a", "0/d/b", "0/d/e", "0/d/e/a", "0/f", "0/f/a", "0/f/e",
				    "1/a", "1/d", "1/d/a", "s", "s/a", "s/b", "s/d", "s/d/a", "u", "u/a"};

/* The folder of a path, and its last name; 0: there is no such folder. */
static uint64_t find(const struct tree *t, const char *path, struct meta_bytes *ret_name)
{
	uint64_t ino = ROOT;
	struct sc_err err;

	for (;;) {
		size_t n = strcspn(path, "/");
		struct meta_inode_row row;
		struct sc_arena texts = {0};
		int rc;

		*ret_name = (struct meta_bytes){path, n};
		if (!path[n])
			return ino;
		assert_int_equal(0, rs_overlay_child(t->o, ino, *ret_name, &ino, &err));
		rc = ino ? rs_overlay_inode(t->o, ino, &texts, &row, &err) : 0;
		sc_arena_done(&texts);
		if (rc <= 0 || !S_ISDIR(row.mode))
			return 0;
		path += n + 1;
	}
}

static uint64_t child(const struct tree *t, uint64_t folder, struct meta_bytes name)
{
	struct sc_err err;
	uint64_t ino = 0;

	if (folder)
		assert_int_equal(0, rs_overlay_child(t->o, folder, name, &ino, &err));
	return ino;
}

static int make(struct tree *t, int64_t now, uint64_t folder, struct meta_bytes name, const struct request *r)
{
	struct meta_inode_row row = {.mode = r->what == 1 ? S_IFDIR | 0755 : r->what == 2 ? S_IFLNK | 0777 : S_IFREG | 0644};
	struct sc_err err;

	if (r->what == 0) {
		row.data = META_OWN_DATA;
		row.blob = 1 + r->value;
	}
	if (r->what == 2)
		row.target = (struct meta_bytes){"target", 6};
	return rs_overlay_make(t->o, now, folder, name, &row, &err);
}

/* A file's bytes are its blob; writing gives it another one. */
static int write_file(struct tree *t, int64_t now, uint64_t ino, const struct request *r)
{
	struct sc_arena texts = {0};
	struct meta_inode_row row;
	struct sc_err err;
	int rc = ino ? rs_overlay_inode(t->o, ino, &texts, &row, &err) : 0;

	sc_arena_done(&texts);
	if (rc <= 0 || !S_ISREG(row.mode) || row.data == META_OWN_DATA)
		return SC_E_NOT_FOUND;
	return rs_overlay_own_data(t->o, now, ino, 1 + r->value, &err);
}

int play(struct tree *t, int64_t now, const struct request *r)
{
	struct meta_bytes a, b;
	const uint64_t folder = find(t, paths[r->a], &a), other = find(t, paths[r->b], &b);
	const uint64_t ino = child(t, folder, a);
	/* none that was set before: what is set to what it was is no change */
	struct rs_attrs attrs = {.has_mode = true, .mode = (mode_t)now % 512};
	char value[24];
	struct sc_err err;

	(void)snprintf(value, sizeof(value), "%" PRId64, now);
	if (!folder)
		return SC_E_NOT_FOUND;
	switch (r->what) {
	case 0: case 1: case 2:
		return make(t, now, folder, a, r);
	case 3:
		return rs_overlay_unlink(t->o, now, folder, a, &err);
	case 4:
		return rs_overlay_rmdir(t->o, now, folder, a, &err);
	case 5:
		return other ? rs_overlay_rename(t->o, now, folder, a, other, b, RS_RENAME_OVER, &err) : SC_E_NOT_FOUND;
	case 6:
		return other && ino ? rs_overlay_link(t->o, now, ino, other, b, &err) : SC_E_NOT_FOUND;
	case 7:
		return write_file(t, now, ino, r);
	case 8:
		return ino ? rs_overlay_set_attrs(t->o, now, ino, &attrs, &err) : SC_E_NOT_FOUND;
	default:
		return ino ? rs_overlay_set_xattr(t->o, now, ino, (struct meta_bytes){"user.x", 6},
						  (struct meta_bytes){value, strlen(value)}, RS_XATTR_ANY, &err)
			   : SC_E_NOT_FOUND;
	}
}
