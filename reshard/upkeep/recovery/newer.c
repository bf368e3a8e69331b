/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refuses a catalog that is older than its store: a backup of the catalog was put back, and the blobs were not.  A
 * start would take what was committed since for garbage.  Recovery records tell:
 *
 * 1. Only a blob or tree that has a row gets a record.  Before the record is written, stable storage says that its
 *    number was given (meta_number_flush()).  So neither a kill nor a power cut leaves a record with a number that the
 *    catalog has not given.
 * 2. A blob of a commit that never was, or of a working tree, has no record, whatever its number.  A second name of a
 *    file has the record of the first, which the catalog may know, so files of several names tell nothing.  (A commit
 *    that shares all its files with older ones has a tree of its own, too.)
 */
#include "reshard/upkeep/recovery/record.h"

#include <errno.h>
#include <inttypes.h>

struct newer {
	struct rs_service *s;
	uint64_t blob, tree;		/* the last ones that the catalog has given */
	uint64_t nr, first_blob, first_tree;	/* with records beyond these; 0: none */
	bool moves;
	struct sc_err *err;
};

/* Tells whether a blob says nothing of the catalog: it has no record, or is no file, cannot be read, or is in a wrong
 * folder, so nobody has committed it. */
static bool says_nothing(int rc, const struct sc_err *err)
{
	return rc == SC_E_NOT_FOUND || rc == SC_E_DAMAGED || (rc == SC_E_SYSTEM && (err->errnum == ENOENT ||
								err->errnum == EIO || err->errnum == ELOOP));
}

static int on_blob(void *arg, uint64_t blob)
{
	struct newer *n = arg;
	struct stat st;
	size_t bytes;
	char byte;
	int rc;

	if (blob <= n->blob)
		return 0;
	if (n->moves)
		return meta_store_set_aside(&n->s->store, blob, n->err);
	rc = meta_store_stat_work(&n->s->store, blob, &st, n->err);
	if (rc == 0 && st.st_nlink > 1)
		return 0;
	if (rc == 0)
		rc = meta_store_get_record(&n->s->store, blob, &byte, 0, &bytes, n->err);
	if (rc == 0 && (!n->first_blob || blob < n->first_blob))
		n->first_blob = blob;
	n->nr += rc == 0;
	return says_nothing(rc, n->err) ? 0 : rc;
}

static int on_tree(void *arg, uint64_t tree)
{
	struct newer *n = arg;

	if (tree <= n->tree)
		return 0;
	if (n->moves)
		return meta_store_set_tree_aside(&n->s->store, tree, n->err);
	if (!n->first_tree || tree < n->first_tree)
		n->first_tree = tree;
	n->nr++;
	return 0;
}

static int look(struct newer *n)
{
	int rc = meta_last_number(n->s->catalog, META_NUMBERED_BLOB, &n->blob, n->err);

	if (rc == 0)
		rc = meta_last_number(n->s->catalog, META_NUMBERED_TREE, &n->tree, n->err);
	if (rc == 0)
		rc = meta_store_each(&n->s->store, on_blob, n, n->err);
	return rc < 0 ? rc : meta_store_each_tree(&n->s->store, on_tree, n, n->err);
}

int rs_records_refuse_newer(struct rs_service *s, const char *path, struct sc_err *err)
{
	struct newer n = {.s = s, .err = err};
	int rc = look(&n);

	if (rc < 0 || !n.nr)
		return rc;
	return sc_fail(err, SC_E_CORRUPT, "the catalog '%s' is older than the store, which has %s %" PRIu64 ", and the "
		       "last one in the catalog was %" PRIu64 "; nothing was changed: put the newer catalog back, or "
		       "run 'scalai fsck --rebuild' ('scalai fsck --repair' moves what is newer to lost+found)",
		       path, n.first_blob ? "blob" : "tree", n.first_blob ? n.first_blob : n.first_tree,
		       n.first_blob ? n.blob : n.tree);
}

int rs_records_set_newer_aside(struct rs_service *s, struct sc_err *err)
{
	struct newer n = {.s = s, .moves = true, .err = err};
	int rc = rs_log_set_aside(s, err); /* first: whoever is killed after it has a catalog that is older still */

	return rc < 0 ? rc : look(&n);
}
