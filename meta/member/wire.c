/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes requests to etcd's JSON gateway (version 3.4), and reads answers.
 *
 * 1. An answer counts as a whole or not at all.
 * 2. A line of a delayed watch has several revisions; its position is that of the last change in it, never that of the
 *    header, which is ahead of the changes that were told.
 */
#include "meta/member/wire.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"
#include "meta/member/member_i.h"

#define PAGE_KEYS 500
#define PAGE_KEYS_WHOLE 32 /* a value may have 1 MiB there */

/* --- base64 --- */

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void meta_add_base64(struct sc_buf *buf, const void *bytes, size_t nr)
{
	const uint8_t *p = bytes;

	for (size_t i = 0; i < nr; i += 3) {
		uint32_t v =
		    (uint32_t)p[i] << 16 | (i + 1 < nr ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < nr ? p[i + 2] : 0);

		sc_buf_byte(buf, alphabet[v >> 18]);
		sc_buf_byte(buf, alphabet[v >> 12 & 63]);
		sc_buf_byte(buf, i + 1 < nr ? alphabet[v >> 6 & 63] : '=');
		sc_buf_byte(buf, i + 2 < nr ? alphabet[v & 63] : '=');
	}
}

static int digit(char c)
{
	const char *p = c ? strchr(alphabet, c) : NULL;

	return p ? (int)(p - alphabet) : -1;
}

bool meta_read_base64(const char *text, size_t nr, uint8_t *ret, size_t *ret_nr)
{
	size_t n = 0;

	if (nr % 4)
		return false;
	for (size_t i = 0; i < nr; i += 4) {
		bool last = i + 4 == nr;
		int pads = last ? (text[i + 3] == '=') + (text[i + 2] == '=' && text[i + 3] == '=') : 0;
		uint32_t v = 0;

		for (int k = 0; k < 4; k++) {
			int d = k >= 4 - pads ? 0 : digit(text[i + (size_t)k]);

			if (d < 0)
				return false;
			v = v << 6 | (uint32_t)d;
		}
		if (v & ((1u << 8 * pads) - 1))
			return false;
		ret[n++] = (uint8_t)(v >> 16);
		if (pads < 2)
			ret[n++] = (uint8_t)(v >> 8);
		if (pads < 1)
			ret[n++] = (uint8_t)v;
	}
	*ret_nr = n;
	return true;
}

/* --- requests --- */

static int add_key(const char *cluster, const struct meta_key *key, struct sc_buf *buf, struct sc_err *err)
{
	struct sc_buf text = {0};
	int rc = meta_key_print(cluster, key, &text, err);

	if (rc == 0) {
		sc_buf_printf(buf, "\"key\":\"");
		meta_add_base64(buf, text.text, text.bytes);
		sc_buf_byte(buf, '"');
	}
	sc_buf_done(&text);
	return rc;
}

/* Adds the range of all keys that begin with a prefix; its end is the prefix with its last byte, a '/', one higher. */
static void add_range(const char *prefix, struct sc_buf *buf)
{
	char end[META_KEY_BYTES_MAX];
	size_t n = strlen(prefix);

	(void)snprintf(end, sizeof(end), "%s", prefix);
	end[n - 1]++;
	sc_buf_printf(buf, "\"key\":\"");
	meta_add_base64(buf, prefix, n);
	sc_buf_printf(buf, "\",\"range_end\":\"");
	meta_add_base64(buf, end, n);
	sc_buf_byte(buf, '"');
}

static void watched_prefix(const char *cluster, bool whole, char *to, size_t room)
{
	(void)snprintf(to, room, "/scalai/%s/%s", cluster, whole ? "" : "all/");
}

static void range_prefix(const char *cluster, const struct meta_op *o, char *to, size_t room)
{
	static const char *const names[] = {
	    [META_RANGE_ALL] = "all", [META_RANGE_NODES] = "nodes", [META_RANGE_LOW] = "low",
	    [META_RANGE_NUMBERS] = "number", [META_RANGE_RECORDS] = "v", [META_RANGE_OBJECTS] = "obj"};

	if (o->range == META_RANGE_CLUSTER)
		watched_prefix(cluster, true, to, room);
	else if (o->range == META_RANGE_JOB)
		(void)snprintf(to, room, "/scalai/%s/%.*s%016llx/", cluster,
			       (int)strcspn(meta_kinds[o->key.kind].path, "%"), meta_kinds[o->key.kind].path,
			       (unsigned long long)o->key.job);
	else if (o->range == META_RANGE_READY || o->range == META_RANGE_KEPT)
		(void)snprintf(to, room, "/scalai/%s/%s/%016llx/%llu/", cluster,
			       o->range == META_RANGE_READY ? "ready" : "kept", (unsigned long long)o->key.job,
			       (unsigned long long)o->key.nr);
	else if (o->range == META_RANGE_NCCL)
		(void)snprintf(to, room, "/scalai/%s/nccl/%016llx/%llu/", cluster, (unsigned long long)o->key.job,
			       (unsigned long long)o->key.nr);
	else if (o->range == META_RANGE_TAGS)
		(void)snprintf(to, room, "/scalai/%s/all/jobs/%016llx/tag/", cluster, (unsigned long long)o->key.job);
	else if (o->range == META_RANGE_COPIED)
		(void)snprintf(to, room, "/scalai/%s/copied/%016llx/", cluster, (unsigned long long)o->key.job);
	else if (o->range == META_RANGE_VERSIONS)
		(void)snprintf(to, room, "/scalai/%s/v/%016llx/", cluster, (unsigned long long)o->key.job);
	else if (o->range == META_RANGE_STORES)
		(void)snprintf(to, room, "/scalai/%s/all/jobs/%016llx/store/", cluster, (unsigned long long)o->key.job);
	else
		(void)snprintf(to, room, "/scalai/%s/%s/", cluster, names[o->range]);
}

static int add_put(const char *cluster, const struct meta_op *o, struct sc_buf *buf, struct sc_err *err)
{
	struct meta_value value = o->value;
	struct sc_buf text = {0};
	int rc;

	value.kind = o->key.kind;
	sc_buf_printf(buf, "{\"request_put\":{");
	rc = add_key(cluster, &o->key, buf, err);
	if (rc == 0)
		rc = meta_value_print(&value, &text, err);
	if (rc == 0) {
		sc_buf_printf(buf, ",\"value\":\"");
		meta_add_base64(buf, text.text, text.bytes);
		sc_buf_printf(buf, "\",\"lease\":\"%lld\"}}", (long long)o->lease);
	}
	sc_buf_done(&text);
	return rc;
}

static int add_op(const char *cluster, const struct meta_op *o, bool any_server, struct sc_buf *buf, struct sc_err *err)
{
	char prefix[META_KEY_BYTES_MAX];
	int rc = 0;

	switch (o->what) {
	case META_PUT:
		return add_put(cluster, o, buf, err);
	case META_DELETE:
		sc_buf_printf(buf, "{\"request_delete_range\":{");
		rc = add_key(cluster, &o->key, buf, err);
		sc_buf_printf(buf, "}}");
		return rc;
	case META_CLEAR:
		range_prefix(cluster, o, prefix, sizeof(prefix));
		sc_buf_printf(buf, "{\"request_delete_range\":{");
		add_range(prefix, buf);
		sc_buf_printf(buf, "}}");
		return 0;
	case META_GET:
		sc_buf_printf(buf, "{\"request_range\":{");
		rc = add_key(cluster, &o->key, buf, err);
		break;
	default:
		range_prefix(cluster, o, prefix, sizeof(prefix));
		sc_buf_printf(buf, "{\"request_range\":{");
		add_range(prefix, buf);
		if (o->keys_only)
			sc_buf_printf(buf, ",\"keys_only\":true");
	}
	sc_buf_printf(buf, any_server ? ",\"serializable\":true}}" : "}}");
	return rc;
}

static int add_compare(const char *cluster, const struct meta_compare *x, struct sc_buf *buf, struct sc_err *err)
{
	bool is_mod = x->what == META_MOD_IS;
	int rc;

	sc_buf_byte(buf, '{');
	rc = add_key(cluster, &x->key, buf, err);
	sc_buf_printf(buf, ",\"result\":\"%s\",\"target\":\"%s\",\"%s_revision\":\"%llu\"}",
		      x->what == META_CREATE_IS_NOT ? "NOT_EQUAL" : "EQUAL", is_mod ? "MOD" : "CREATE",
		      is_mod ? "mod" : "create", (unsigned long long)x->revision);
	return rc;
}

int meta_wire_txn(const char *cluster, const struct meta_txn *txn, struct sc_buf *buf, struct sc_err *err)
{
	int rc = 0;

	sc_buf_printf(buf, "{\"compare\":[");
	for (uint32_t i = 0; rc == 0 && i < txn->nr_compares; i++) {
		sc_buf_printf(buf, i ? "," : "");
		rc = add_compare(cluster, &txn->compares[i], buf, err);
	}
	sc_buf_printf(buf, "],\"success\":[");
	for (uint32_t i = 0; rc == 0 && i < txn->nr_then; i++) {
		sc_buf_printf(buf, i ? "," : "");
		rc = add_op(cluster, &txn->then[i], txn->any_server, buf, err);
	}
	sc_buf_printf(buf, "],\"failure\":[");
	for (uint32_t i = 0; rc == 0 && i < txn->nr_else; i++) {
		sc_buf_printf(buf, i ? "," : "");
		rc = add_op(cluster, &txn->otherwise[i], txn->any_server, buf, err);
	}
	sc_buf_printf(buf, "]}");
	return rc < 0 ? rc : buf->failed ? sc_nomem(err) : 0;
}

int meta_wire_page(const char *cluster, bool whole, const char *from, uint64_t revision, struct sc_buf *buf,
		   struct sc_err *err)
{
	char prefix[META_KEY_BYTES_MAX], end[META_KEY_BYTES_MAX];

	watched_prefix(cluster, whole, prefix, sizeof(prefix));
	watched_prefix(cluster, whole, end, sizeof(end));
	end[strlen(end) - 1]++;
	sc_buf_printf(buf, "{\"key\":\"");
	if (from) /* the key after it */
		meta_add_base64(buf, from, strlen(from) + 1);
	else
		meta_add_base64(buf, prefix, strlen(prefix));
	sc_buf_printf(buf, "\",\"range_end\":\"");
	meta_add_base64(buf, end, strlen(end));
	sc_buf_printf(buf, "\",\"limit\":\"%d\",\"revision\":\"%llu\"}",
		      whole ? PAGE_KEYS_WHOLE : PAGE_KEYS, (unsigned long long)revision);
	return buf->failed ? sc_nomem(err) : 0;
}

int meta_wire_watch(const char *cluster, bool whole, uint64_t from, struct sc_buf *buf, struct sc_err *err)
{
	char prefix[META_KEY_BYTES_MAX];

	watched_prefix(cluster, whole, prefix, sizeof(prefix));
	sc_buf_printf(buf, "{\"create_request\":{");
	add_range(prefix, buf);
	sc_buf_printf(buf, ",\"start_revision\":\"%llu\"}}", (unsigned long long)from);
	return buf->failed ? sc_nomem(err) : 0;
}

/* --- answers --- */

static int bad(struct sc_err *err, const char *what)
{
	return sc_fail(err, SC_E_FORMAT, "etcd's answer: %s; is this etcd 3.4 or later?", what);
}

/* Reads a number in a string; one that is absent is 0. */
static bool number(const json_t *object, const char *name, uint64_t *ret)
{
	const json_t *v = json_object_get(object, name);
	const char *text = json_string_value(v);

	*ret = 0;
	return !v || (text && meta_read_number(text, text + json_string_length(v), ret));
}

static int bytes_of(const json_t *object, const char *name, struct sc_arena *arena, uint8_t **ret, size_t *ret_nr,
		    struct sc_err *err)
{
	const json_t *v = json_object_get(object, name);
	size_t n = json_string_length(v);

	*ret = sc_arena_alloc(arena, n / 4 * 3 + 1);
	*ret_nr = 0;
	if (!*ret)
		return sc_nomem(err);
	if (v && (!json_is_string(v) || !meta_read_base64(json_string_value(v), n, *ret, ret_nr)))
		return bad(err, "a key or value is not base64");
	return 0;
}

/* Reads a record: 1, 0 (its key is one that this program does not know) or an error. */
static int take_kv(const char *cluster, const json_t *kv, bool present, bool keys_only, struct sc_arena *arena,
		   struct meta_record *ret, struct sc_err *err)
{
	size_t key_bytes, value_bytes;
	uint8_t *key, *value;
	int rc = bytes_of(kv, "key", arena, &key, &key_bytes, err);

	if (rc == 0)
		rc = bytes_of(kv, "value", arena, &value, &value_bytes, err);
	if (rc < 0)
		return rc;
	*ret = (struct meta_record){.present = present};
	if (!number(kv, "create_revision", &ret->create) || !number(kv, "mod_revision", &ret->mod))
		return bad(err, "a revision is no number");
	rc = meta_key_parse(cluster, key, key_bytes, arena, &ret->key, err);
	if (rc == SC_E_FORMAT)
		return 0;
	if (rc < 0)
		return rc;
	ret->value.kind = ret->key.kind;
	if (present && !keys_only)
		rc = meta_value_parse(ret->key.kind, value, value_bytes, arena, &ret->value, err);
	return rc < 0 ? rc : 1;
}

static int take_kvs(const char *cluster, const json_t *range, bool keys_only, struct sc_arena *arena,
		    struct meta_record *records, uint32_t *nr, struct sc_err *err)
{
	const json_t *kvs = json_object_get(range, "kvs");

	for (size_t i = 0; i < json_array_size(kvs); i++) {
		int rc = take_kv(cluster, json_array_get(kvs, i), true, keys_only, arena, &records[*nr], err);

		if (rc < 0)
			return rc;
		*nr += (uint32_t)rc;
	}
	return 0;
}

static int take_header(const json_t *root, uint64_t *ret_revision, struct sc_err *err)
{
	if (!number(json_object_get(root, "header"), "revision", ret_revision) || !*ret_revision)
		return bad(err, "it has no revision");
	return 0;
}

static int take_responses(const char *cluster, const struct meta_txn *txn, const json_t *root, struct sc_arena *arena,
			  struct meta_answer *a, struct sc_err *err)
{
	const struct meta_op *ops = a->outcome == META_APPLIED ? txn->then : txn->otherwise;
	uint32_t nr_ops = a->outcome == META_APPLIED ? txn->nr_then : txn->nr_else;
	const json_t *all = json_object_get(root, "responses");
	size_t room = nr_ops;

	if (json_array_size(all) != nr_ops)
		return bad(err, "it has another number of parts than the request");
	for (uint32_t i = 0; i < nr_ops; i++)
		room +=
		    json_array_size(json_object_get(json_object_get(json_array_get(all, i), "response_range"), "kvs"));
	a->records = sc_arena_array(arena, room + 1, sizeof(*a->records));
	if (!a->records)
		return sc_nomem(err);
	for (uint32_t i = 0; i < nr_ops; i++) {
		const json_t *range = json_object_get(json_array_get(all, i), "response_range");
		uint32_t before = a->nr;
		int rc;

		if (ops[i].what != META_GET && ops[i].what != META_LIST)
			continue;
		if (!range)
			return bad(err, "a part is not of the kind that was asked for");
		rc = take_kvs(cluster, range, ops[i].keys_only, arena, a->records, &a->nr, err);
		if (rc < 0)
			return rc;
		if (ops[i].what == META_GET && a->nr == before)
			a->records[a->nr++] = (struct meta_record){
			    .key = ops[i].key, .mod = a->revision, .value = {.kind = ops[i].key.kind}};
	}
	return 0;
}

static json_t *load(const void *json, size_t bytes, struct sc_err *err)
{
	json_error_t why;
	json_t *root = bytes <= META_ANSWER_BYTES_MAX ? json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &why) : NULL;

	if (!root)
		(void)sc_fail(err, SC_E_FORMAT, "etcd's answer of %zu bytes is no JSON: %s", bytes,
			      bytes <= META_ANSWER_BYTES_MAX ? why.text : "too long");
	return root;
}

int meta_wire_txn_answer(const char *cluster, const struct meta_txn *txn, const void *json, size_t bytes,
			 struct sc_arena *arena, struct meta_answer *ret, struct sc_err *err)
{
	struct meta_answer a = {.outcome = META_REFUSED};
	json_t *root = load(json, bytes, err);
	int rc;

	if (!root)
		return err->code;
	rc = take_header(root, &a.revision, err);
	if (json_is_true(json_object_get(root, "succeeded")))
		a.outcome = META_APPLIED;
	if (rc == 0)
		rc = take_responses(cluster, txn, root, arena, &a, err);
	json_decref(root);
	if (rc == 0)
		*ret = a;
	return rc;
}

int meta_wire_page_answer(const char *cluster, const void *json, size_t bytes, struct sc_arena *arena,
			  struct meta_answer *ret, const char **ret_next, struct sc_err *err)
{
	struct meta_answer a = {.outcome = META_APPLIED};
	json_t *root = load(json, bytes, err);
	const json_t *kvs = json_object_get(root, "kvs");
	size_t n = json_array_size(kvs), last_bytes;
	uint8_t *last = NULL;
	int rc;

	if (!root)
		return err->code;
	rc = take_header(root, &a.revision, err);
	a.records = sc_arena_array(arena, n + 1, sizeof(*a.records));
	if (rc == 0 && !a.records)
		rc = sc_nomem(err);
	if (rc == 0)
		rc = take_kvs(cluster, root, false, arena, a.records, &a.nr, err);
	if (rc == 0 && json_is_true(json_object_get(root, "more")) && n) {
		rc = bytes_of(json_array_get(kvs, n - 1), "key", arena, &last, &last_bytes, err);
		if (rc == 0 && strlen((char *)last) != last_bytes)
			rc = bad(err, "a key has a zero byte");
	}
	json_decref(root);
	if (rc == 0) {
		*ret = a;
		*ret_next = (const char *)last;
	}
	return rc;
}

static int take_events(const char *cluster, const json_t *events, struct sc_arena *arena, struct meta_watched *w,
		       struct sc_err *err)
{
	w->records = sc_arena_array(arena, json_array_size(events) + 1, sizeof(*w->records));
	if (!w->records)
		return sc_nomem(err);
	for (size_t i = 0; i < json_array_size(events); i++) {
		const json_t *event = json_array_get(events, i);
		const char *type = json_string_value(json_object_get(event, "type"));
		struct meta_record *r = &w->records[w->nr];
		int rc = take_kv(cluster, json_object_get(event, "kv"), !type || strcmp(type, "DELETE") != 0, false,
				 arena, r, err);

		if (rc < 0)
			return rc;
		w->revision = sc_max_u64(w->revision, r->mod);
		w->nr += (uint32_t)rc;
	}
	return 0;
}

int meta_wire_watched(const char *cluster, const void *json, size_t bytes, struct sc_arena *arena,
		      struct meta_watched *ret, struct sc_err *err)
{
	json_t *root = load(json, bytes, err);
	const json_t *result = json_object_get(root, "result");
	struct meta_watched w = {0};
	int rc = 0;

	if (!root)
		return err->code;
	if (!result)
		rc = bad(err, "a watch ends with an error");
	w.created = json_is_true(json_object_get(result, "created"));
	w.cancelled = json_is_true(json_object_get(result, "canceled"));
	if (rc == 0 && !number(result, "compact_revision", &w.compacted))
		rc = bad(err, "a revision is no number");
	if (rc == 0)
		rc = take_events(cluster, json_object_get(result, "events"), arena, &w, err);
	json_decref(root);
	if (rc == 0)
		*ret = w;
	return rc;
}

int meta_wire_lease_answer(const void *json, size_t bytes, uint64_t *ret_lease, uint64_t *ret_ttl_s, struct sc_err *err)
{
	json_t *root = load(json, bytes, err);
	const json_t *result = json_object_get(root, "result");
	bool ok;

	if (!root)
		return err->code;
	ok = number(result ? result : root, "ID", ret_lease) && number(result ? result : root, "TTL", ret_ttl_s) &&
	     *ret_lease;
	json_decref(root);
	return ok ? 0 : bad(err, "it is no lease");
}

bool meta_wire_error(const void *json, size_t bytes, int *ret_code, char *ret_text, size_t room)
{
	json_t *root = json_loadb(json, bytes, 0, NULL);
	const json_t *error = json_object_get(root, "error"), *code = json_object_get(root, "code");
	const char *text = json_string_value(error);

	if (text && json_is_integer(code)) {
		*ret_code = (int)json_integer_value(code);
		(void)snprintf(ret_text, room, "%s", text);
		sc_show(ret_text, room);
	}
	json_decref(root);
	return text && code;
}
