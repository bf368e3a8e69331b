/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives a node's own file a second number.  Of ranks that are alike, the storage has one file, that of one node.
 * Another node that has made such a file for itself has the same bytes, as a rank's file follows from the version
 * alone.  So that node gives its file the number of the other node's by a hard link, and does not pull it.
 *
 * 1. The link is on stable storage before the row says that a copy is here.
 * 2. Nobody else makes that copy meanwhile: no version has the other node's file before the transaction ends.
 * 3. What cannot be linked, or is damaged, is pulled as any copy.
 */
#include "reshard/cluster/stored/stored_i.h"

#include <inttypes.h>

#include "meta/catalog/nodes.h"
#include "reshard/upkeep/background/pass.h"

struct listing {
	struct sc_err *err;
	size_t nr, room;
	struct meta_same_row *at;
};

static int on_same(void *arg, const struct meta_same_row *row)
{
	struct listing *l = arg;

	return sc_vec_push(l, *row) < 0 ? sc_nomem(l->err) : 0;
}

/* Links one file; true: the file has both numbers. */
static bool link_one(struct rs_service *s, const struct meta_same_row *row)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err why;
	int rc = meta_store_open_blob(&s->store, row->home, row->bytes, &fd, &why);

	if (rc == 0)
		rc = meta_store_remove(&s->store, row->away, &why); /* of an attempt before */
	if (rc == 0)
		rc = meta_store_link(&s->store, row->away, row->home, &why);
	if (rc < 0)
		sc_log(SC_LOG_INFO, "blob %" PRIu64 " is pulled though its bytes are here: %s", row->away, why.msg);
	return rc == 0;
}

int rs_same_take(struct rs_service *s, uint64_t version, bool sync, struct rs_same *same, struct sc_err *err)
{
	struct meta_store_dirs dirs = {{0}};
	struct listing l = {.err = err};
	int rc = meta_home_same(s->catalog, version, on_same, &l, err);

	for (size_t i = 0; rc == 0 && i < l.nr; i++) {
		const uint64_t blob = l.at[i].away;

		if (!link_one(s, &l.at[i]))
			continue;
		meta_store_note_dir(&dirs, blob);
		if (sc_vec_push(same, blob) < 0)
			rc = sc_nomem(err);
	}
	if (rc == 0 && sync && same->nr)
		rc = meta_store_sync_dirs(&s->store, &dirs, err);
	for (size_t i = 0; rc == 0 && i < same->nr; i++)
		rc = meta_blob_came(s->catalog, same->at[i], err);
	sc_vec_done(&l);
	return rc;
}

void rs_same_end(struct rs_service *s, struct rs_same *same, int rc)
{
	struct sc_err ignored;

	for (size_t i = 0; i < same->nr; i++) {
		if (rc < 0)
			(void)meta_store_remove(&s->store, same->at[i], &ignored);
		rs_blob_forget(s->blobs, same->at[i]);
	}
	sc_vec_done(same);
}
