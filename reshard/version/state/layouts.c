/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the layouts that versions use, which are few and small: each is parsed once, and lives as long as the
 * service. */
#include "reshard/version/state/state_i.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct presets {
	struct rs_service *s;
	struct sc_arena arena;
	struct sc_err why;	/* a preset could not be read */
};

static const char *read_preset(struct presets *p, int fd, const char *path)
{
	struct stat st;
	char *text;

	if (sc_sys.fstat(fd, &st) < 0 || (!S_ISREG(st.st_mode) && (errno = EINVAL))) {
		(void)sc_fail_sys(&p->why, errno, "cannot read the preset '%s'", path);
		return NULL;
	}
	if ((uint64_t)st.st_size > SC_LAYOUT_BYTES_MAX) {
		(void)sc_fail(&p->why, SC_E_LIMIT, "preset '%s': %" PRIu64 " bytes, at most %u", path,
			      (uint64_t)st.st_size, SC_LAYOUT_BYTES_MAX);
		return NULL;
	}
	text = sc_arena_alloc(&p->arena, (size_t)st.st_size + 1);
	if (!text) {
		(void)sc_nomem(&p->why);
		return NULL;
	}
	if (sc_pread_all(fd, text, (size_t)st.st_size, 0) < 0) {
		(void)sc_fail_sys(&p->why, errno, "cannot read the preset '%s'", path);
		return NULL;
	}
	text[st.st_size] = 0;
	return text;
}

/* Finds a preset.  The user's own presets come before those that ship with Scalai.  If one of the user's cannot be
 * read, that is an error: it might say something else than ours of the same name. */
static const char *find_preset(void *arg, const char *name)
{
	struct presets *p = arg;
	sc_cleanup(sc_closep) int fd = -1;
	char path[512];

	if (!p->s->preset_dir || strchr(name, '/') || *name == '.')
		return meta_preset_builtin(NULL, name);
	(void)snprintf(path, sizeof(path), "%s/%s.layout", p->s->preset_dir, name);
	fd = sc_sys.openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0 && errno == ENOENT)
		return meta_preset_builtin(NULL, name);
	if (fd < 0) {
		(void)sc_fail_sys(&p->why, errno, "cannot open the preset '%s'", path);
		return NULL;
	}
	return read_preset(p, fd, path);
}

static int parse_layout(struct rs_service *s, const char *text, struct meta_layout **ret,
		    struct sc_err *err)
{
	struct presets p = {.s = s};
	int rc = meta_layout_parse(text, find_preset, &p, ret, err);

	sc_arena_done(&p.arena);
	if (rc < 0 && p.why.code) {
		*err = p.why;
		rc = err->code;
	}
	return rc;
}

struct layout_load {
	struct rs_kept_layout *kept;
	struct sc_err *err;
};

static int on_layout(void *arg, uint64_t id, const char *source, const char *flat)
{
	struct layout_load *l = arg;
	struct meta_layout *layout = NULL;
	struct rs_kept_layout *kept;
	int rc = meta_layout_parse(flat, NULL, NULL, &layout, l->err);

	if (rc < 0)
		return rc;
	kept = sc_arena_alloc(&layout->arena, sizeof(*kept));
	if (kept)
		*kept = (struct rs_kept_layout){id, layout, sc_arena_copy(&layout->arena, source, strlen(source))};
	if (!kept || !kept->source) {
		meta_layout_free(layout);
		return sc_nomem(l->err);
	}
	layout->source = kept->source; /* for what refusals say of it */
	l->kept = kept;
	return 0;
}

static const struct rs_kept_layout *find_layout(struct rs_service *s, uint64_t id)
{
	for (size_t i = 0; i < s->layouts.nr; i++)
		if (s->layouts.at[i]->id == id)
			return s->layouts.at[i];
	return NULL;
}

int rs_layout_by_id(struct rs_service *s, uint64_t id, const struct rs_kept_layout **ret,
		    struct sc_err *err)
{
	struct layout_load load = {.err = err};
	const struct rs_kept_layout *kept;
	int rc = 0;

	(void)pthread_mutex_lock(&s->lock);
	kept = find_layout(s, id);
	(void)pthread_mutex_unlock(&s->lock);
	if (!kept) {
		rc = meta_layout_get(s->catalog, id, on_layout, &load, err);
		if (rc < 0)
			return rc;
		(void)pthread_mutex_lock(&s->lock);
		kept = find_layout(s, id);
		if (!kept && sc_vec_push(&s->layouts, load.kept) < 0)
			rc = sc_nomem(err);
		if (!kept && rc == 0)
			kept = sc_steal(&load.kept);
		(void)pthread_mutex_unlock(&s->lock);
		if (load.kept)
			meta_layout_free(load.kept->layout);
	}
	if (rc == 0)
		*ret = kept;
	return rc;
}

int rs_layout_keep(struct rs_service *s, const char *text, uint64_t *ret_id,
		   const struct meta_layout **ret, struct sc_err *err)
{
	struct meta_layout *l = NULL;
	const struct rs_kept_layout *kept;
	int rc = parse_layout(s, text, &l, err);

	if (rc == 0)
		rc = meta_layout_put(s->catalog, text, l->flat, ret_id, err);
	meta_layout_free(l);
	if (rc == 0)
		rc = rs_layout_by_id(s, *ret_id, &kept, err);
	if (rc == 0)
		*ret = kept->layout;
	return rc;
}
