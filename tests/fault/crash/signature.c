/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/crash/crash.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "reshard/worktree/rebase/turn_i.h"

struct signature {
	XXH3_state_t *head, *tree;
	struct rs_service *s;
	struct rs_job *job;
	struct rs_view *view;		/* NULL: with the working tree */
	uint32_t rank;
	struct {
		size_t nr, room;
		uint64_t *at;		/* of files with several names, in the order in which they are met */
	} linked;
};

struct names {
	size_t nr, room;
	char **at;
	bool is_root;			/* the job's folder: names of ranks are no names in it, but ranks */
	struct {
		size_t nr, room;
		uint32_t *at;
	} ranks;
};

static void add(XXH3_state_t *x, const void *p, size_t n)
{
	(void)XXH3_64bits_update(x, p, n);
}

static void add_number(XXH3_state_t *x, uint64_t n)
{
	add(x, &n, sizeof(n));
}

static void add_fd(XXH3_state_t *x, int fd)
{
	char buffer[65536];
	ssize_t n;

	for (off_t at = 0; (n = pread(fd, buffer, sizeof(buffer), at)) > 0; at += n)
		add(x, buffer, (size_t)n);
	(void)close(fd);
}

/* The bytes of the tensors, in the canonical form, whatever holds them.  A renamed file has the path of the version. */
static void add_view(struct signature *g, const char *path, const struct rs_look *look, XXH3_state_t *x)
{
	struct rs_view *view = g->view;
	uint32_t rank = g->rank;
	struct rs_image *im = NULL;
	struct sc_err err = {0};
	unsigned char *bytes;

	if (!view) {
		must(rs_view_at(g->s, look->place, &view, &err), &err);
		must(rs_path_text(g->s, look->path_id, &path, &err), &err);
		rank = rs_view_rank(view, look->place);
	}
	must(rs_view_image(g->s, view, rank, path, true, true, &im, &err), &err);
	bytes = malloc(im->bytes + 1);
	must(rs_image_fetch(im, 0, im->bytes, bytes, &err), &err);
	add(x, bytes, im->bytes);
	free(bytes);
	rs_image_unref(g->s, im);
	if (!g->view)
		rs_view_unref(g->s, view);
}

static void add_data(struct signature *g, const char *path, XXH3_state_t *x)
{
	struct rs_data_file *f = NULL;
	struct sc_err err = {0};
	unsigned char *bytes;

	must(rs_data_open(g->s, g->view, g->rank, path, &f, &err), &err);
	bytes = malloc(rs_data_bytes(f) + 1);
	must(rs_data_read(f, 0, rs_data_bytes(f), bytes, &err), &err);
	add(x, bytes, rs_data_bytes(f));
	free(bytes);
	rs_data_close(g->s, f);
}

static void add_target(struct signature *g, const char *path, const struct rs_look *look, XXH3_state_t *x)
{
	struct sc_buf target = {0};
	struct sc_err err = {0};

	must(g->view ? rs_view_link(g->s, g->view, g->rank, path, &target, &err)
		     : rs_tree_link_text(g->s, g->job, look->ino, &target, &err), &err);
	add(x, target.text, target.bytes);
	sc_buf_done(&target);
}

/* They come in no order. */
static int on_xattr(void *arg, struct meta_bytes name, struct meta_bytes value)
{
	XXH3_state_t *one = XXH3_createState();

	(void)XXH3_64bits_reset(one);
	add_number(one, name.nr);
	add(one, name.at, name.nr);
	add(one, value.at, value.nr);
	*(uint64_t *)arg += XXH3_64bits_digest(one);
	(void)XXH3_freeState(one);
	return 0;
}

static void add_xattrs(struct signature *g, const struct rs_look *look, XXH3_state_t *x)
{
	struct sc_buf names = {0}, value = {0};
	struct sc_err err = {0};
	struct rs_below *below;
	uint64_t sum = 0;

	if (g->view) {
		must(rs_view_below(g->view, &below, &err), &err);
		must(rs_below_lower(below).xattrs(rs_below_lower(below).arg, look->ino, on_xattr, &sum, &err), &err);
	} else {
		must(rs_tree_xattrs(g->s, g->job, look->ino, &names, &err), &err);
	}
	for (size_t at = 0; at < names.bytes;) {
		struct meta_bytes name = {names.text + at, strlen(names.text + at)};

		sc_buf_reset(&value);
		if (rs_tree_xattr(g->s, g->job, look->ino, name, &value, &err) != 1)
			die("an attribute that is listed is not there: %s", err.msg);
		(void)on_xattr(&sum, name, (struct meta_bytes){value.text, value.bytes});
		at += name.nr + 1;
	}
	add_number(x, sum);
	sc_buf_done(&names);
	sc_buf_done(&value);
}

/* Numbers are others when it is done again: which names are one file is told by where it was met first. */
static void add_links(struct signature *g, const struct rs_look *look, XXH3_state_t *x)
{
	size_t i = 0;

	add_number(x, look->nlink);
	if (look->nlink < 2 || look->kind == RS_DIR)
		return;
	while (i < g->linked.nr && g->linked.at[i] != look->ino)
		i++;
	if (i == g->linked.nr && sc_vec_push(&g->linked, look->ino) < 0)
		die("out of memory");
	add_number(x, i);
}

static void add_file(struct signature *g, const char *path, const struct rs_look *look, XXH3_state_t *x)
{
	struct rs_owner owner = look->owner;
	struct sc_err err = {0};
	struct stat st;
	int fd;

	if (look->kind == RS_WORK) {
		must(rs_work_open(g->s, g->job, look->blob, O_RDONLY, &fd, &err), &err);
		if (fstat(fd, &st) < 0)
			die("a file of the working tree cannot be asked");
		owner = (struct rs_owner){st.st_uid, st.st_gid, st.st_mode & 07777};
		add_fd(x, fd);
	} else if (look->kind == RS_VIEW || (look->kind == RS_BLOB && g->rank != RS_SHARED && strstr(path, ".safetensors"))) {
		add_view(g, path, look, x);
	} else if (look->kind == RS_BLOB) {
		must(meta_store_open_blob(rs_service_store(g->s), look->blob, look->bytes, &fd, &err), &err);
		add_fd(x, fd);
	} else if (look->kind == RS_DATA && g->view) {
		add_data(g, path, x);
	} else if (look->kind == RS_LINK) {
		add_target(g, path, look, x);
	}
	add_number(x, owner.mode);
	add_number(x, owner.uid);
	add_number(x, owner.gid);
}

static int on_name(void *arg, const char *name, mode_t type)
{
	struct names *names = arg;
	char *end, *copy = strdup(name);
	unsigned long rank = strtoul(name, &end, 10);
	int rc;

	if (names->is_root && S_ISDIR(type) && *end == 0 && end != name) {
		free(copy);
		rc = sc_vec_push(&names->ranks, (uint32_t)rank);
	} else {
		rc = sc_vec_push(names, copy);
	}
	if (rc < 0)
		die("out of memory");
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int compare_ranks(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void add_path(struct signature *g, const char *path, struct names *ret_top);

/* Names come in any order, and are sorted. */
static void add_folder(struct signature *g, const char *path, struct names *ret_top)
{
	XXH3_state_t *x = g->view ? g->head : g->tree;
	struct names mine = {0}, *names = ret_top ? ret_top : &mine;
	struct sc_err err = {0};

	must(rs_list(g->s, g->job, g->view, g->rank, path, on_name, names, &err), &err);
	if (names->nr)
		qsort(names->at, names->nr, sizeof(*names->at), compare_names);
	add_number(x, names->nr);
	for (size_t i = 0; i < names->nr; i++) {
		char below[600];

		(void)snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "", names->at[i]);
		add(x, below, strlen(below) + 1);
		add_path(g, below, NULL);
		free(names->at[i]);
	}
	sc_vec_done(names);
}

/* All of a file or folder but its times and its number. */
static void add_path(struct signature *g, const char *path, struct names *ret_top)
{
	XXH3_state_t *x = g->view ? g->head : g->tree;
	struct sc_err err = {0};
	struct rs_look look;

	must(rs_look(g->s, g->job, g->view, g->rank, path, &look, &err), &err);
	if (look.kind == RS_NONE)
		die("'%s' is listed and not there", path);
	add_number(x, look.type);
	add_number(x, look.rdev);
	add_file(g, path, &look, x);
	add_links(g, &look, x);
	add_xattrs(g, &look, x);
	if (look.kind == RS_DIR)
		add_folder(g, path, ret_top);
}

/* The job's folder, then its ranks'. */
static void add_all(struct signature *g)
{
	struct names top = {.is_root = true};

	g->rank = RS_SHARED;
	g->linked.nr = 0;
	add_path(g, "", &top);
	if (top.ranks.nr)
		qsort(top.ranks.at, top.ranks.nr, sizeof(*top.ranks.at), compare_ranks);
	for (size_t i = 0; i < top.ranks.nr; i++) {
		g->rank = top.ranks.at[i];
		add_number(g->view ? g->head : g->tree, g->rank);
		add_path(g, "", NULL);
	}
	sc_vec_done(&top.ranks);
}

static void add_job(struct signature *g)
{
	struct rs_service *s = g->s;
	struct sc_buf text = {0};
	struct sc_err err = {0};
	char name[SC_NAME_BYTES_MAX + 1];

	must(rs_render_config(s, g->job, &text, &err), &err);
	must(rs_render_data(s, g->job, &text, &err), &err);
	must(rs_render_topology(s, g->job, &text, &err), &err);
	must(rs_render_layout(s, g->job, &text, &err), &err);
	sc_buf_printf(&text, "%s\n", rs_job_name(g->job, name, sizeof(name)));
	add(g->head, text.text, text.bytes);
	sc_buf_done(&text);
	if (rs_view_head(s, g->job, &g->view, &err) == 0) {
		add_all(g);
		rs_view_unref(s, g->view);
		g->view = NULL;
	}
	add_all(g);
}

struct seen look(struct rs_service *s)
{
	struct signature g = {.head = XXH3_createState(), .tree = XXH3_createState(), .s = s};
	struct rs_view *head = NULL;
	struct sc_err err = {0};
	struct seen seen;

	(void)XXH3_64bits_reset(g.head);
	(void)XXH3_64bits_reset(g.tree);
	for (size_t i = 0; (g.job = rs_job_at(s, i)); i++)
		if (!rs_job_is_removed(g.job))
			add_job(&g);
	seen.has_head = rs_view_head(s, job_of(s), &head, &err) == 0;
	rs_view_unref(s, head);
	seen.head = XXH3_64bits_digest(g.head);
	seen.tree = XXH3_64bits_digest(g.tree);
	sc_vec_done(&g.linked);
	(void)XXH3_freeState(g.head);
	(void)XXH3_freeState(g.tree);
	return seen;
}
