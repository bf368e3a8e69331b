/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws what a topology would move: nodes of the old topology on the left, those of the new one on the right, and
 * between them a band for each two of which one fetches from the other, as thick as it has bytes.  A drawing has at
 * most ROWS rows on a side; more nodes share rows.  Each band says its rows and bytes as attributes and as a title;
 * the sum of all is `bytes_moved` of `plan`.
 */
#include "reshard/service/move_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"
#include "reshard/service/service.h"
#include "reshard/version/state/state_i.h"

#define ROWS 32
#define WIDTH 1080
#define LEFT 250		/* where rows of the left side end, and those of the right side begin */
#define RIGHT 830
#define TOP 210
#define ROW 26			/* from one row to the next */
#define BAND 20			/* the thickest band, or all bands of a row that has most */
#define BAR 420			/* the longest bar */
#define U_FFFE "\xef\xbf\xbe"
#define U_FFFF "\xef\xbf\xbf"

struct rows {
	uint32_t nr, nodes, per;	/* per: nodes of a row */
	uint32_t ranks;
	uint64_t sum[ROWS];
	double at[ROWS];		/* where the next band of a row begins */
};

struct drawing {
	struct sc_buf *buf;
	const struct rs_move_plan *p;
	struct rows from, to;
	uint64_t bytes[ROWS][ROWS];
	uint64_t most;			/* of a row's sum */
};

/* --- text --- */

/* Adds text between tags or in an attribute.  What XML has no place for is a question mark. */
static void add_text(struct sc_buf *buf, const char *text)
{
	static const char *const entities[][2] = {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"},
						  {"'", "&#39;"}};
	struct sc_buf shown = {0};

	sc_buf_shown(&shown, text);
	for (const char *p = shown.text ? shown.text : ""; *p; p++) {
		const char *entity = NULL;

		for (size_t i = 0; i < sizeof(entities) / sizeof(*entities); i++)
			entity = *p == *entities[i][0] ? entities[i][1] : entity;
		if (entity) {
			sc_buf_add(buf, entity, strlen(entity));
		} else if (strncmp(p, U_FFFE, 3) == 0 || strncmp(p, U_FFFF, 3) == 0) {
			sc_buf_byte(buf, '?');
			p += 2;
		} else {
			sc_buf_byte(buf, *p);
		}
	}
	buf->failed |= shown.failed;
	sc_buf_done(&shown);
}

static void add_bytes(struct sc_buf *buf, uint64_t bytes)
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
	double n = (double)bytes;
	size_t unit = 0;

	for (; n >= 1024 && unit < sizeof(units) / sizeof(*units) - 1; unit++)
		n /= 1024;
	sc_buf_printf(buf, unit ? "%.1f %s" : "%.0f %s", n, units[unit]);
}

static void begin_text(struct drawing *d, double x, double y, const char *anchor)
{
	sc_buf_printf(d->buf, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
}

static void end_text(struct drawing *d)
{
	sc_buf_printf(d->buf, "</text>\n");
}

/* Adds the ranks of the nodes of a row. */
static void add_ranks(struct drawing *d, const struct rows *rows, uint32_t row)
{
	const uint64_t per = d->p->nodes.ranks_per_node;
	const uint64_t first = (uint64_t)row * rows->per * per;
	uint64_t end = sc_min_u64((uint64_t)(row + 1) * rows->per, rows->nodes) * per;

	if (rows->ranks > first)
		end = sc_min_u64(end, rows->ranks);
	if (!per)
		sc_buf_printf(d->buf, "all ranks");
	else if (end - first == 1)
		sc_buf_printf(d->buf, "rank %" PRIu64, first);
	else
		sc_buf_printf(d->buf, "ranks %" PRIu64 "-%" PRIu64, first, end - 1);
}

/* --- parts --- */

static struct rows rows_of(uint32_t nodes, uint32_t ranks)
{
	struct rows r = {.nodes = nodes, .per = (nodes + ROWS - 1) / ROWS, .ranks = ranks};

	r.nr = (nodes + r.per - 1) / r.per;
	return r;
}

static void add_up(struct drawing *d)
{
	const struct rs_cost *cost = &d->p->cost;

	for (size_t i = 0; i < cost->nr_pairs; i++) {
		const uint32_t from = cost->pairs[i].from / d->from.per, to = cost->pairs[i].to / d->to.per;

		d->bytes[from][to] += cost->pairs[i].bytes;
		d->from.sum[from] += cost->pairs[i].bytes;
		d->to.sum[to] += cost->pairs[i].bytes;
	}
	for (uint32_t i = 0; i < ROWS; i++)
		d->most = sc_max_u64(d->most, sc_max_u64(d->from.sum[i], d->to.sum[i]));
}

static void head(struct drawing *d, const char *job, uint32_t rows)
{
	const struct rs_cost *cost = &d->p->cost;

	sc_buf_printf(d->buf, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %u\" width=\"%d\" "
		      "height=\"%u\" font-family=\"sans-serif\" font-size=\"13\" data-bytes-needed=\"%" PRIu64
		      "\" data-bytes-local=\"%" PRIu64 "\" data-bytes-moved=\"%" PRIu64 "\" data-lower-bound=\"%" PRIu64
		      "\">\n<title>", WIDTH, TOP + rows * ROW + 20, WIDTH, TOP + rows * ROW + 20, cost->bytes,
		      cost->local, cost->moved, cost->bound);
	add_text(d->buf, job);
	sc_buf_printf(d->buf, ": what a topology would move</title>\n<rect width=\"100%%\" height=\"100%%\" "
		      "fill=\"white\"/>\n<g font-size=\"18\">\n");
	begin_text(d, 20, 32, "start");
	add_text(d->buf, job);
	sc_buf_printf(d->buf, ": ");
	add_text(d->buf, d->p->head->topo.text);
	sc_buf_printf(d->buf, " → ");
	add_text(d->buf, d->p->target->topo.text);
	end_text(d);
	sc_buf_printf(d->buf, "</g>\n");
}

/* Draws a number of bytes beside the others, each as long as it is large. */
static void bar(struct drawing *d, int nr, const char *what, uint64_t bytes, const char *color)
{
	const double most = (double)sc_max_u64(d->p->cost.bytes, 1);

	begin_text(d, 270, 66 + 22 * nr, "end");
	sc_buf_printf(d->buf, "%s", what);
	end_text(d);
	sc_buf_printf(d->buf, "<rect x=\"280\" y=\"%d\" width=\"%.2f\" height=\"14\" fill=\"%s\"/>\n", 54 + 22 * nr,
		      (double)bytes / most * BAR, color);
	begin_text(d, 290 + (double)bytes / most * BAR, 66 + 22 * nr, "start");
	add_bytes(d->buf, bytes);
	end_text(d);
}

/* Says over the columns what they are, and how many nodes a row has. */
static void columns(struct drawing *d)
{
	const struct rs_cost *cost = &d->p->cost;

	begin_text(d, LEFT, TOP - 14, "end");
	sc_buf_printf(d->buf, "%u node%s now", cost->source_nodes, cost->source_nodes == 1 ? "" : "s");
	end_text(d);
	begin_text(d, RIGHT, TOP - 14, "start");
	sc_buf_printf(d->buf, "%u node%s then", cost->target_nodes, cost->target_nodes == 1 ? "" : "s");
	end_text(d);
	begin_text(d, WIDTH / 2, TOP - 34, "middle");
	sc_buf_printf(d->buf, "A node has %u rank%s (ranks_per_node).", d->p->nodes.ranks_per_node,
		      d->p->nodes.ranks_per_node == 1 ? "" : "s");
	if (d->from.per > 1 || d->to.per > 1)
		sc_buf_printf(d->buf, " Nodes are grouped: a row is %u on the left, %u on the right.", d->from.per,
			      d->to.per);
	end_text(d);
	if (!cost->moved) {
		begin_text(d, WIDTH / 2, TOP - 14, "middle");
		sc_buf_printf(d->buf, "Nothing moves between nodes.");
		end_text(d);
	}
}

static void side(struct drawing *d, const struct rows *rows, bool is_left)
{
	for (uint32_t i = 0; i < rows->nr; i++) {
		const int y = TOP + (int)i * ROW;
		const double thick = d->most ? (double)rows->sum[i] / (double)d->most * BAND : 0;

		sc_buf_printf(d->buf, "<rect x=\"%d\" y=\"%d\" width=\"6\" height=\"%.2f\" fill=\"#444\"/>\n",
			      is_left ? LEFT + 8 : RIGHT - 14, y, thick > 2 ? thick : 2);
		begin_text(d, is_left ? LEFT : RIGHT, y + 12, is_left ? "end" : "start");
		if (rows->sum[i]) {
			add_bytes(d->buf, rows->sum[i]);
			sc_buf_printf(d->buf, is_left ? " from " : " to ");
		}
		add_ranks(d, rows, i);
		end_text(d);
	}
}

static void band(struct drawing *d, uint32_t from, uint32_t to)
{
	const uint64_t bytes = d->bytes[from][to];
	const double thick = (double)bytes / (double)d->most * BAND;
	const double y0 = TOP + from * ROW + d->from.at[from] + thick / 2;
	const double y1 = TOP + to * ROW + d->to.at[to] + thick / 2;

	d->from.at[from] += thick;
	d->to.at[to] += thick;
	sc_buf_printf(d->buf, "<path d=\"M%d %.2fC%d %.2f %d %.2f %d %.2f\" stroke-width=\"%.2f\" "
		      "stroke=\"hsl(%u,60%%,45%%)\" data-from=\"%u\" data-to=\"%u\" data-bytes=\"%" PRIu64
		      "\"><title>", LEFT + 14, y0, WIDTH / 2, y0, WIDTH / 2, y1, RIGHT - 14, y1,
		      thick > 0.4 ? thick : 0.4, from * 360 / d->from.nr, from, to, bytes);
	add_ranks(d, &d->from, from);
	sc_buf_printf(d->buf, " → ");
	add_ranks(d, &d->to, to);
	sc_buf_printf(d->buf, ": %" PRIu64 " bytes</title></path>\n", bytes);
}

static void draw(struct drawing *d, const char *job)
{
	const struct rs_cost *cost = &d->p->cost;

	d->from = rows_of(cost->source_nodes, d->p->head->topo.ranks);
	d->to = rows_of(cost->target_nodes, d->p->target->topo.ranks);
	add_up(d);
	head(d, job, d->from.nr > d->to.nr ? d->from.nr : d->to.nr);
	bar(d, 0, "needed by nodes", cost->bytes, "#bbb");
	bar(d, 1, "of it on the node already", cost->local, "#8c8");
	bar(d, 2, "moved between nodes", cost->moved, "#e83");
	bar(d, 3, "the least that can be moved", cost->bound, "#38e");
	columns(d);
	side(d, &d->from, true);
	side(d, &d->to, false);
	sc_buf_printf(d->buf, "<g fill=\"none\" stroke-opacity=\"0.6\">\n");
	for (uint32_t i = 0; i < d->from.nr; i++)
		for (uint32_t k = 0; k < d->to.nr; k++)
			if (d->bytes[i][k])
				band(d, i, k);
	sc_buf_printf(d->buf, "</g>\n</svg>\n");
}

int rs_render_plan_svg(struct rs_service *s, struct rs_job *job, const char *topology, struct sc_buf *buf,
		       struct sc_err *err)
{
	struct drawing *d = sc_zalloc(sizeof(*d));
	char name[SC_NAME_BYTES_MAX + 1];
	struct rs_move_plan p = {0};
	int rc = d ? rs_move_plan_make(s, job, topology, &p, err) : sc_nomem(err);

	if (rc == 0) {
		d->buf = buf;
		d->p = &p;
		draw(d, rs_job_name(job, name, sizeof(name)));
		rc = buf->failed ? sc_nomem(err) : 0;
	}
	rs_move_plan_done(s, &p);
	sc_sys.release(d);
	return rc;
}
