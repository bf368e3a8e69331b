/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/catalog/tensor_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"

void meta_tensor_line_add(struct sc_buf *buf, const struct meta_tensor_line *t)
{
	sc_buf_printf(buf, "%s@%u\t%s", meta_dtype_name(t->dtype), t->skew, t->has_digest ? "" : "-");
	if (t->has_digest)
		sc_buf_hex(buf, t->digest, sizeof(t->digest));
	sc_buf_add(buf, "\t", 1);
	for (int k = 0; k < t->shape.nr; k++)
		sc_buf_printf(buf, "%s%" PRIu64, k ? "," : "", t->shape.dim[k]);
	/* the key is last: a name may hold any character but a line feed (escaped) */
	sc_buf_add(buf, "\t", 1);
	sc_buf_quoted(buf, t->key);
	sc_buf_add(buf, "\n", 1);
}

bool meta_tensor_line_parse(char *line, struct meta_tensor_line *ret)
{
	char *digest = strchr(line, '\t'), *shape = digest ? strchr(digest + 1, '\t') : NULL;
	char *key = shape ? strchr(shape + 1, '\t') : NULL, *at = strchr(line, '@'), *end;
	unsigned long skew;
	int dtype;

	*ret = (struct meta_tensor_line){0};
	if (!key || !at || at > digest)
		return false;
	*digest++ = *shape++ = *key++ = 0;
	*at++ = 0;
	skew = strtoul(at, &end, 10);
	dtype = meta_dtype_find(line, strlen(line));
	for (char *save = NULL, *d = strtok_r(shape, ",", &save); d; d = strtok_r(NULL, ",", &save)) {
		if (ret->shape.nr == SC_DIMS_MAX)
			return false;
		ret->shape.dim[ret->shape.nr++] = strtoull(d, NULL, 10);
	}
	sc_unquote(key);
	ret->key = key;
	ret->dtype = (enum meta_dtype)dtype;
	ret->skew = (uint16_t)skew;
	ret->has_digest = *digest != '-' && strlen(digest) == 32;
	for (int i = 0; ret->has_digest && i < 16; i++)
		(void)sscanf(digest + 2 * i, "%2hhx", &ret->digest[i]);
	return dtype >= 0 && !*end && skew < SC_DATA_ALIGN && strchr(key, ':');
}
