/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds all objects of which versions that stay are made.  What an object names never changes, so each is read once,
 * and what it names is kept in memory as long as the object is found in each round.
 */
#include "reshard/cluster/stored/sweep_i.h"

#include <string.h>

struct mark {
	struct rs_object_link is;
	uint64_t round;			/* in which it was found last */
	bool is_read;
	struct rs_object_links names;
	struct rs_object_parts parts;
};

static void mark_free(struct mark *k)
{
	sc_vec_done(&k->names);
	sc_vec_done(&k->parts);
	sc_sys.release(k);
}

void rs_marks_done(struct rs_marks *marks)
{
	for (size_t i = 0; i < marks->nr; i++)
		mark_free(marks->at[i]);
	sc_vec_done(marks);
	sc_map_done(&marks->by_name);
	sc_vec_done(&marks->found);
}

static struct mark *find(const struct rs_marks *marks, const struct rs_object_name *name)
{
	return sc_map_get(&marks->by_name, (const char *)name->at, sizeof(name->at));
}

bool rs_marks_have(const struct rs_marks *marks, const struct rs_object_name *name)
{
	const struct mark *k = find(marks, name);

	return k && k->round == marks->round;
}

static struct mark *find_or_make(struct rs_marks *marks, const struct rs_object_link *link)
{
	struct mark *k = find(marks, &link->name);

	if (k)
		return k;
	k = sc_zalloc(sizeof(*k));
	if (!k || sc_map_reserve(&marks->by_name, 1) < 0 || sc_vec_push(marks, k) < 0) {
		sc_sys.release(k);
		return NULL;
	}
	k->is = *link;
	(void)sc_map_put(&marks->by_name, (const char *)k->is.name.at, sizeof(k->is.name.at), k);
	return k;
}

/* Notes the parts of an object that was read, which name nothing: all that was got but the object itself. */
static int note_parts(struct rs_marks *marks, struct mark *k, const struct rs_bag *bag, struct sc_err *err)
{
	for (size_t i = 1; i < bag->all.nr; i++) {
		struct rs_object_link part = {.kind = RS_OBJECT_LEAF};
		struct mark *p;

		memcpy(part.name.at, bag->all.at[i].name, sizeof(part.name.at));
		p = find_or_make(marks, &part);
		if (!p || sc_vec_push(&k->names, part) < 0)
			return sc_nomem(err);
		p->is_read = true;
	}
	return 0;
}

/* Reads what an object names.  SC_E_NOT_FOUND: etcd lacks it, or a part of it. */
static int read_it(struct rs_member *m, struct rs_marks *marks, struct mark *k, struct sc_err *err)
{
	struct rs_bag bag = {.lacking = false};
	int rc;

	if (k->is_read)
		return 0;
	do {
		bag.lacking = false;
		k->names.nr = k->parts.nr = 0;
		rc = rs_objects_named_by(&k->is, &rs_bag_ops, &bag, &k->names, &k->parts, err);
	} while (rc < 0 && bag.lacking && (rc = rs_bag_get(m, &bag, err)) == 0);
	if (rc == 0)
		rc = note_parts(marks, k, &bag, err);
	rs_bag_done(&bag);
	k->is_read = rc == 0;
	return rc;
}

int rs_marks_parts(struct rs_member *m, struct rs_marks *marks, const struct rs_object_link *version,
		   const struct rs_object_parts **ret, struct sc_err *err)
{
	struct mark *k = find_or_make(marks, version);
	int rc = k ? read_it(m, marks, k, err) : sc_nomem(err);

	*ret = k ? &k->parts : NULL;
	return rc;
}

int rs_marks_add(struct rs_member *m, struct rs_marks *marks, const struct rs_object_link *object, bool may_lack,
		 struct sc_err *err)
{
	int rc = 0;

	marks->found.nr = 0;
	if (sc_vec_push(&marks->found, *object) < 0)
		return sc_nomem(err);
	while (rc == 0 && marks->found.nr) {
		const struct rs_object_link link = marks->found.at[--marks->found.nr];
		struct mark *k = find_or_make(marks, &link);

		if (k && k->round == marks->round)
			continue;
		rc = k ? read_it(m, marks, k, err) : sc_nomem(err);
		if (rc == SC_E_NOT_FOUND && may_lack)
			rc = 0;
		if (rc < 0)
			return rc;
		k->round = marks->round;
		for (size_t i = 0; rc == 0 && i < k->names.nr; i++)
			rc = sc_vec_push(&marks->found, k->names.at[i]) < 0 ? sc_nomem(err) : 0;
	}
	return rc;
}

void rs_marks_begin(struct rs_marks *marks)
{
	marks->round++;
}

void rs_marks_end(struct rs_marks *marks)
{
	size_t kept = 0;

	for (size_t i = 0; i < marks->nr; i++) {
		struct mark *k = marks->at[i];

		if (k->round == marks->round) {
			marks->at[kept++] = k;
			continue;
		}
		sc_map_drop(&marks->by_name, (const char *)k->is.name.at, sizeof(k->is.name.at));
		mark_free(k);
	}
	marks->nr = kept;
}
