/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds views: by their place, as a job's head, by number or tag, or at another topology.  Makes a new head known to
 * all who look.
 */
#include "reshard/version/state/state_i.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rs_view *find_view(struct rs_service *s, uint64_t place)
{
	for (struct rs_view **at = &s->views.first; *at; at = &(*at)->next)
		if (rs_view_has(*at, place)) {
			struct rs_view *v = *at;

			*at = v->next;
			v->next = s->views.first;
			s->views.first = v;
			return rs_view_ref(v);
		}
	return NULL;
}

static bool has_folders(const struct rs_version *v)
{
	for (size_t i = 0; i < v->nr_sets; i++)
		if (v->sets[i]->folder)
			return true;
	return false;
}

/* Finds a view of a version at a topology, without checkpoint folders: a view that is kept; or `good`, if a kept view
 * has the same version object, which then has the storage of now.  Returns a reference, or NULL. */
static struct rs_view *find_like(struct rs_service *s, uint64_t version, const char *topology, struct rs_view *good)
{
	struct rs_view *found = NULL;
	bool is_good = false;

	(void)pthread_mutex_lock(&s->lock);
	for (struct rs_view *v = s->views.first; v && !found; v = v->next) {
		if (v->version->id != version || has_folders(v->version))
			continue;
		is_good |= good && good->version == v->version;
		if (strcmp(v->topo.text, topology) == 0)
			found = v;
	}
	if (!found && is_good)
		found = good;
	if (found)
		(void)rs_view_ref(found);
	(void)pthread_mutex_unlock(&s->lock);
	return found;
}

/* Loads a view of a version as its row says, without its form. */
static int load_view(struct rs_service *s, uint64_t version, const struct rs_form_said *said, uint64_t id,
		     uint64_t place, struct rs_view **ret, struct sc_err *err)
{
	struct rs_version *v = NULL;
	struct meta_topology topo = {0};
	struct rs_job *job;
	int rc = rs_version_load(s, version, &v, err);

	if (rc < 0)
		return rc;
	job = rs_job_by_id(s, v->job);
	if (!job)
		rc = sc_fail(err, SC_E_NOT_FOUND, "version %" PRIu64 " has no job", version);
	if (rc == 0)
		rc = meta_topology_parse(v->layout, *said->topology ? said->topology : v->topo.text, &topo, err);
	if (rc == 0 && !rs_has_place(id, topo.ranks, place))
		rc = sc_fail(err, SC_E_NOT_FOUND, "catalog: no view has the number %" PRIu64, place);
	if (rc == 0 && said->folders)
		rc = rs_version_add_folders(s, v, &topo, err);
	if (rc == 0)
		rc = rs_view_new(job, v, id, &topo, ret, err);
	else
		rs_version_unref(v);
	meta_topology_done(&topo);
	return rc;
}

/* Makes the view of a version that a text describes, and that must have this place.  `good`: a view at its topology, or
 * NULL. */
static int make_view(struct rs_service *s, uint64_t version, char *text, uint64_t id, uint64_t place,
		     struct rs_view *good, struct rs_view **ret, struct sc_err *err)
{
	struct rs_form_said said;
	struct rs_view *like = NULL;
	int rc;

	rs_form_read(text, &said);
	if (*said.topology && !said.folders)
		like = find_like(s, version, said.topology, good);
	if (like && rs_has_place(id, like->topo.ranks, place))
		rc = rs_view_like(like, id, ret, err);
	else
		rc = load_view(s, version, &said, id, place, ret, err);
	rs_view_unref(s, like);
	if (rc < 0)
		return rc;
	(*ret)->own = !*said.topology;
	rc = rs_view_show_as(*ret, &said, err);
	if (rc < 0)
		rs_view_unref(s, *ret);
	return rc;
}

struct view_row {
	uint64_t id, version;
	char text[RS_FORM_TEXT_BYTES];
};

static int on_view(void *arg, const struct meta_view_row *found)
{
	struct view_row *row = arg;

	row->id = found->id;
	row->version = found->version;
	(void)snprintf(row->text, sizeof(row->text), "%s", found->topology);
	return 0;
}

/* Finds or makes the view that has a place.  `good` is that of make_view(). */
static int view_at(struct rs_service *s, uint64_t place, struct rs_view *good, struct rs_view **ret,
		   struct sc_err *err)
{
	struct rs_view *view;
	struct view_row row;
	int rc;

	(void)pthread_mutex_lock(&s->lock);
	view = find_view(s, place);
	(void)pthread_mutex_unlock(&s->lock);
	if (view) {
		*ret = view;
		return 0;
	}
	for (;;) {
		uint64_t loaded = __atomic_load_n(&s->leaving.times, __ATOMIC_ACQUIRE);

		rc = meta_view_at(s->catalog, place, on_view, &row, err);
		if (rc == 0)
			rc = make_view(s, row.version, row.text, row.id, place, good, ret, err);
		if (rc < 0 || rs_view_keep_loaded(s, *ret, loaded))
			break;
		rs_view_unref(s, *ret); /* it may be of a storage that is gone */
	}
	return rc == SC_E_NOT_FOUND && (*ret = rs_view_leaving(s, place)) ? 0 : rc;
}

int rs_view_at(struct rs_service *s, uint64_t place, struct rs_view **ret, struct sc_err *err)
{
	return view_at(s, place, NULL, ret, err);
}

bool rs_view_is_current(struct rs_service *s, const struct rs_view *view)
{
	struct rs_view *now = NULL;
	struct sc_err ignored;
	bool is = rs_view_at(s, view->id, &now, &ignored) == 0 && now == view &&
		  __atomic_load_n(&now->kept, __ATOMIC_ACQUIRE);

	rs_view_unref(s, now);
	return is;
}

int rs_view_load(struct rs_service *s, uint64_t version, struct rs_view **ret, struct sc_err *err)
{
	uint64_t id;
	int rc = meta_view_own(s->catalog, version, &id, err);

	return rc < 0 ? rc : rs_view_at(s, id, ret, err);
}

/* Gives the newest version its view again. */
static int mend_head(struct rs_service *s, uint64_t version, struct sc_err *err)
{
	struct rs_version *v = NULL;
	uint64_t nr, place;
	int rc = rs_version_load(s, version, &v, err);

	if (rc == SC_E_NOT_FOUND)
		return sc_fail(err, SC_E_CORRUPT, "the catalog has no row of its newest version (row %" PRIu64 "): put "
			       "a backup of the store back; without one, 'scalai fsck --rebuild' makes the catalog of "
			       "a store anew that is in no cluster, and a node of a cluster is replaced by one with "
			       "another name and an empty store", version);
	if (rc < 0)
		return rc;
	nr = v->nr;
	rc = meta_catalog_begin(s->catalog, true, err);
	if (rc == 0) {
		rc = meta_version_unhide(s->catalog, version, err);
		if (rc == 0)
			rc = meta_view_put(s->catalog, version, "", v->topo.ranks, &place, err);
		rc = meta_catalog_end(s->catalog, rc, err);
	}
	rs_version_unref(v);
	if (rc == 0)
		sc_log(SC_LOG_WARN, "version %" PRIu64 ", the newest one here of its job, had no view, by a fault of a "
		       "program before this one: it has one again", nr);
	return rc;
}

int rs_view_load_head(struct rs_service *s, uint64_t version, struct rs_view **ret, struct sc_err *err)
{
	uint64_t id;
	int rc = meta_view_own(s->catalog, version, &id, err);

	if (rc == SC_E_NOT_FOUND)
		rc = mend_head(s, version, err);
	return rc < 0 ? rc : rs_view_load(s, version, ret, err);
}

int rs_view_head(struct rs_service *s, struct rs_job *job, struct rs_view **ret, struct sc_err *err)
{
	(void)s;
	*ret = rs_job_head(job);
	return *ret ? 0 : sc_fail(err, SC_E_NOT_FOUND, "the job has no version yet; write ranks, then commit");
}

/* Gives a view of a version without checkpoint folders at a topology (NULL: that of the view): the view itself, or
 * another one without a number. */
static int present(struct rs_view *of, const char *topology, struct rs_view **ret, struct sc_err *err)
{
	struct meta_topology topo = {0};
	int rc = meta_topology_parse(of->version->layout, topology ? topology : of->topo.text, &topo, err);

	if (rc == 0 && strcmp(topo.text, of->topo.text) == 0) {
		*ret = rs_view_ref(of);
	} else if (rc == 0) {
		(void)__atomic_add_fetch(&of->version->refs, 1, __ATOMIC_RELAXED);
		rc = rs_view_new(of->job, of->version, 0, &topo, ret, err);
		if (rc == 0) {
			rc = rs_view_judge(*ret, err);
			if (rc < 0) {
				rs_view_unref(of->job->service, *ret);
				*ret = NULL;
			}
		}
	}
	meta_topology_done(&topo);
	return rc;
}

int rs_view_present(struct rs_service *s, struct rs_job *job, const char *topology, struct rs_view **ret,
		    struct sc_err *err)
{
	struct rs_view *head = NULL;
	int rc = rs_view_head(s, job, &head, err);

	if (rc == 0)
		rc = present(head, topology, ret, err);
	rs_view_unref(s, head);
	return rc;
}

/* Gives a number to the view of a version in a form; the view has the checkpoint folders of the version's tree, if the
 * form shows such. */
static int put_view(struct rs_service *s, const struct rs_view *own, struct rs_form_said said,
		    const struct meta_topology *topo, uint64_t *ret_id, struct sc_err *err)
{
	int any = said.form->folders && said.folders ? rs_folders_any(s->folders, own->version->tree, err) : 0;
	char text[RS_FORM_TEXT_BYTES];

	if (any < 0)
		return any;
	said.folders = any;
	said.topology = topo->text;
	rs_form_text(&said, text);
	return meta_view_put(s->catalog, own->version->id, text, topo->ranks, ret_id, err);
}

static int show_as(struct rs_service *s, struct rs_view *of, const char *topology, const struct rs_form *form,
		   bool archived, struct rs_view **ret, struct sc_err *err)
{
	struct rs_view *good = NULL; /* before it gets a number */
	char options[RS_CONFIG_GLOB_BYTES + 32];
	const struct rs_config config = rs_config_of(of->job);
	struct rs_form_said said = {.form = form, .options = options, .archived = archived, .folders = true};
	uint64_t id;
	int rc = topology ? present(of, topology, &good, err) : 0;

	rs_config_hf(&config, options, sizeof(options));
	if (rc == 0)
		rc = put_view(s, of, said, good ? &good->topo : &of->topo, &id, err);
	if (rc == 0)
		rc = view_at(s, id, good, ret, err);
	rs_view_unref(s, good);
	return rc;
}

int rs_view_as(struct rs_service *s, struct rs_job *job, const char *topology, const struct rs_form *form,
	       struct rs_view **ret, struct sc_err *err)
{
	struct rs_view *of, *head;
	bool again;
	int rc;

	do {
		of = NULL;
		rc = rs_view_head(s, job, &of, err);
		if (rc == 0)
			rc = show_as(s, of, topology, form, false, ret, err);
		/* newer versions may have come meanwhile, and this one may have been dropped */
		head = rs_job_head(job);
		again = rc < 0 && of && head && head->version->id != of->version->id;
		rs_view_unref(s, head);
		rs_view_unref(s, of);
	} while (again);
	return rc;
}

int rs_view_in(struct rs_service *s, struct rs_view *of, const char *topology, const struct rs_form *form,
	       struct rs_view **ret, struct sc_err *err)
{
	return show_as(s, of, topology, form, true, ret, err);
}

int rs_view_of_path(struct rs_service *s, struct rs_view *view, const char *path, struct rs_view **ret,
		    struct sc_err *err)
{
	const struct rs_formed x = rs_view_formed(view);
	struct rs_view *own = NULL;
	uint32_t nr;
	uint64_t id;
	int rc;

	if (!rs_form_version(view->form, &x, path, &nr) || nr == view->version->nr) {
		*ret = rs_view_ref(view);
		return 0;
	}
	rc = rs_view_version(s, view->job, nr, &own, err);
	if (rc == 0)
		rc = put_view(s, own, (struct rs_form_said){.form = view->form, .options = view->options,
							    .archived = view->archived, .folders = true},
			      view->form->whole ? &own->topo : &view->topo, &id, err);
	rs_view_unref(s, own);
	return rc < 0 ? rc : rs_view_at(s, id, ret, err);
}

static int on_version(void *arg, const struct meta_version_row *row)
{
	struct rs_version_found *f = arg;

	if (f->tag ? row->tag && strcmp(row->tag, f->tag) == 0 : row->nr == f->nr) {
		f->nr = row->nr;
		f->id = row->id;
	}
	return 0;
}

bool rs_is_version_number(const char *word)
{
	return *word && word[strspn(word, "0123456789")] == 0 && strlen(word) < 19;
}

static int find(struct rs_service *s, struct rs_job *job, struct rs_version_found *f, struct sc_err *err)
{
	int rc = meta_version_each(s->catalog, job->id, on_version, f, err);

	if (rc < 0 || f->id)
		return rc;
	return f->tag ? sc_fail(err, SC_E_NOT_FOUND, "no version '%s': it is neither a version's number nor a tag",
		f->tag)
		      : sc_fail(err, SC_E_NOT_FOUND, "there is no version %" PRIu64 "; .ctl/versions lists those that "
				"there are", f->nr);
}

int rs_version_find(struct rs_service *s, struct rs_job *job, const char *word, struct rs_version_found *f,
		    struct sc_err *err)
{
	*f = (struct rs_version_found){0};
	if (rs_is_version_number(word))
		f->nr = strtoull(word, NULL, 10);
	else
		f->tag = word;
	return find(s, job, f, err);
}

int rs_view_version(struct rs_service *s, struct rs_job *job, uint64_t nr, struct rs_view **ret, struct sc_err *err)
{
	struct rs_version_found f = {.nr = nr};
	int rc = find(s, job, &f, err);

	return rc < 0 ? rc : rs_view_load(s, f.id, ret, err);
}

int rs_view_named(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret, struct sc_err *err)
{
	struct rs_version_found f;
	int rc = rs_version_find(s, job, word, &f, err);

	return rc < 0 ? rc : rs_view_load(s, f.id, ret, err);
}

int rs_view_archived(struct rs_service *s, struct rs_job *job, const char *word, struct rs_view **ret,
		     struct sc_err *err)
{
	struct rs_view *own = NULL;
	uint64_t id;
	int rc = rs_view_named(s, job, word, &own, err);

	if (rc == 0)
		rc = put_view(s, own, (struct rs_form_said){.form = &rs_form_ranks}, &own->topo, &id, err);
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

struct rs_view *rs_job_head(struct rs_job *job)
{
	struct rs_view *head;

	(void)pthread_mutex_lock(&job->state);
	head = job->head ? rs_view_ref(job->head) : NULL;
	(void)pthread_mutex_unlock(&job->state);
	return head;
}

struct rs_view *rs_job_set_head(struct rs_job *job, struct rs_view *head)
{
	struct rs_view *old = job->head;

	job->head = head;
	if (head != old) /* a discard changes only what is on top of it */
		rs_made_leave(job, head ? head->id : 0);
	job->mtime_ns = sc_now_wall_ns();
	return old;
}

void rs_job_head_was_set(struct rs_job *job, struct rs_view *head, struct rs_view *old)
{
	struct rs_service *s = job->service;

	if (head && head != old)
		rs_view_keep(s, head);
	if (old && head != old && !__atomic_load_n(&old->kept, __ATOMIC_ACQUIRE))
		rs_images_forget(s, old);
	rs_view_unref(s, old);
	s->events.names_changed(s->events.arg);
	rs_job_tell(job);
}

