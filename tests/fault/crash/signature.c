/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fault/crash/crash.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

struct signature {
	XXH3_state_t *head, *tree;
	struct rs_service *s;
	struct rs_job *job;
	struct rs_view *view;		/* NULL: with the working tree */
	uint32_t rank;
	char folder[300];
};

static void add(XXH3_state_t *x, const void *p, size_t n)
{
	(void)XXH3_64bits_update(x, p, n);
}

static void add_fd(XXH3_state_t *x, int fd)
{
	char buffer[65536];
	ssize_t n;

	for (off_t at = 0; (n = pread(fd, buffer, sizeof(buffer), at)) > 0; at += n)
		add(x, buffer, (size_t)n);
	(void)close(fd);
}

static void add_view(struct signature *g, const char *path, XXH3_state_t *x)
{
	struct rs_image *im = NULL;
	struct rs_view *view = g->view;
	struct sc_err err = {0};
	unsigned char *bytes;

	if (!view)
		must(rs_view_head(g->s, g->job, &view, &err), &err);
	must(rs_view_image(g->s, view, g->rank, path, true, true, &im, &err), &err);
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

static int on_name(void *arg, const char *name, bool is_dir)
{
	struct signature *g = arg;
	XXH3_state_t *x = g->view ? g->head : g->tree;
	struct sc_err err = {0};
	struct rs_look look;
	char path[600], before[300];
	int fd;

	(void)snprintf(path, sizeof(path), "%s%s%s", g->folder, *g->folder ? "/" : "", name);
	add(x, path, strlen(path) + 1);
	must(rs_look(g->s, g->job, g->view, g->rank, path, &look, &err), &err);
	if (is_dir) {
		(void)snprintf(before, sizeof(before), "%s", g->folder);
		(void)snprintf(g->folder, sizeof(g->folder), "%s", path);
		must(rs_list(g->s, g->job, g->view, g->rank, path, on_name, g, &err), &err);
		(void)snprintf(g->folder, sizeof(g->folder), "%s", before);
	} else if (look.kind == RS_VIEW || (look.kind == RS_BLOB && g->rank != RS_SHARED && strstr(path, ".safetensors"))) {
		add_view(g, path, x); /* the bytes of the tensors, in the canonical form, whatever holds them */
	} else if (look.kind == RS_BLOB) {
		must(meta_store_open_blob(rs_service_store(g->s), look.blob, look.bytes, &fd, &err), &err);
		add_fd(x, fd);
	} else if (look.kind == RS_DATA && g->view) {
		add_data(g, path, x);
	} else if (look.kind == RS_WORK) {
		must(rs_work_open(g->s, g->job, look.blob, O_RDONLY, &fd, &err), &err);
		add_fd(x, fd);
	}
	return 0;
}

static int on_rank(void *arg, uint32_t rank)
{
	struct signature *g = arg;
	struct sc_err err = {0};

	g->rank = rank;
	add(g->view ? g->head : g->tree, &rank, sizeof(rank));
	must(rs_list(g->s, g->job, g->view, rank, "", on_name, g, &err), &err);
	return 0;
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
		must(rs_ranks(s, g->job, g->view, on_rank, g, &err), &err);
		(void)on_rank(g, RS_SHARED);
		rs_view_unref(s, g->view);
		g->view = NULL;
	}
	must(rs_ranks(s, g->job, NULL, on_rank, g, &err), &err);
}

struct seen look(struct rs_service *s)
{
	struct signature g = {XXH3_createState(), XXH3_createState(), s, NULL, NULL, 0, ""};
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
	(void)XXH3_freeState(g.head);
	(void)XXH3_freeState(g.tree);
	return seen;
}
