/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/model/topology.h"

#include <assert.h>
#include <string.h>

#include "meta/base/text.h"

struct parser {
	const struct meta_layout *layout;
	const char *text;
	struct sc_err *err;
	struct meta_topology t;
	uint32_t given[SC_AXES_MAX];
	bool has_vp;
	uint8_t nr_orders;
	struct order {
		uint8_t nr, axis[SC_AXES_MAX];
	} orders[SC_MESHES_MAX];
};

#define refuse(p, fmt, ...)                                                                        \
	sc_fail((p)->err, SC_E_TOPOLOGY, "topology '%s': " fmt, (p)->text, ##__VA_ARGS__)

static int read_stages(struct parser *p, const char *value)
{
	struct meta_topology *t = &p->t;

	if (t->nr_stages)
		return refuse(p, "stages is given twice");
	t->stages = sc_zalloc_array(SC_STAGES_MAX, sizeof(*t->stages));
	if (!t->stages)
		return sc_nomem(p->err);
	for (;;) {
		size_t n = strcspn(value, "+"), x = 0;
		uint32_t layers, times = 1;

		while (x < n && value[x] != 'x')
			x++;
		if (!sc_number_parse(value, x, &layers) ||
		    (x < n && !sc_number_parse(value + x + 1, n - x - 1, &times)))
			return refuse(p, "stages: '%.*s' is not a number", (int)n, value);
		if (times > SC_STAGES_MAX - t->nr_stages)
			return sc_fail(p->err, SC_E_LIMIT, "topology '%s': stages lists more than %d chunks",
				       p->text, SC_STAGES_MAX);
		while (times--)
			t->stages[t->nr_stages++] = layers;
		if (!value[n])
			break;
		value += n + 1;
	}
	return t->nr_stages ? 0 : refuse(p, "stages lists no chunk");
}

static int read_order(struct parser *p, const char *value)
{
	struct order *o = &p->orders[p->nr_orders];

	if (p->nr_orders == SC_MESHES_MAX)
		return refuse(p, "more orders than meshes");
	for (;;) {
		size_t n = strcspn(value, "-");
		int axis = meta_axis_find(&p->layout->axes, value, n);

		if (axis < 0)
			return refuse(p, "order: '%.*s' is no axis of this layout", (int)n, value);
		for (int i = 0; i < o->nr; i++)
			if (o->axis[i] == axis)
				return refuse(p, "order repeats axis %.*s", (int)n, value);
		o->axis[o->nr++] = (uint8_t)axis;
		if (!value[n])
			break;
		value += n + 1;
	}
	p->nr_orders++;
	return 0;
}

static int refuse_axis(struct parser *p, const char *key)
{
	struct sc_buf buf = {0};
	int rc;

	for (int i = 0; i < p->layout->axes.nr; i++)
		sc_buf_printf(&buf, "%s%s", i ? " " : "", p->layout->axes.name[i]);
	rc = refuse(p, "no axis '%s'; this layout's axes are %s", key, buf.text ? buf.text : "");
	sc_buf_done(&buf);
	return rc;
}

static int read_field(struct parser *p, char *word)
{
	char *value = strchr(word, '=');
	uint32_t *slot = &p->t.vp;
	uint32_t number;
	int axis;

	if (!value)
		return refuse(p, "'%s' is not AXIS=NUMBER", word);
	*value++ = 0;
	if (strcmp(word, "order") == 0)
		return read_order(p, value);
	if (strcmp(word, "stages") == 0)
		return read_stages(p, value);
	axis = meta_axis_find(&p->layout->axes, word, strlen(word));
	if (axis < 0 && strcmp(word, "vp") != 0)
		return refuse_axis(p, word);
	if (axis >= 0)
		slot = &p->given[axis];
	if (axis >= 0 ? *slot != 0 : p->has_vp)
		return refuse(p, "%s is given twice", word);
	if (!sc_number_parse(value, strlen(value), &number))
		return refuse(p, "%s: '%s' is not a number", word, value);
	if (number == 0)
		return refuse(p, "%s is 0", word);
	*slot = number;
	p->has_vp |= axis < 0;
	return 0;
}

static int read_fields(struct parser *p, const char *text)
{
	char *copy = sc_strdup(text), *save = NULL, *word;
	int rc = copy ? 0 : sc_nomem(p->err);
	bool any = false;

	for (word = copy ? strtok_r(copy, " \t\r\n,", &save) : NULL; rc == 0 && word;
	     word = strtok_r(NULL, " \t\r\n,", &save)) {
		any = true;
		rc = read_field(p, word);
	}
	sc_sys.release(copy);
	return rc == 0 && !any ? refuse(p, "empty; write for example tp=2 pp=2") : rc;
}

/* Sets the degrees of one mesh; `*` takes what is left of the ranks. */
static int mesh_degrees(struct parser *p, const struct meta_mesh *mesh, uint32_t known_axes)
{
	struct meta_topology *t = &p->t;
	uint64_t product = 1;
	int rest = -1;

	for (int i = 0; i < mesh->nr; i++) {
		const struct meta_mesh_axis *a = &mesh->at[i];

		if (a->kind == META_DEGREE_REST && !p->given[a->axis] && !(known_axes & 1u << a->axis)) {
			if (rest >= 0)
				return refuse(p, "two axes of one mesh have degree * (what is left)");
			rest = a->axis;
			continue;
		}
		if (p->given[a->axis])
			t->degree[a->axis] = p->given[a->axis];
		else if (!(known_axes & 1u << a->axis))
			t->degree[a->axis] = a->kind == META_DEGREE_AXIS ? t->degree[a->number] : a->number;
		product *= t->degree[a->axis];
		if (product > SC_RANKS_MAX)
			return sc_fail(p->err, SC_E_TOPOLOGY, "topology '%s': more than %u ranks", p->text,
				       SC_RANKS_MAX);
	}
	if (rest >= 0) {
		if (t->ranks == 0)
			return refuse(p, "the first mesh cannot have an axis of degree *");
		if (t->ranks % product) {
			struct sc_buf buf = {0};
			int rc;

			for (int i = 0; i < mesh->nr; i++)
				if (mesh->at[i].axis != rest)
					sc_buf_printf(&buf, "%s%s", buf.bytes ? " " : "",
						      p->layout->axes.name[mesh->at[i].axis]);
			for (int i = 0; i < mesh->nr; i++)
				if (mesh->at[i].kind == META_DEGREE_AXIS && !p->given[mesh->at[i].axis])
					sc_buf_printf(&buf, " (%s is %s, unless it is given)",
						      p->layout->axes.name[mesh->at[i].axis],
						      p->layout->axes.name[mesh->at[i].number]);
			rc = refuse(p, "%u ranks do not divide by %u, the product of %s", t->ranks,
				    (unsigned)product, buf.text ? buf.text : "");
			sc_buf_done(&buf);
			return rc;
		}
		t->degree[rest] = t->ranks / (uint32_t)product;
		product = t->ranks;
	}
	if (t->ranks && t->ranks != product)
		return refuse(p, "one mesh has %u ranks, but the first mesh has %u", (unsigned)product, t->ranks);
	t->ranks = (uint32_t)product;
	return 0;
}

/* Lists the axes of a mesh, fastest first, after `order=`. */
static int mesh_order(struct parser *p, const struct meta_mesh *mesh, bool *used, uint8_t *ret)
{
	uint8_t nr = 0;

	for (int i = 0; i < mesh->nr; i++)
		ret[i] = mesh->at[i].axis;
	for (int k = 0; k < p->nr_orders; k++) {
		const struct order *o = &p->orders[k];
		uint32_t in_mesh = 0, in_order = 0;

		for (int i = 0; i < mesh->nr; i++)
			in_mesh |= 1u << mesh->at[i].axis;
		for (int i = 0; i < o->nr; i++)
			in_order |= 1u << o->axis[i];
		if (in_order & ~in_mesh)
			continue;
		used[k] = true;
		nr = 0;
		for (int i = 0; i < o->nr; i++)
			ret[nr++] = o->axis[i];
		for (int i = 0; i < mesh->nr; i++) {
			if (in_order & 1u << mesh->at[i].axis)
				continue;
			if (p->t.degree[mesh->at[i].axis] > 1)
				return refuse(p, "order lacks axis %s", p->layout->axes.name[mesh->at[i].axis]);
			ret[nr++] = mesh->at[i].axis;
		}
	}
	return 0;
}

static int resolve_meshes(struct parser *p)
{
	struct meta_topology *t = &p->t;
	bool used[SC_MESHES_MAX] = {false};
	uint32_t known = 0, strided = 0;
	int rc;

	for (int m = 0; m < p->layout->nr_meshes; m++) {
		const struct meta_mesh *mesh = &p->layout->meshes[m];
		uint8_t axes[SC_AXES_MAX];
		uint32_t stride = 1;

		rc = mesh_degrees(p, mesh, known);
		if (rc == 0)
			rc = mesh_order(p, mesh, used, axes);
		if (rc < 0)
			return rc;
		for (int i = 0; i < mesh->nr; i++) {
			uint8_t a = axes[i];

			known |= 1u << a;
			if (t->degree[a] > 1 && strided & 1u << a && t->stride[a] != stride)
				return refuse(p, "the meshes disagree on which ranks share a %s coordinate",
					      p->layout->axes.name[a]);
			t->stride[a] = stride;
			strided |= 1u << a;
			stride *= t->degree[a];
		}
	}
	for (int k = 0; k < p->nr_orders; k++)
		if (!used[k])
			return refuse(p, "order fits no mesh");
	return 0;
}

static void print_stages(struct sc_buf *buf, const struct meta_topology *t)
{
	for (uint32_t i = 0, n; i < t->nr_stages; i += n) {
		for (n = 1; i + n < t->nr_stages && t->stages[i + n] == t->stages[i]; n++)
			;
		sc_buf_printf(buf, n > 1 ? "%s%ux%u" : "%s%u", i ? "+" : "", t->stages[i], n);
	}
}

/* Makes the canonical text: degrees that are not 1 (first mesh) or not their default (others), then vp, stages,
 * order. */
static int make_text(struct parser *p)
{
	struct meta_topology *t = &p->t;
	struct sc_buf buf = {0};
	uint32_t done = 0;

	for (int m = 0; m < p->layout->nr_meshes; m++) {
		const struct meta_mesh *mesh = &p->layout->meshes[m];

		for (int i = 0; i < mesh->nr; i++) {
			const struct meta_mesh_axis *a = &mesh->at[i];
			uint32_t usual = m == 0 || a->kind == META_DEGREE_NUMBER ? a->number : t->degree[a->axis];

			if (m == 0)
				usual = 1;
			else if (a->kind == META_DEGREE_AXIS)
				usual = t->degree[a->number];
			if (!(done & 1u << a->axis) && t->degree[a->axis] != usual)
				sc_buf_printf(&buf, "%s%s=%u", buf.bytes ? " " : "",
					      p->layout->axes.name[a->axis], t->degree[a->axis]);
			done |= 1u << a->axis;
		}
	}
	if (t->vp > 1)
		sc_buf_printf(&buf, "%svp=%u", buf.bytes ? " " : "", t->vp);
	if (!buf.bytes)
		sc_buf_printf(&buf, "%s=1", p->layout->axes.name[p->layout->meshes[0].at[0].axis]);
	if (t->nr_stages) {
		sc_buf_printf(&buf, " stages=");
		print_stages(&buf, t);
	}
	for (int k = 0; k < p->nr_orders; k++)
		for (int i = 0; i < p->orders[k].nr; i++)
			sc_buf_printf(&buf, "%s%s", i ? "-" : " order=",
				      p->layout->axes.name[p->orders[k].axis[i]]);
	if (buf.failed) {
		sc_buf_done(&buf);
		return sc_nomem(p->err);
	}
	t->text = buf.text;
	return 0;
}

int meta_topology_parse(const struct meta_layout *layout, const char *text,
			struct meta_topology *ret, struct sc_err *err)
{
	struct parser p = {.layout = layout, .text = text, .err = err};
	struct meta_topology *t = &p.t;
	uint64_t chunks;
	int rc;

	t->nr_axes = layout->axes.nr;
	for (int i = 0; i < SC_AXES_MAX; i++)
		t->degree[i] = t->stride[i] = 1;
	rc = read_fields(&p, text);
	if (rc == 0)
		rc = resolve_meshes(&p);
	t->vp = p.has_vp ? t->vp : 1;
	t->pp = layout->pp >= 0 ? t->degree[layout->pp] : 1;
	t->ep = layout->ep >= 0 ? t->degree[layout->ep] : 1;
	chunks = (uint64_t)t->pp * t->vp;
	if (rc == 0 && chunks > SC_STAGES_MAX)
		rc = sc_fail(err, SC_E_LIMIT, "topology '%s': pp*vp is more than %d", text, SC_STAGES_MAX);
	t->chunks = (uint32_t)chunks;
	if (rc == 0 && t->nr_stages && t->nr_stages != t->chunks)
		rc = refuse(&p, "stages= lists %u chunks, but pp*vp is %u", t->nr_stages, t->chunks);
	if (rc == 0)
		rc = make_text(&p);
	if (rc < 0)
		meta_topology_done(t);
	else
		*ret = *t;
	return rc;
}

void meta_topology_done(struct meta_topology *topo)
{
	sc_sys.release(topo->stages);
	sc_sys.release(topo->text);
	*topo = (struct meta_topology){0};
}

int meta_topology_copy(const struct meta_topology *from, struct meta_topology *ret)
{
	struct meta_topology t = *from;

	t.text = sc_strdup(from->text);
	t.stages = from->nr_stages ? sc_zalloc_array(from->nr_stages, sizeof(*t.stages)) : NULL;
	if (!t.text || (from->nr_stages && !t.stages)) {
		meta_topology_done(&t);
		return -1;
	}
	if (from->nr_stages)
		memcpy(t.stages, from->stages, from->nr_stages * sizeof(*t.stages));
	*ret = t;
	return 0;
}

void meta_topology_coords(const struct meta_topology *topo, uint32_t rank, uint32_t ret[SC_AXES_MAX])
{
	assert(rank < topo->ranks);
	for (int i = 0; i < SC_AXES_MAX; i++)
		ret[i] = i < topo->nr_axes ? rank / topo->stride[i] % topo->degree[i] : 0;
}

uint32_t meta_topology_rank(const struct meta_topology *topo, const uint32_t coords[SC_AXES_MAX])
{
	uint32_t rank = 0;

	for (int i = 0; i < topo->nr_axes; i++)
		rank += coords[i] * topo->stride[i];
	assert(rank < topo->ranks);
	return rank;
}

uint32_t meta_topology_degree(const struct meta_topology *topo, uint32_t axes)
{
	uint32_t d = 1;

	for (int i = 0; i < topo->nr_axes; i++)
		if (axes & 1u << i)
			d *= topo->degree[i];
	return d;
}

/* Finds the next axis of the set by (stride, degree), after `last`; -1 at the end. */
static int next_axis(const struct meta_topology *topo, uint32_t axes, int last)
{
	int best = -1;

#define KEY(i) ((uint64_t)topo->stride[i] << 40 | (uint64_t)topo->degree[i] << 8 | (unsigned)(i))
	for (int i = 0; i < topo->nr_axes; i++)
		if (axes & 1u << i && (last < 0 || KEY(i) > KEY(last)) && (best < 0 || KEY(i) < KEY(best)))
			best = i;
#undef KEY
	return best;
}

uint32_t meta_topology_index(const struct meta_topology *topo, uint32_t axes,
			     const uint32_t coords[SC_AXES_MAX])
{
	uint32_t at = 0, mul = 1;

	for (int i = next_axis(topo, axes, -1); i >= 0; i = next_axis(topo, axes, i)) {
		at += coords[i] * mul;
		mul *= topo->degree[i];
	}
	return at;
}

void meta_topology_split(const struct meta_topology *topo, uint32_t axes, uint32_t index,
			 uint32_t coords[SC_AXES_MAX])
{
	for (int i = next_axis(topo, axes, -1); i >= 0; i = next_axis(topo, axes, i)) {
		coords[i] = index % topo->degree[i];
		index /= topo->degree[i];
	}
}

int meta_topology_starts(const struct meta_topology *topo, uint32_t layers, uint32_t *ret,
			 struct sc_err *err)
{
	uint64_t at = 0;

	if (!topo->nr_stages && layers % topo->chunks)
		return sc_fail(err, SC_E_TOPOLOGY, "topology '%s': %u layers do not divide by pp*vp=%u; say stages=",
			       topo->text, layers, topo->chunks);
	for (uint32_t c = 0; c < topo->chunks; c++) {
		ret[c] = (uint32_t)at;
		at += topo->nr_stages ? topo->stages[c] : layers / topo->chunks;
	}
	ret[topo->chunks] = (uint32_t)at;
	if (at != layers)
		return sc_fail(err, SC_E_TOPOLOGY, "topology '%s': stages= adds up to %u layers, but the job has %u",
			       topo->text, (unsigned)at, layers);
	return 0;
}
