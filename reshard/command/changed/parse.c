/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the format of a file of a commit, and parses the file. */
#include "reshard/command/changed/items_i.h"

#include <fcntl.h>
#include <string.h>

/* A file as a format sees it: the first read opens it. */
struct work_file {
	uint64_t blob;
	int fd;			/* -1: not open yet */
	const struct commit *c;
	const struct item *item;
	bool any_object;	/* the layout has called one of its tensors so */
};

int rs_commit_reach(struct commit *c, struct item *it)
{
	int rc = it->remote ? 0 : rs_blob_place(c->s->blobs, it->blob, it->bytes, 0, &it->place, c->err);

	if (rc > 0)
		rc = rs_place_open(&it->place, &it->remote, c->err);
	it->away = it->remote;
	return rc;
}

int rs_commit_bytes(const struct item *it, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	return rs_bytes_read(it->away ? it->remote : &it->parsed->bytes, at, bytes, to, err);
}

static int read_work(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	struct work_file *f = arg;
	int rc;

	if (f->item->away)
		return rs_bytes_read(f->item->remote, at, bytes, to, err);
	rc = f->fd < 0 ? meta_store_open_work(&f->c->s->store, f->blob, O_RDONLY, &f->fd, err) : 0;

	return rc < 0 ? rc : rs_fd_read(f->fd, f->blob, at, bytes, to, err);
}

static bool is_object(void *arg, const char *name)
{
	struct work_file *f = arg;
	bool is = meta_layout_is_object(f->c->layout, f->c->topo.pp > 1, f->item->path, name);

	f->any_object |= is;
	return is;
}

/* Parses a file with its payload, which has the tensors that the layout calls objects.  Neither goes through the cache:
 * payloads are large, and the layout may change. */
static int parse_own(struct commit *c, struct item *it)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct work_file work = {it->blob, -1, c, it, false};
	struct rs_file file = {it->path, it->bytes, &work, read_work, is_object, false};
	int rc = it->away ? 0 : meta_store_open_blob(&c->s->store, it->blob, it->bytes, &fd, c->err);

	it->own_found = rc == 0 ? sc_zalloc(sizeof(*it->own_found)) : NULL;
	if (rc == 0 && !it->own_found)
		rc = sc_nomem(c->err);
	work.fd = fd;
	if (rc == 0)
		rc = rs_format_parse(it->format, &file, it->own_found, c->err);
	if (rc < 0)
		return rc;
	it->found = it->own_found;
	return rs_blob_get_found(c->s->blobs, it->blob, it->format, it->bytes, work.any_object ? NULL : it->found,
				 &it->parsed, c->err);
}

/* Refuses a tensor that a rule cuts though its file keeps it as an object: nobody would follow the rule. */
static int refuse_left(struct commit *c, const struct item *it)
{
	for (size_t i = 0; it->found->left && it->found->left[i]; i++) {
		const char *name = it->found->left[i];
		struct meta_caps caps = {0};
		const struct meta_rule *r = meta_layout_first(c->layout, c->topo.pp > 1, it->path, name, &caps);

		if (r && r->nr_cuts)
			return sc_fail(c->err, SC_E_UNSUPPORTED, "tensor '%s' is cut by the layout ('%s'), but is of a "
				       "kind that stays as it is: a subclass, quantized, sparse, complex128 or such; "
				       "save a plain tensor, or give it the rule 'object'", name, r->text);
	}
	return 0;
}

/* Adds to a parser's refusal what to do. */
static int advise(struct commit *c, const struct item *it, int rc)
{
	struct sc_err why = *c->err;

	if (rc != SC_E_FORMAT && rc != SC_E_UNSUPPORTED && rc != SC_E_LIMIT)
		return rc;
	if (it->format->agree)
		return sc_fail(c->err, rc, "%s; write the file again, or remove it; the line 'plain %s' in the layout "
			       "keeps it as it is", why.msg, it->path);
	return sc_fail(c->err, rc, "%s; or the line 'plain %s' in the layout keeps the file as it is", why.msg,
		       it->path);
}

int rs_commit_parse(struct commit *c, struct item *it)
{
	int rc = rs_commit_reach(c, it);

	if (rc < 0)
		return rc;
	if (it->format->agree || it->format == &rs_format_plain) {
		rc = rs_blob_get(c->s->blobs, it->blob, it->format, it->bytes, &it->parsed, c->err);
		if (rc == 0)
			it->found = &it->parsed->found;
		return rc < 0 ? advise(c, it, rc) : 0;
	}
	rc = parse_own(c, it);
	if (rc == 0)
		rc = refuse_left(c, it);
	return rc < 0 ? advise(c, it, rc) : 0;
}

/* Files of the job itself are opaque, as are those that the layout calls plain, and what no format claims unless a
 * rule speaks of its bytes. */
int rs_commit_find_format(struct commit *c, struct item *it, bool *ret_opaque)
{
	struct work_file work = {it->blob, -1, c, it, false};
	struct rs_file file = {it->path, it->bytes, &work, read_work};
	struct meta_caps caps;
	int rc = 0;

	it->format = &rs_format_plain;
	if (it->rank != RS_SHARED && !meta_layout_is_plain(c->layout, it->path))
		rc = rs_format_of(&file, &it->format, c->err);
	sc_closep(&work.fd);
	*ret_opaque = it->format == &rs_format_plain &&
		      (it->rank == RS_SHARED || !meta_layout_first(c->layout, c->topo.pp > 1, it->path, "", &caps));
	return rc < 0 ? sc_wrap(c->err, rc, "rank %u: '%s'", it->rank, it->path) : 0;
}
