/* SPDX-License-Identifier: Apache-2.0 */
/* Scans samples of one size, which need no table.  An .npy begins with a magic, a version, a length, and a Python dict
 * as text. */
#include "reshard/data/index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/text.h"

int rs_index_records(struct rs_index *x, struct sc_err *err)
{
	uint64_t record = x->spec->record, head = x->spec->head;

	if (x->bytes < head || (x->bytes - head) % record)
		return sc_fail(err, SC_E_FORMAT,
			       "'%s' has %" PRIu64 " bytes, expected %" PRIu64 " and a multiple of record=%" PRIu64,
			       x->path, x->bytes, head, record);
	x->info->first = head;
	x->info->samples = x->info->sequences = (x->bytes - head) / record;
	/* all sources have one head, and every partition repeats it */
	sc_buf_hex(&x->form, x->map, head);
	return 0;
}

/* --- .npy --- */

#define NPY_HEAD_MAX 65536

struct npy {
	char descr[32];
	char shape[256];		/* of a row: "3, 4" */
	uint64_t rows, row_bytes;
};

/* Returns the text after 'key':, NULL if the key is missing. */
static const char *value_of(const char *dict, const char *key)
{
	const char *at = strstr(dict, key);

	if (!at)
		return NULL;
	at += strlen(key);
	at += strspn(at, " ");
	if (*at++ != ':')
		return NULL;
	return at + strspn(at, " ");
}

static bool parse_descr(const char *at, struct npy *n, uint64_t *ret_item)
{
	size_t bytes;
	char *end;

	if (*at != '\'' && *at != '"')
		return false; /* a list: fields with names */
	bytes = strcspn(at + 1, "'\"");
	if (bytes < 3 || bytes >= sizeof(n->descr) || !strchr("<>|=", at[1]) || !strchr("biufcSVU?", at[2]))
		return false;
	memcpy(n->descr, at + 1, bytes);
	n->descr[bytes] = 0;
	*ret_item = strtoull(n->descr + 2, &end, 10) * (n->descr[1] == 'U' ? 4 : 1);
	return *end == 0 && *ret_item > 0 && *ret_item <= 1u << 20;
}

/* Reads a shape: "(10, 3, 4)" is 10 rows, shape "3, 4", 12 items. */
static bool parse_shape(const char *at, struct npy *n, uint64_t *ret_items)
{
	bool first = true;
	size_t used = 0;

	*ret_items = 1;
	if (*at++ != '(')
		return false;
	for (;;) {
		char *end;
		uint64_t dim;

		at += strspn(at, " ");
		if (*at == ')')
			return !first;
		if (*at < '0' || *at > '9')
			return false;
		dim = strtoull(at, &end, 10);
		if (first)
			n->rows = dim;
		else if (!sc_mul_u64(*ret_items, dim, ret_items) || used + (size_t)(end - at) + 3 > sizeof(n->shape))
			return false;
		if (!first) {
			if (used)
				used += (size_t)(stpcpy(n->shape + used, ", ") - (n->shape + used));
			memcpy(n->shape + used, at, (size_t)(end - at));
			used += (size_t)(end - at);
			n->shape[used] = 0;
		}
		first = false;
		at = end + strspn(end, " ");
		if (*at == ',')
			at++;
		else if (*at != ')')
			return false;
	}
}

static int parse_dict(struct rs_index *x, const char *dict, struct npy *n, struct sc_err *err)
{
	const char *descr = value_of(dict, "'descr'"), *fortran = value_of(dict, "'fortran_order'"),
		   *shape = value_of(dict, "'shape'");
	uint64_t item, items;

	if (!descr || !fortran || !shape)
		return sc_fail(err, SC_E_FORMAT, "'%s': its header '%.100s' lacks descr, fortran_order or shape",
			       x->path, dict);
	if (!parse_descr(descr, n, &item))
		return sc_fail(err, SC_E_FORMAT, "'%s': type %.60s is not a simple type of at most 1 MiB; add the "
			"file with "
			       "format=records record=BYTES head=BYTES", x->path, descr);
	if (!parse_shape(shape, n, &items) || !sc_mul_u64(item, items, &n->row_bytes))
		return sc_fail(err, SC_E_FORMAT, "'%s': shape %.60s has no rows", x->path, shape);
	if (strncmp(fortran, "False", 5) != 0 && *n->shape)
		return sc_fail(err, SC_E_FORMAT, "'%s' is in Fortran order, where rows are not contiguous; save it in "
			"C order", x->path);
	if (n->row_bytes == 0)
		return sc_fail(err, SC_E_FORMAT, "'%s': rows of shape (%s) have no bytes", x->path, n->shape);
	return 0;
}

int rs_index_npy(struct rs_index *x, struct sc_err *err)
{
	static const unsigned char magic[] = "\x93NUMPY";
	const unsigned char *m = x->map;
	struct npy n = {.rows = 0};
	uint64_t head, at, have;
	char dict[NPY_HEAD_MAX + 1];
	int rc;

	if (x->bytes < 12 || memcmp(m, magic, 6) != 0 || m[6] < 1 || m[6] > 3)
		return sc_fail(err, SC_E_FORMAT, "'%s' does not begin like an .npy file of version 1 to 3", x->path);
	at = m[6] == 1 ? 10 : 12;
	head = m[8] | (uint64_t)m[9] << 8;
	if (m[6] > 1)
		head |= (uint64_t)m[10] << 16 | (uint64_t)m[11] << 24;
	if (head > NPY_HEAD_MAX || head > x->bytes - at)
		return sc_fail(err, SC_E_FORMAT, "'%s' ends in its header: %" PRIu64 " bytes, expected %" PRIu64,
			x->path,
			       x->bytes - at, head);
	memcpy(dict, m + at, head);
	dict[head] = 0;
	rc = parse_dict(x, dict, &n, err);
	if (rc < 0)
		return rc;
	x->info->first = at + head;
	have = x->bytes - x->info->first;
	if (have % n.row_bytes || have / n.row_bytes != n.rows)
		return sc_fail(err, SC_E_FORMAT, "'%s' has %" PRIu64 " bytes of data, but its header says %" PRIu64 " "
			"rows of %" PRIu64,
			       x->path, have, n.rows, n.row_bytes);
	x->info->samples = x->info->sequences = n.rows;
	sc_buf_printf(&x->form, "%s (%s) %" PRIu64, n.descr, n.shape, n.row_bytes);
	return 0;
}

void rs_npy_head(const char *form, uint64_t rows, struct sc_buf *buf)
{
	const char *open = strchr(form, '('), *close = strrchr(form, ')');
	struct sc_buf dict = {0};
	size_t pad, n;

	sc_buf_printf(&dict, "{'descr': '%.*s', 'fortran_order': False, 'shape': (%" PRIu64 ",%s%.*s), }",
		      (int)(open - form - 1), form, rows, close - open > 1 ? " " : "", (int)(close - open - 1),
		      open + 1);
	n = dict.bytes;
	pad = 63 - (10 + n) % 64; /* and a newline: the data begins at a multiple of 64 */
	sc_buf_add(buf, "\x93NUMPY\x01\x00", 8);
	sc_buf_add(buf, (const unsigned char[]){(n + pad + 1) & 255, (n + pad + 1) >> 8}, 2);
	sc_buf_add(buf, dict.text ? dict.text : "", n);
	for (size_t i = 0; i < pad; i++)
		sc_buf_add(buf, " ", 1);
	sc_buf_add(buf, "\n", 1);
	buf->failed |= dict.failed;
	sc_buf_done(&dict);
}
