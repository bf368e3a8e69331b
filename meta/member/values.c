/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints and parses values of keys.  Both walk the same table of a value's fields.
 *
 * 1. Parsing takes exactly what printing makes, with the lines in any order.
 * 2. Nothing longer than its kind's limit is printed or parsed.
 */
#include "meta/member/member_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"

enum form { NUMBER, HEX, HEX2, HASH, TEXT, FLAG, CHANGE, MEMBERS, STORED, USES, TEXTS };

struct field {
	const char *name;
	enum form form;
	size_t at;
	uint32_t max; /* of a list */
	bool may_miss;
};

#define AT(member) offsetof(struct meta_value, member)
static const struct field of_cluster[] = {{"id", HEX2, AT(cluster.id)},
					  {"protocol_min", NUMBER, AT(cluster.protocol_min)},
					  {"protocol_max", NUMBER, AT(cluster.protocol_max)},
					  {"fresh_ms", NUMBER, AT(cluster.fresh_ms)},
					  {"ttl_ms", NUMBER, AT(cluster.ttl_ms)},
					  {"copies", NUMBER, AT(cluster.copies)},
					  {"domains", TEXT, AT(cluster.domains), 0, true},
					  {"era", NUMBER, AT(cluster.era), 0, true},
					  {}};
static const struct field of_bound[] = {{"store", HEX2, AT(bound.store)},
					{"blob", NUMBER, AT(bound.blob)},
					{"inode", NUMBER, AT(bound.inode)},
					{"jobs", NUMBER, AT(bound.jobs), 0, true},
					{}};
static const struct field of_node[] = {{"name", TEXT, AT(node.name)},
				       {"store", TEXT, AT(node.store)},
				       {"domain", TEXT, AT(node.domain), 0, true},
				       {"boot", HEX, AT(node.boot)},
				       {"protocol_min", NUMBER, AT(node.protocol_min)},
				       {"protocol_max", NUMBER, AT(node.protocol_max)},
				       {"capacity", NUMBER, AT(node.capacity)},
				       {"space", NUMBER, AT(node.space)},
				       {"draining", FLAG, AT(node.draining), 0, true},
				       {"leaving", FLAG, AT(node.leaving), 0, true},
				       {"address", TEXTS, AT(node.addresses), 4, true},
				       {}};
static const struct field of_keeper[] = {{"node", NUMBER, AT(keeper.node)}, {"epoch", NUMBER, AT(keeper.epoch)}, {}};
static const struct field of_members[] = {{"m", MEMBERS, AT(members), META_MEMBERS_MAX, true}, {}};
static const struct field of_first[] = {
    {"layout", HASH, AT(first.layout)}, {"topology", TEXT, AT(first.topology), 0, true}, {}};
static const struct field of_head[] = {{"nr", NUMBER, AT(head.nr)},
				       {"token", HEX, AT(head.token)},
				       {"members", NUMBER, AT(head.members)},
				       {"record", HASH, AT(head.record)},
				       {"node", NUMBER, AT(head.node)},
				       {"epoch", NUMBER, AT(head.epoch)},
				       {}};
static const struct field of_number[] = {{"nr", NUMBER, AT(number.nr)}, {}};
static const struct field of_proposal[] = {{"token", HEX, AT(proposal.token)},
					   {"node", NUMBER, AT(proposal.node)},
					   {"epoch", NUMBER, AT(proposal.epoch)},
					   {"base", NUMBER, AT(proposal.base)},
					   {"deadline_s", NUMBER, AT(proposal.deadline_s)},
					   {"change", CHANGE, AT(proposal.change)},
					   {"record", HASH, AT(proposal.record)},
					   {}};
static const struct field of_store[] = {
    {"settled", FLAG, AT(store.settled), 0, true}, {"set", STORED, AT(store), META_SETS_MAX, true}, {}};
static const struct field of_version[] = {
    {"parent", NUMBER, AT(version.parent)},    {"token", HEX, AT(version.token)},
    {"change", CHANGE, AT(version.change)},    {"topology", TEXT, AT(version.topology)},
    {"layout", HASH, AT(version.layout)},      {"placement", HASH, AT(version.placement)},
    {"note", TEXT, AT(version.note), 0, true}, {}};
static const struct field of_ready[] = {{"epoch", NUMBER, AT(ready.epoch)},
					{"pulled", NUMBER, AT(ready.pulled)},
					{"planned", NUMBER, AT(ready.planned)},
					{"files", HASH, AT(ready.files)},
					{}};
static const struct field of_copied[] = {{"version", NUMBER, AT(copied.version)},
					 {"basis", NUMBER, AT(copied.basis)},
					 {"gone", NUMBER, AT(copied.gone)},
					 {"wants", NUMBER, AT(copied.wants)},
					 {"has", NUMBER, AT(copied.has)},
					 {"lost", NUMBER, AT(copied.lost)},
					 {"files", NUMBER, AT(copied.files)},
					 {"newest", NUMBER, AT(copied.newest)},
					 {}};
static const struct field of_low[] = {
    {"revision", NUMBER, AT(low.revision)}, {"uses", USES, AT(low), META_USES_MAX, true}, {}};

/* The fields of each kind; NULL: the kind has none, and its text is the caller's. */
static const struct field *const fields[META_KEY_KINDS_NR] = {
    [META_KEY_CLUSTER] = of_cluster, [META_KEY_NODE] = of_node,       [META_KEY_KEEPER] = of_keeper,
    [META_KEY_MEMBERS] = of_members, [META_KEY_FIRST] = of_first,     [META_KEY_HEAD] = of_head,
    [META_KEY_SHOWN] = of_number,    [META_KEY_NUMBERS] = of_number,  [META_KEY_NUMBER] = of_number,
    [META_KEY_TAG] = of_number,      [META_KEY_NAME] = of_number,     [META_KEY_PROPOSAL] = of_proposal,
    [META_KEY_STORE] = of_store,     [META_KEY_VERSION] = of_version, [META_KEY_READY] = of_ready,
    [META_KEY_REMOVED] = of_number,  [META_KEY_JOBS] = of_number,     [META_KEY_SWEEP] = of_number,
    [META_KEY_LOW] = of_low,         [META_KEY_COPIED] = of_copied,   [META_KEY_BOUND] = of_bound,
};
static const char *const changes[] = {"commit", "topology", "layout", "rollback", "data", "removal"};
#define CHANGES_NR (sizeof(changes) / sizeof(*changes))

/* The shape that the lists of MEMBERS, STORED, USES and TEXTS have: they begin with their number. */
struct list {
	uint32_t nr;
	const void *at;
};
#define SAME_SHAPE(type) _Static_assert(offsetof(type, at) - offsetof(type, nr) == offsetof(struct list, at), "a list")
SAME_SHAPE(struct meta_members_value);
SAME_SHAPE(struct meta_store_value);
SAME_SHAPE(struct meta_low_value);
SAME_SHAPE(struct meta_text_list);

static size_t list_at(const struct field *f)
{
	return f->at + (f->form == STORED ? offsetof(struct meta_store_value, nr)
			: f->form == USES ? offsetof(struct meta_low_value, nr)
					  : 0);
}

static size_t item_bytes(enum form form)
{
	return form == MEMBERS  ? sizeof(struct meta_member)
	       : form == STORED ? sizeof(struct meta_set_name)
	       : form == USES   ? sizeof(struct meta_hash)
				: sizeof(char *);
}

static void add_line(const char *base, const struct field *f, struct sc_buf *buf)
{
	const struct list *list = (const void *)(base + list_at(f));
	const void *at = base + f->at;

	switch (f->form) {
	case NUMBER:
		if (f->may_miss && !*(const uint64_t *)at)
			return;
		sc_buf_printf(buf, "%s ", f->name);
		sc_buf_number(buf, *(const uint64_t *)at);
		break;
	case HEX:
	case HEX2:
		sc_buf_printf(buf, "%s ", f->name);
		meta_add_token(buf, ((const uint64_t *)at)[0]);
		if (f->form == HEX2)
			meta_add_token(buf, ((const uint64_t *)at)[1]);
		break;
	case HASH:
		sc_buf_printf(buf, "%s ", f->name);
		sc_buf_hex(buf, at, sizeof(struct meta_hash));
		break;
	case TEXT:
		if (f->may_miss && !*(const char *const *)at)
			return;
		sc_buf_printf(buf, "%s ", f->name);
		sc_buf_quoted(buf, *(const char *const *)at);
		break;
	case FLAG:
		if (!*(const bool *)at)
			return;
		sc_buf_printf(buf, "%s", f->name);
		break;
	case CHANGE:
		sc_buf_printf(buf, "%s %s", f->name, changes[*(const enum meta_command_kind *)at]);
		break;
	default:
		for (uint32_t i = 0; i < list->nr; i++) {
			sc_buf_printf(buf, "%s ", f->name);
			if (f->form == MEMBERS) {
				sc_buf_number(buf, ((const struct meta_member *)list->at)[i].node);
				sc_buf_byte(buf, ':');
				sc_buf_number(buf, ((const struct meta_member *)list->at)[i].epoch);
			} else if (f->form == STORED) {
				sc_buf_hex(buf, ((const struct meta_set_name *)list->at)[i].set.at,
					     sizeof(struct meta_hash));
				sc_buf_byte(buf, ' ');
				meta_add_token(buf, ((const struct meta_set_name *)list->at)[i].token);
				sc_buf_byte(buf, ' ');
				sc_buf_quoted(buf, ((const struct meta_set_name *)list->at)[i].file);
			} else if (f->form == USES) {
				sc_buf_hex(buf, ((const struct meta_hash *)list->at)[i].at, sizeof(struct meta_hash));
			} else {
				sc_buf_quoted(buf, ((const char *const *)list->at)[i]);
			}
			sc_buf_byte(buf, '\n');
		}
		return;
	}
	sc_buf_byte(buf, '\n');
}

int meta_value_print(const struct meta_value *value, struct sc_buf *buf, struct sc_err *err)
{
	const struct field *f = fields[value->kind];
	size_t before = buf->bytes;

	for (; f && f->name; f++) {
		if (f->max && ((const struct list *)((const char *)value + list_at(f)))->nr > f->max)
			return sc_fail(err, SC_E_LIMIT, "etcd's key '%s': more than %u lines '%s'",
				       meta_kinds[value->kind].path, f->max, f->name);
		add_line((const char *)value, f, buf);
	}
	if (value->rest)
		sc_buf_add(buf, value->rest, strlen(value->rest));
	if (buf->failed)
		return sc_nomem(err);
	if (buf->bytes - before > meta_kinds[value->kind].bytes_max)
		return sc_fail(err, SC_E_LIMIT, "etcd's key '%s': the value has %zu bytes, the limit is %zu",
			       meta_kinds[value->kind].path, buf->bytes - before, meta_kinds[value->kind].bytes_max);
	return 0;
}

static bool read_member(const char *p, const char *end, struct meta_member *m)
{
	const char *colon = memchr(p, ':', (size_t)(end - p));
	uint64_t node;

	if (!colon || !meta_read_number(p, colon, &node) || node >= META_NODES_MAX ||
	    !meta_read_number(colon + 1, end, &m->epoch))
		return false;
	m->node = (uint32_t)node;
	return true;
}

/* Reads a text that sc_buf_quoted() made: 1, 0 (the text is something else) or SC_E_NO_MEMORY. */
static int read_text(const char *p, const char *end, struct sc_arena *arena, const char **ret, struct sc_err *err)
{
	char *text;

	for (const char *c = p; c < end; c++)
		if (*c == 0 || (*c == '\\' && (++c == end || (*c != 'n' && *c != '\\'))))
			return 0;
	text = sc_arena_copy(arena, p, (size_t)(end - p));
	if (!text)
		return sc_nomem(err);
	sc_unquote(text);
	*ret = text;
	return 1;
}

static int read_item(const struct field *f, const char *p, const char *end, struct sc_arena *arena, void *item,
		     struct sc_err *err)
{
	if (f->form == MEMBERS)
		return read_member(p, end, item);
	if (f->form == USES)
		return meta_read_hex(p, end, item, sizeof(struct meta_hash));
	if (f->form == STORED) {
		struct meta_set_name *s = item;

		if (end - p < 82 || p[64] != ' ' || p[81] != ' ' ||
		    !meta_read_hex(p, p + 64, s->set.at, sizeof(s->set.at)) ||
		    !meta_read_token(p + 65, p + 81, &s->token))
			return 0;
		return read_text(p + 82, end, arena, &s->file, err);
	}
	return read_text(p, end, arena, item, err);
}

/* Reads a field's value: 1, 0 (the line is wrong) or an error. */
static int read_field(const struct field *f, const char *p, const char *end, struct sc_arena *arena, void *at,
		      struct sc_err *err)
{
	switch (f->form) {
	case NUMBER:
		return meta_read_number(p, end, at);
	case HEX:
		return meta_read_token(p, end, at);
	case HEX2:
		return end - p == 32 && meta_read_token(p, p + 16, at) &&
		       meta_read_token(p + 16, end, (uint64_t *)at + 1);
	case HASH:
		return meta_read_hex(p, end, at, sizeof(struct meta_hash));
	case TEXT:
		return read_text(p, end, arena, at, err);
	case FLAG:
		*(bool *)at = true;
		return p == end;
	default:
		for (unsigned i = 0; i < CHANGES_NR; i++)
			if (strlen(changes[i]) == (size_t)(end - p) && memcmp(changes[i], p, (size_t)(end - p)) == 0) {
				*(enum meta_command_kind *)at = (enum meta_command_kind)i;
				return 1;
			}
		return 0;
	}
}

static bool is_list(enum form form)
{
	return form >= MEMBERS;
}

/* Counts the lines that begin with this name. */
static uint32_t count(const char *text, size_t bytes, const char *name)
{
	size_t n = strlen(name);
	uint32_t nr = 0;

	for (const char *p = text, *end = text + bytes, *to; p < end; p = to + 1) {
		to = memchr(p, '\n', (size_t)(end - p));
		if (!to)
			break;
		nr += (size_t)(to - p) > n && memcmp(p, name, n) == 0 && p[n] == ' ';
	}
	return nr;
}

struct parse {
	enum meta_key_kind kind;
	const char *text;
	size_t bytes;
	struct sc_arena *arena;
	struct meta_value *value;
	struct sc_buf rest;
	uint32_t seen; /* a bit a field */
};

static int make_lists(struct parse *ps, struct sc_err *err)
{
	for (const struct field *f = fields[ps->kind]; f->name; f++) {
		struct list *list = (void *)((char *)ps->value + list_at(f));
		uint32_t nr;

		if (!is_list(f->form))
			continue;
		nr = count(ps->text, ps->bytes, f->name);
		if (nr > f->max)
			return sc_fail(err, SC_E_LIMIT, "etcd's key '%s': more than %u lines '%s'",
				       meta_kinds[ps->kind].path, f->max, f->name);
		list->at = sc_arena_array(ps->arena, nr ? nr : 1, item_bytes(f->form));
		if (!list->at)
			return sc_nomem(err);
	}
	return 0;
}

static int take_line(struct parse *ps, const char *p, const char *end, struct sc_err *err)
{
	const char *blank = memchr(p, ' ', (size_t)(end - p)), *name_end = blank ? blank : end;
	const struct field *const first = fields[ps->kind], *f = first;
	int rc;

	while (f->name &&
	       (strlen(f->name) != (size_t)(name_end - p) || memcmp(f->name, p, (size_t)(name_end - p)) != 0))
		f++;
	if (!f->name || !blank != (f->form == FLAG)) {
		if (f->name || memchr(p, 0, (size_t)(end - p)) || p == end)
			return 0;
		sc_buf_add(&ps->rest, p, (size_t)(end - p) + 1);
		return 1;
	}
	p = blank ? blank + 1 : end;
	if (is_list(f->form)) {
		struct list *list = (void *)((char *)ps->value + list_at(f));

		rc = read_item(f, p, end, ps->arena, (char *)(uintptr_t)list->at + list->nr * item_bytes(f->form), err);
		list->nr += rc > 0;
		return rc;
	}
	if (ps->seen & 1u << (f - first))
		return 0;
	ps->seen |= 1u << (f - first);
	return read_field(f, p, end, ps->arena, (char *)ps->value + f->at, err);
}

static int check_whole(const struct parse *ps, struct sc_err *err)
{
	const struct field *const first = fields[ps->kind];
	const struct meta_members_value *m = &ps->value->members;

	for (const struct field *f = first; f->name; f++)
		if (!f->may_miss && !(ps->seen & 1u << (f - first)))
			return sc_fail(err, SC_E_FORMAT, "etcd's key '%s': the line '%s' is missing",
				       meta_kinds[ps->kind].path, f->name);
	for (uint32_t i = 1; ps->kind == META_KEY_MEMBERS && i < m->nr; i++)
		if (m->at[i - 1].node >= m->at[i].node)
			return sc_fail(err, SC_E_FORMAT, "etcd's list of members: node %u comes after node %u",
				       m->at[i].node, m->at[i - 1].node);
	return 0;
}

static int parse_lines(struct parse *ps, struct sc_err *err)
{
	const char *p = ps->text, *end = p + ps->bytes, *to;
	int rc = make_lists(ps, err);

	for (; rc == 0 && p < end; p = to + 1) {
		int one;

		to = memchr(p, '\n', (size_t)(end - p));
		one = to ? take_line(ps, p, to, err) : 0;
		if (one == 0) {
			char shown[80];

			(void)snprintf(shown, sizeof(shown), "%.*s",
				       (int)((to ? to : end) - p > 60 ? 60 : (to ? to : end) - p), p);
			sc_show(shown, sizeof(shown));
			return sc_fail(err, SC_E_FORMAT, "etcd's key '%s': the line '%s' is not understood",
				       meta_kinds[ps->kind].path, shown);
		}
		rc = one < 0 ? one : 0;
	}
	return rc < 0 ? rc : check_whole(ps, err);
}

int meta_value_parse(enum meta_key_kind kind, const void *text, size_t bytes, struct sc_arena *arena,
		     struct meta_value *ret, struct sc_err *err)
{
	struct meta_value value = {.kind = kind};
	struct parse ps = {kind, text, bytes, arena, &value, {}, 0};
	int rc;

	if (bytes > meta_kinds[kind].bytes_max)
		return sc_fail(err, SC_E_LIMIT, "etcd's key '%s': the value has %zu bytes, the limit is %zu",
			       meta_kinds[kind].path, bytes, meta_kinds[kind].bytes_max);
	if (kind == META_KEY_TICK || !fields[kind]) {
		value.rest = sc_arena_copy(arena, text, bytes);
		rc = value.rest ? 0 : sc_nomem(err);
	} else {
		rc = parse_lines(&ps, err);
		if (rc == 0 && ps.rest.bytes) {
			value.rest = ps.rest.failed ? NULL : sc_arena_copy(arena, ps.rest.text, ps.rest.bytes);
			rc = value.rest ? 0 : sc_nomem(err);
		}
	}
	sc_buf_done(&ps.rest);
	if (rc == 0)
		*ret = value;
	return rc;
}
