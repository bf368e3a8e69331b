/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints and parses names of keys.  Both walk the same pattern of a path.  Parsing takes exactly what printing makes:
 * no leading zeros, no signs, lower-case hex.
 */
#include "meta/member/member_i.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/text.h"

const struct meta_kind meta_kinds[] = {
#define X(name, path, bytes) [META_KEY_##name] = {#name, path, bytes},
    META_KEY_KINDS(X)
#undef X
};

/* --- words --- */

bool meta_read_number(const char *p, const char *end, uint64_t *ret)
{
	uint64_t n = 0;

	if (p == end || (*p == '0' && end - p > 1))
		return false;
	for (; p < end; p++)
		if (*p < '0' || *p > '9' || !sc_mul_u64(n, 10, &n) || !sc_add_u64(n, (uint64_t)(*p - '0'), &n))
			return false;
	*ret = n;
	return true;
}

static int nibble(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool meta_read_hex(const char *p, const char *end, uint8_t *ret, size_t bytes)
{
	if ((size_t)(end - p) != 2 * bytes)
		return false;
	for (size_t i = 0; i < bytes; i++) {
		int high = nibble(p[2 * i]), low = nibble(p[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		ret[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

bool meta_read_token(const char *p, const char *end, uint64_t *ret)
{
	uint8_t b[8];

	if (!meta_read_hex(p, end, b, sizeof(b)))
		return false;
	*ret = 0;
	for (size_t i = 0; i < sizeof(b); i++)
		*ret = *ret << 8 | b[i];
	return true;
}

void meta_add_token(struct sc_buf *buf, uint64_t token)
{
	uint8_t b[8];

	for (size_t i = 0; i < sizeof(b); i++)
		b[i] = (uint8_t)(token >> (56 - 8 * i));
	sc_buf_hex(buf, b, sizeof(b));
}

/* --- keys --- */

bool meta_plain_name(const char *name, size_t bytes_max)
{
	const size_t bytes = strlen(name);

	return bytes > 0 && bytes <= bytes_max &&
	       strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == bytes;
}

bool meta_cluster_name_ok(const char *name)
{
	return name[0] != '.' && meta_plain_name(name, META_CLUSTER_NAME_MAX);
}

static bool text_ok(const char *p, size_t bytes)
{
	return bytes && bytes <= 255 && !memchr(p, '/', bytes) && !memchr(p, 0, bytes);
}

int meta_key_print(const char *cluster, const struct meta_key *key, struct sc_buf *buf, struct sc_err *err)
{
	if (!meta_cluster_name_ok(cluster))
		return sc_fail(err, SC_E_LIMIT,
			       "'%.70s' is no name of a cluster: it has 1 to %u letters, digits, '-', '_' and '.'",
			       cluster, META_CLUSTER_NAME_MAX);
	sc_buf_printf(buf, "/scalai/%s/", cluster);
	for (const char *p = meta_kinds[key->kind].path; *p; p++) {
		if (*p != '%') {
			sc_buf_byte(buf, *p);
			continue;
		}
		switch (*++p) {
		case 'j':
			meta_add_token(buf, key->job);
			break;
		case 'v':
			sc_buf_number(buf, key->nr);
			break;
		case 'n':
			sc_buf_number(buf, key->node);
			break;
		case 'h':
			sc_buf_hex(buf, key->hash.at, sizeof(key->hash.at));
			break;
		default:
			if (!key->text || !text_ok(key->text, strlen(key->text)))
				return sc_fail(
				    err, SC_E_LIMIT,
				    "key '%s' of etcd: a name has 1 to 255 bytes, and no '/'",
				    meta_kinds[key->kind].path);
			sc_buf_add(buf, key->text, strlen(key->text));
		}
	}
	return buf->failed ? sc_nomem(err) : 0;
}

/* Reads a key of the kind that has this path: 1, 0 (the text is no key of this kind) or an error. */
static int match(const char *path, const char *p, const char *end, struct sc_arena *arena, struct meta_key *k,
		 struct sc_err *err)
{
	for (; *path; path++) {
		const char *to;
		uint64_t node;
		bool ok = true;

		if (*path != '%') {
			if (p == end || *p++ != *path)
				return 0;
			continue;
		}
		to = memchr(p, '/', (size_t)(end - p));
		to = to ? to : end;
		switch (*++path) {
		case 'j':
			ok = meta_read_token(p, to, &k->job);
			break;
		case 'v':
			ok = meta_read_number(p, to, &k->nr);
			break;
		case 'n':
			ok = meta_read_number(p, to, &node) && node < META_NODES_MAX;
			k->node = ok ? (uint32_t)node : 0;
			break;
		case 'h':
			ok = meta_read_hex(p, to, k->hash.at, sizeof(k->hash.at));
			break;
		default:
			ok = text_ok(p, (size_t)(to - p));
			if (ok && !(k->text = sc_arena_copy(arena, p, (size_t)(to - p))))
				return sc_nomem(err);
		}
		if (!ok)
			return 0;
		p = to;
	}
	return p == end;
}

int meta_key_parse(const char *cluster, const void *text, size_t bytes, struct sc_arena *arena, struct meta_key *ret,
		   struct sc_err *err)
{
	const char *p = text, *end = p + bytes;
	char prefix[META_CLUSTER_NAME_MAX + 16];
	size_t n;

	(void)snprintf(prefix, sizeof(prefix), "/scalai/%s/", cluster);
	n = strlen(prefix);
	if (bytes < n || bytes > META_KEY_BYTES_MAX || memcmp(p, prefix, n) != 0)
		return sc_fail(err, SC_E_FORMAT, "a key of etcd of %zu bytes is none of the cluster '%s'", bytes,
			       cluster);
	for (enum meta_key_kind kind = 0; kind < META_KEY_KINDS_NR; kind++) {
		struct meta_key k = {.kind = kind};
		int rc = match(meta_kinds[kind].path, p + n, end, arena, &k, err);

		if (rc < 0)
			return rc;
		if (rc > 0) {
			*ret = k;
			return 0;
		}
	}
	return sc_fail(err, SC_E_FORMAT, "cluster '%s': etcd has a key of %zu bytes that this program does not know",
		       cluster, bytes);
}
