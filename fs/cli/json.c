/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cli/json.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys of `status` that are lists. */
static const char *const lists[] = {"checkpoint", "damaged", "data", "dirty", "no_place", "note", "objects", "older",
				    "replicas", "set", "uncut"};

#define NR_LISTS (sizeof(lists) / sizeof(*lists))

/* Makes a value of a text: an integer if it is one and nothing else. */
static json_t *value_of(const char *text, size_t bytes)
{
	char number[24], *end;
	long long n;

	if (bytes && bytes < sizeof(number) && strspn(text, "0123456789") >= bytes && (*text != '0' || bytes == 1)) {
		memcpy(number, text, bytes);
		number[bytes] = 0;
		errno = 0;
		n = strtoll(number, &end, 10);
		if (errno == 0 && *end == 0)
			return json_integer(n);
	}
	return json_stringn_nocheck(text, bytes);
}

static bool is_list(const char *key)
{
	for (size_t i = 0; i < NR_LISTS; i++)
		if (strcmp(lists[i], key) == 0)
			return true;
	return false;
}

static int add_pair(json_t *object, const char *key, json_t *value)
{
	return is_list(key) ? json_array_append_new(json_object_get(object, key), value)
			    : json_object_set_new_nocheck(object, key, value);
}

json_t *cli_json_lines(const char *text)
{
	json_t *object = json_object();
	int rc = object ? 0 : -1;
	size_t bytes;

	for (size_t i = 0; rc == 0 && i < NR_LISTS; i++)
		rc = json_object_set_new_nocheck(object, lists[i], json_array());
	for (; rc == 0 && *text; text += bytes + (text[bytes] == '\n')) {
		const char *colon;
		char key[64];

		bytes = strcspn(text, "\n");
		colon = memchr(text, ':', bytes);
		if (!colon || (size_t)(colon - text) >= sizeof(key))
			continue;
		memcpy(key, text, (size_t)(colon - text));
		key[colon - text] = 0;
		for (char *p = key; *p; p++)
			*p = *p == ' ' ? '_' : *p;
		colon += 1 + (colon[1] == ' ');
		if (strcmp(key, "version") == 0 && strncmp(colon, "none\n", 5) == 0)
			rc = add_pair(object, key, json_null());
		else
			rc = add_pair(object, key, value_of(colon, bytes - (size_t)(colon - text)));
	}
	if (rc == 0)
		return object;
	json_decref(object);
	return NULL;
}

/* Makes an object of a line. */
static json_t *row_of(const char *names, const char *line, size_t bytes)
{
	json_t *row = json_object();

	for (bool more = true; row && more;) {
		const size_t n = strcspn(names, "\t\n");
		const bool is_last = names[n] != '\t';
		const char *tab = is_last ? NULL : memchr(line, '\t', bytes);
		const size_t cell = tab ? (size_t)(tab - line) : bytes;
		char key[64];

		(void)snprintf(key, sizeof(key), "%.*s", (int)n, names);
		if (json_object_set_new_nocheck(row, key, value_of(line, cell)) < 0) {
			json_decref(row);
			return NULL;
		}
		more = tab;
		names += n + 1;
		line += cell + 1;
		bytes -= cell + more;
	}
	return row;
}

json_t *cli_json_rows(const char *names, const char *text)
{
	json_t *rows = json_array();
	size_t bytes;

	for (; rows && *text; text += bytes + (text[bytes] == '\n')) {
		bytes = strcspn(text, "\n");
		if (bytes && json_array_append_new(rows, row_of(names, text, bytes)) < 0) {
			json_decref(rows);
			return NULL;
		}
	}
	return rows;
}

json_t *cli_json_table(const char *text)
{
	const size_t head = strcspn(text, "\n");

	return cli_json_rows(text, text + head + (text[head] == '\n'));
}

int cli_json_print(json_t *json)
{
	char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;

	json_decref(json);
	if (!text) {
		(void)fprintf(stderr, "scalai: out of memory\n");
		return 1;
	}
	(void)printf("%s\n", text);
	free(text);
	return 0;
}
