/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/codec/format/torch_i.h"

#include "meta/base/limits.h"

static uint64_t get_u64(const char *at)
{
	uint64_t x = 0;

	for (int i = 7; i >= 0; i--)
		x = x << 8 | (unsigned char)at[i];
	return x;
}

static int refuse_cut(struct sc_err *err)
{
	return sc_fail(err, SC_E_CORRUPT, "torch: the payload is cut");
}

int rs_torch_payload_read(const char *payload, size_t bytes, struct sc_arena *arena, struct rs_torch_payload *ret,
			  struct sc_err *err)
{
	const char *at = payload + RS_PAYLOAD_HEAD_BYTES, *data;
	struct rs_torch_payload p = {0};
	uint64_t pickle, left;

	if (bytes < RS_PAYLOAD_HEAD_BYTES)
		return refuse_cut(err);
	pickle = get_u64(payload);
	p.nr = get_u64(payload + 8);
	left = bytes - RS_PAYLOAD_HEAD_BYTES;
	if (p.nr > left / 8 || pickle > left - 8 * p.nr)
		return refuse_cut(err);
	p.carried = sc_arena_array(arena, p.nr + 1, sizeof(*p.carried));
	if (!p.carried)
		return sc_nomem(err);
	left -= 8 * p.nr + pickle;
	data = at + 8 * p.nr + pickle;
	for (uint64_t i = 0; i < p.nr; i++, at += 8) {
		p.carried[i] = (struct rs_torch_carried){.data = data, .bytes = get_u64(at)};
		if (p.carried[i].bytes > left)
			return refuse_cut(err);
		left -= p.carried[i].bytes;
		data += p.carried[i].bytes;
	}
	if (rs_pickle_read(at, pickle, &p.pickle, err) < 0)
		return err->code;
	/* parse() has walked through what these objects were made of: that was shorter than a walk may be */
	p.pickle.bytes = SC_PICKLE_BYTES_MAX;
	*ret = p;
	return 0;
}

int rs_torch_carried_of(struct rs_torch_payload *p, const struct rs_pickled *persist, struct rs_torch_carried **ret,
			struct sc_err *err)
{
	const struct rs_pickled *id = persist->id;
	const struct rs_pickled *key = id->kind == RS_PICKLED_TUPLE && id->tuple.nr == 5 ? id->tuple.at[2] : NULL;
	uint64_t i = 0;

	for (uint64_t k = 0; key && key->kind == RS_PICKLED_TEXT && k < key->bytes.nr && i < p->nr; k++)
		i = 10 * i + (uint64_t)(key->bytes.at[k] - '0');
	if (!key || i >= p->nr)
		return sc_fail(err, SC_E_CORRUPT, "torch: the payload has no such storage");
	*ret = &p->carried[i];
	return 0;
}
