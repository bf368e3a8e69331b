/* SPDX-License-Identifier: Apache-2.0 */
/* Versions by number or tag; tags, which keep a version for ever. */
#include "reshard/job/service_i.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct find {
	const char *tag;
	uint64_t nr, id;
};

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct find *f = arg;

	if (f->tag ? row->tag && strcmp(row->tag, f->tag) == 0 : row->nr == f->nr) {
		f->nr = row->nr;
		f->id = row->id;
	}
	return 0;
}

static bool is_number(const char *word)
{
	return *word && word[strspn(word, "0123456789")] == 0 && strlen(word) < 19;
}

static int find(struct rs_service *s, struct rs_job *job, struct find *f, struct sc_err *err)
{
	int rc = meta_version_each(s->catalog, job->id, on_version, f, err);

	if (rc < 0 || f->id)
		return rc;
	return f->tag ? sc_fail(err, SC_E_NOT_FOUND, "no version has the tag '%s', and it is no number", f->tag)
		      : sc_fail(err, SC_E_NOT_FOUND, "there is no version %" PRIu64, f->nr);
}

static int find_named(struct rs_service *s, struct rs_job *job, const char *word, struct find *f, struct sc_err *err)
{
	*f = (struct find){0};
	if (is_number(word))
		f->nr = strtoull(word, NULL, 10);
	else
		f->tag = word;
	return find(s, job, f, err);
}

int rs_view_version(struct rs_service *s, struct rs_job *job, uint64_t nr, struct rs_view **ret, struct sc_err *err)
{
	struct find f = {.nr = nr};
	int rc = find(s, job, &f, err);

	return rc < 0 ? rc : rs_view_load(s, job, f.id, ret, err);
}

int rs_view_named(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret, struct sc_err *err)
{
	struct find f;
	int rc = find_named(s, job, word, &f, err);

	return rc < 0 ? rc : rs_view_load(s, job, f.id, ret, err);
}

int rs_view_archived(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret,
		     struct sc_err *err)
{
	struct rs_view *own = NULL;
	uint64_t id;
	int rc = rs_view_named(s, job, word, &own, err);

	if (rc == 0)
		rc = meta_view_put(s->catalog, own->version->id, own->topo.text, own->topo.ranks, &id, err);
	rs_view_unref(s, own);
	return rc < 0 ? rc : rs_view_at(s, id, ret, err);
}

struct each_nr {
	int (*each)(void *arg, uint64_t nr);
	void *arg;
};

static int on_nr(void *arg, const struct meta_version_row *row)
{
	const struct each_nr *e = arg;

	return e->each(e->arg, row->nr);
}

int rs_versions_each(struct rs_service *s, struct rs_job *job, int (*each)(void *arg, uint64_t nr),
		     void *arg, struct sc_err *err)
{
	struct each_nr e = {each, arg};

	return meta_version_each(s->catalog, job->id, on_nr, &e, err);
}

/* A name that is no number, and may be a folder's (.v/TAG). */
static int check_tag(const char *tag, struct sc_err *err)
{
	bool good = *tag && *tag != '.' && !is_number(tag) && strlen(tag) <= 100;

	for (const char *p = tag; *p; p++)
		good = good && (unsigned char)*p > ' ' && *p != '/' && *p != 127;
	return good ? 0 : sc_fail(err, SC_E_COMMAND, "tag '%s': a tag is a word that is no number, at most 100 bytes, without '/' and a "
				  "leading '.'", tag);
}

int rs_job_tag(struct rs_service *s, struct rs_job *job, const char *text, struct sc_err *err)
{
	char *copy = sc_strdup(text), *save = NULL, *verb, *version, *tag;
	struct find f;
	bool untag;
	int rc = copy ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	verb = strtok_r(copy, " \t\n", &save);
	version = verb ? strtok_r(NULL, " \t\n", &save) : NULL;
	tag = version ? strtok_r(NULL, " \t\n", &save) : NULL;
	untag = verb && strcmp(verb, "untag") == 0;
	if (!version || (!untag && strcmp(verb, "tag") != 0) || untag == (tag != NULL) || strtok_r(NULL, " \t\n", &save))
		rc = sc_fail(err, SC_E_COMMAND, "write 'tag VERSION NAME' or 'untag VERSION'");
	if (rc == 0 && tag)
		rc = check_tag(tag, err);
	(void)pthread_mutex_lock(&job->command);
	if (rc == 0)
		rc = find_named(s, job, version, &f, err);
	if (rc == 0)
		rc = meta_catalog_begin(s->catalog, rs_job_syncs(job), err);
	if (rc == 0)
		rc = meta_catalog_end(s->catalog, meta_version_set_tag(s->catalog, f.id, tag, err), err);
	(void)pthread_mutex_unlock(&job->command);
	if (rc == SC_E_EXISTS)
		rc = sc_fail(err, SC_E_EXISTS, "another version has the tag '%s'; untag it first", tag);
	sc_sys.release(copy);
	if (rc == 0)
		rs_job_tell(job);
	return rc;
}
