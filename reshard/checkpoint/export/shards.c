/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/checkpoint/export/shards.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int rs_shards_index(const struct rs_sharded *tensors, size_t nr, uint64_t bytes, struct sc_buf *ret,
		    struct sc_err *err)
{
	json_t *map = json_object();
	char *text = NULL;
	int rc = map ? 0 : sc_nomem(err);

	for (size_t i = 0; rc == 0 && i < nr; i++) {
		json_t *name = json_string(tensors[i].name), *file = json_string(tensors[i].file);

		if (!name || !file)
			rc = sc_fail(err, SC_E_UNSUPPORTED, "a tensor's name is no text of UTF-8: '%.100s'",
				     tensors[i].name);
		else if (json_object_set(map, tensors[i].name, file) < 0)
			rc = sc_nomem(err);
		json_decref(name);
		json_decref(file);
	}
	if (rc == 0) {
		text = json_dumps(map, JSON_INDENT(2) | JSON_SORT_KEYS);
		rc = text ? 0 : sc_nomem(err);
	}
	if (rc == 0)
		sc_buf_printf(ret, "{\"metadata\": {\"total_size\": %llu}, \"weight_map\": %s}\n",
			      (unsigned long long)bytes, text);
	free(text);
	json_decref(map);
	return rc == 0 && ret->failed ? sc_nomem(err) : rc;
}

int rs_shards_read(const char *text, size_t bytes, int (*each)(void *arg, const struct rs_sharded *tensor), void *arg,
		   struct sc_err *err)
{
	json_error_t why;
	json_t *index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
	json_t *map = json_object_get(index, "weight_map"), *file;
	const char *name;
	int rc = 0;

	if (!index && json_error_code(&why) == json_error_out_of_memory)
		rc = sc_nomem(err);
	else if (!index)
		rc = sc_fail(err, SC_E_FORMAT, "an index of shards is JSON: %s (line %d)", why.text, why.line);
	else if (!json_is_object(map))
		rc = sc_fail(err, SC_E_FORMAT, "an index of shards has a weight_map");
	json_object_foreach(map, name, file) {
		if (rc == 0 && !json_is_string(file))
			rc = sc_fail(err, SC_E_FORMAT, "weight_map: '%.100s' has no name of a file", name);
		if (rc == 0)
			rc = each(arg, &(struct rs_sharded){name, json_string_value(file)});
	}
	json_decref(index);
	return rc;
}
