/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/rank_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void make(const struct rank_tensor *t, size_t nr, uint32_t salt, uint32_t rank, struct sc_buf *ret)
{
	struct sc_buf header = {0};
	uint64_t at = 0, n;

	sc_buf_printf(&header, "{\"__metadata__\":{\"rank\":\"%u\",\"salt\":\"%u\"}", rank, salt);
	for (size_t i = 0; i < nr; i++) {
		sc_buf_printf(&header, ",\"%s\":{\"dtype\":\"U32\",\"shape\":[", t[i].name);
		for (int d = 0; d < t[i].shape->nr; d++)
			sc_buf_printf(&header, "%s%" PRIu64, d ? "," : "", t[i].shape->dim[d]);
		sc_buf_printf(&header, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + t[i].bytes);
		at += t[i].bytes;
	}
	sc_buf_printf(&header, "}");
	n = header.bytes;
	sc_buf_add(ret, &n, 8);
	sc_buf_add(ret, header.text, header.bytes);
	for (size_t i = 0; i < nr; i++)
		sc_buf_add(ret, t[i].data, t[i].bytes);
	sc_buf_done(&header);
}

static bool get(const unsigned char *file, uint64_t bytes, const char *name, uint32_t *to, uint64_t to_bytes)
{
	uint64_t header, begin, end;
	char key[200];
	const char *at;

	memcpy(&header, file, 8);
	if (bytes < 8 || header > bytes - 8)
		return false;
	(void)snprintf(key, sizeof(key), "\"%s\":{", name);
	at = memmem(file + 8, header, key, strlen(key));
	at = at ? strstr(at, "\"data_offsets\":[") : NULL;
	if (!at || sscanf(at, "\"data_offsets\":[%" SCNu64 ",%" SCNu64, &begin, &end) != 2 || begin > end ||
	    end > bytes - 8 - header || end - begin != to_bytes)
		return false;
	memcpy(to, file + 8 + header + begin, to_bytes);
	return true;
}

static bool has_salt(const unsigned char *file, uint64_t bytes, uint32_t salt)
{
	char text[40];
	int n = snprintf(text, sizeof(text), "\"salt\":\"%u\"", salt);

	return memmem(file, bytes, text, (size_t)n) != NULL;
}

static const struct rank_files safetensors = {".safetensors", make, get, has_salt};

const struct rank_files *rank_files = &safetensors;
