/* SPDX-License-Identifier: Apache-2.0 */
/* What versions are made of, to etcd and from there. */
#include "reshard/peers/peers_i.h"

#include <string.h>

static int name(void *arg, const void *at, size_t bytes, uint8_t ret[RS_OBJECT_NAME_BYTES], struct sc_err *err)
{
	(void)arg;
	(void)err;
	rs_sha256(at, bytes, ret);
	return 0;
}

static int put(void *arg, const uint8_t named[RS_OBJECT_NAME_BYTES], const void *at, size_t bytes, struct sc_err *err)
{
	struct rs_bag *bag = arg;

	if (sc_vec_push(&bag->all, (typeof(*bag->all.at)){.bytes = {0}}) < 0)
		return sc_nomem(err);
	memcpy(bag->all.at[bag->all.nr - 1].name, named, RS_OBJECT_NAME_BYTES);
	sc_buf_add(&bag->all.at[bag->all.nr - 1].bytes, at, bytes);
	return bag->all.at[bag->all.nr - 1].bytes.failed ? sc_nomem(err) : 0;
}

static int get(void *arg, const uint8_t named[RS_OBJECT_NAME_BYTES], struct sc_buf *to, struct sc_err *err)
{
	struct rs_bag *bag = arg;

	for (size_t i = 0; i < bag->all.nr; i++)
		if (memcmp(bag->all.at[i].name, named, RS_OBJECT_NAME_BYTES) == 0) {
			sc_buf_add(to, bag->all.at[i].bytes.text, bag->all.at[i].bytes.bytes);
			return to->failed ? sc_nomem(err) : 0;
		}
	memcpy(bag->lacks, named, RS_OBJECT_NAME_BYTES);
	bag->lacking = true;
	return sc_fail(err, SC_E_NOT_FOUND, "an object was not fetched yet");
}

const struct rs_object_ops rs_bag_ops = {.name = name, .put = put, .get = get};

void rs_bag_done(struct rs_bag *bag)
{
	for (size_t i = 0; i < bag->all.nr; i++)
		sc_buf_done(&bag->all.at[i].bytes);
	sc_vec_done(&bag->all);
}

/* Values of etcd are texts here: an object is its base64. */
static int put_one(struct rs_member *m, const uint8_t named[RS_OBJECT_NAME_BYTES], const struct sc_buf *bytes,
		   struct sc_err *err)
{
	struct meta_op op = {.what = META_PUT, .key = {.kind = META_KEY_OBJECT}, .value = {.kind = META_KEY_OBJECT}};
	struct meta_txn txn = {.nr_then = 1, .then = &op};
	enum meta_outcome outcome = META_UNKNOWN;
	struct sc_buf text = {0};

	meta_add_base64(&text, bytes->text, bytes->bytes);
	memcpy(op.key.hash.at, named, RS_OBJECT_NAME_BYTES);
	op.value.rest = text.text ? text.text : "";
	if (text.failed)
		return sc_nomem(err);
	outcome = rs_member_ask(m, &txn, NULL, NULL);
	sc_buf_done(&text);
	return outcome == META_APPLIED ? 0 : sc_fail(err, SC_E_SYSTEM, "etcd has not taken an object of %zu bytes; try "
						     "again", bytes->bytes);
}

int rs_bag_put(struct rs_member *m, const struct rs_bag *bag, struct sc_err *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < bag->all.nr; i++)
		rc = put_one(m, bag->all.at[i].name, &bag->all.at[i].bytes, err);
	return rc;
}

struct getting {
	struct sc_buf to;
	bool found, failed;
};

static void on_object(void *arg, const struct meta_answer *answer)
{
	struct getting *g = arg;
	const char *text = answer->nr && answer->records[0].present ? answer->records[0].value.rest : NULL;
	size_t bytes = text ? strlen(text) : 0, nr = 0;
	uint8_t *at = text ? sc_zalloc(3 * bytes / 4 + 1) : NULL;

	g->found = text != NULL;
	g->failed = text && (!at || !meta_read_base64(text, bytes, at, &nr));
	if (at && !g->failed)
		sc_buf_add(&g->to, at, nr);
	sc_sys.release(at);
}

int rs_bag_get(struct rs_member *m, struct rs_bag *bag, struct sc_err *err)
{
	struct meta_op op = {.what = META_GET, .key = {.kind = META_KEY_OBJECT}};
	struct meta_txn txn = {.nr_then = 1, .then = &op};
	struct getting g = {.found = false};
	int rc = 0;

	bag->lacking = false;
	memcpy(op.key.hash.at, bag->lacks, RS_OBJECT_NAME_BYTES);
	if (rs_member_ask(m, &txn, on_object, &g) != META_APPLIED)
		rc = sc_fail(err, SC_E_SYSTEM, "etcd has not answered when it was asked for an object");
	else if (!g.found)
		rc = sc_fail(err, SC_E_NOT_FOUND, "etcd lacks the object %02x%02x%02x%02x... of a version",
			     bag->lacks[0], bag->lacks[1], bag->lacks[2], bag->lacks[3]);
	else if (g.failed || g.to.failed)
		rc = sc_fail(err, SC_E_FORMAT, "an object of a version in etcd cannot be read");
	if (rc == 0)
		rc = put(bag, bag->lacks, g.to.text, g.to.bytes, err);
	sc_buf_done(&g.to);
	return rc;
}
