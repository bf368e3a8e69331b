/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the classes of replicas of each file, in a few lines however many ranks there are. */
#include "reshard/service/service.h"

#include <string.h>

#include "reshard/upkeep/background/upkeep_i.h"

#define CLASSES_SHOWN 4
#define RUNS_SHOWN 4

/* Ranks of a class from its lowest one on: `degree` at a time, `stride` apart; the smallest stride is the first. */
struct steps {
	unsigned nr;
	struct {
		uint32_t degree, stride;
	} at[SC_AXES_MAX];
};

static void axis_names(const struct meta_view *v, uint32_t axes, struct sc_buf *buf)
{
	for (int i = 0; i < v->topo->nr_axes; i++)
		if (axes & 1u << i && v->topo->degree[i] > 1)
			sc_buf_printf(buf, " %s", v->layout->axes.name[i]);
}

static struct steps steps_of(const struct meta_topology *topo, uint32_t axes)
{
	struct steps s = {0};

	for (int i = 0; i < topo->nr_axes; i++) {
		unsigned at = s.nr;

		if (!(axes & 1u << i) || topo->degree[i] == 1)
			continue;
		for (; at && s.at[at - 1].stride > topo->stride[i]; at--)
			s.at[at] = s.at[at - 1];
		s.at[at].degree = topo->degree[i];
		s.at[at].stride = topo->stride[i];
		s.nr++;
	}
	/* the next axis goes on where the one before ends */
	for (unsigned i = 1; i < s.nr;)
		if (s.at[i].stride == s.at[i - 1].stride * s.at[i - 1].degree) {
			s.at[i - 1].degree *= s.at[i].degree;
			memmove(&s.at[i], &s.at[i + 1], (s.nr - i - 1) * sizeof(*s.at));
			s.nr--;
		} else {
			i++;
		}
	return s;
}

/* Prints the ranks of a class as FIRST-LAST/STEP, as often as it takes. */
static void class_text(const struct steps *s, uint32_t rank, struct sc_buf *buf)
{
	uint32_t runs = 1;

	for (unsigned i = 1; i < s->nr; i++)
		runs *= s->at[i].degree;
	for (uint32_t k = 0; k < runs && k < RUNS_SHOWN; k++) {
		uint32_t first = rank, left = k;

		for (unsigned i = 1; i < s->nr; i++) {
			first += left % s->at[i].degree * s->at[i].stride;
			left /= s->at[i].degree;
		}
		sc_buf_printf(buf, "%s%u-%u/%u", k ? "+" : " ", first, first + (s->at[0].degree - 1) * s->at[0].stride,
			      s->at[0].stride);
	}
	if (runs > RUNS_SHOWN)
		sc_buf_printf(buf, "+...");
}

static void classes_text(const struct meta_view *v, uint32_t used, uint32_t over, struct sc_buf *buf)
{
	struct steps s = steps_of(v->topo, over);
	uint32_t shown = 0, all = v->topo->ranks;

	for (unsigned i = 0; i < s.nr; i++)
		all /= s.at[i].degree;
	sc_buf_printf(buf, " the same over");
	axis_names(v, over, buf);
	sc_buf_printf(buf, ": ranks");
	for (uint32_t r = 0; shown < CLASSES_SHOWN && r < v->topo->ranks; r++) {
		bool lowest = true;

		for (int i = 0; i < v->topo->nr_axes; i++)
			lowest = lowest && !(over & ~used & 1u << i && r / v->topo->stride[i] % v->topo->degree[i]);
		if (!lowest)
			continue;
		sc_buf_printf(buf, "%s", shown++ ? "," : "");
		class_text(&s, r, buf);
	}
	if (all > shown)
		sc_buf_printf(buf, ", ... (%u of %u)", shown, all);
}

static void file_text(const struct meta_view *v, uint32_t i, struct sc_buf *buf)
{
	const struct meta_file_axes *f = &v->files[i];
	uint32_t more = 0, over = meta_layout_mesh_axes(v->layout, f->axes) & ~f->axes;
	const bool none = !f->alike && !steps_of(v->topo, over).nr;
	struct sc_buf names = {0};

	for (uint32_t k = i + 1; k < v->nr_files; k++)
		more += v->files[k].axes == f->axes;
	sc_buf_printf(buf, "replicas: %s'%s'", none ? "none of " : "", f->file);
	if (more)
		sc_buf_printf(buf, " and %u more", more);
	axis_names(v, f->axes, &names);
	if (names.text)
		sc_buf_printf(buf, ", of%s%s", names.text, none ? "" : ",");
	buf->failed |= names.failed;
	sc_buf_done(&names);
	if (none)
		sc_buf_printf(buf, v->topo->ranks > 1 ? "; each rank has its own" : "; there is one rank");
	else
		sc_buf_printf(buf, more ? " are" : " is");
	if (f->alike)
		sc_buf_printf(buf, " the same where these are");
	else if (!none)
		classes_text(v, f->axes, over, buf);
	sc_buf_printf(buf, "\n");
}

void rs_render_replicas(const struct meta_view *view, struct sc_buf *buf)
{
	for (uint32_t i = 0; i < view->nr_files; i++) {
		bool said = false;

		for (uint32_t k = 0; k < i; k++)
			said = said || view->files[k].axes == view->files[i].axes;
		if (!said)
			file_text(view, i, buf);
	}
}
