/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/format/shards.h"

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
