/* SPDX-License-Identifier: Apache-2.0 */
/* Gives numbers to paths, of which nodeids and rows of the catalog are made.  They live as long as the store. */
#include "reshard/version/state/state_i.h"

#include <inttypes.h>
#include <string.h>

static int paths_add(struct rs_service *s, uint64_t id, const char *text, struct sc_err *err)
{
	int rc = 0;

	(void)pthread_mutex_lock(&s->lock);
	while (rc == 0 && s->paths.nr <= id)
		rc = sc_vec_push(&s->paths, NULL) < 0 ? sc_nomem(err) : 0;
	if (rc == 0 && !s->paths.at[id]) {
		char *copy = sc_arena_copy(&s->paths.arena, text, strlen(text));

		if (!copy || sc_map_put(&s->paths.ids, copy, strlen(copy), (void *)(uintptr_t)id) < 0)
			rc = sc_nomem(err);
		else
			s->paths.at[id] = copy;
	}
	(void)pthread_mutex_unlock(&s->lock);
	return rc;
}

int rs_path_id(struct rs_job *job, const char *path, uint64_t *ret, struct sc_err *err)
{
	struct rs_service *s = job->service;
	uint64_t id;
	int rc;

	(void)pthread_mutex_lock(&s->lock);
	id = (uintptr_t)sc_map_get(&s->paths.ids, path, strlen(path));
	(void)pthread_mutex_unlock(&s->lock);
	if (!id) {
		rc = meta_path_put(s->catalog, path, &id, err);
		if (rc == 0)
			rc = paths_add(s, id, path, err);
		if (rc == SC_E_LIMIT)
			rs_job_refused(job, path, err);
		if (rc < 0)
			return rc;
	}
	*ret = id;
	return 0;
}

struct path_get {
	struct rs_service *s;
	struct sc_err *err;
};

static int on_path(void *arg, uint64_t id, const char *text, const char *unused)
{
	struct path_get *g = arg;

	(void)unused;
	return paths_add(g->s, id, text, g->err);
}

int rs_path_text(struct rs_service *s, uint64_t id, const char **ret, struct sc_err *err)
{
	struct path_get g = {s, err};

	for (int pass = 0; pass < 2; pass++) {
		const char *text;
		int rc;

		(void)pthread_mutex_lock(&s->lock);
		text = id < s->paths.nr ? s->paths.at[id] : NULL;
		(void)pthread_mutex_unlock(&s->lock);
		if (text) {
			*ret = text;
			return 0;
		}
		rc = pass ? 0 : meta_path_get(s->catalog, id, on_path, &g, err);
		if (rc < 0)
			return rc;
	}
	return sc_fail(err, SC_E_NOT_FOUND, "no path %" PRIu64, id);
}
