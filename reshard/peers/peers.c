/* SPDX-License-Identifier: Apache-2.0 */
/* Other nodes: where they are, messages to and from them, and the bytes of this store that they ask for. */
#include "reshard/peers/peers_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *rs_peers_address(struct rs_member *m, uint32_t node)
{
	struct meta_op list = {.what = META_LIST, .range = META_RANGE_NODES};
	struct meta_txn txn = {.nr_then = 1, .then = &list, .any_server = true};
	struct sc_err err;

	for (size_t i = 0; i < m->peers.nr; i++)
		if (m->peers.at[i].node == node)
			return m->peers.at[i].address;
	if (!m->asks_peers) /* whatever comes of it, the core or the puller asks again */
		m->asks_peers = meta_etcd_txn(m->etcd, 1, &txn, &err) == 0;
	return NULL;
}

void rs_peers_take(struct rs_member *m, const struct meta_answer *answer)
{
	m->asks_peers = false;
	if (answer->outcome != META_APPLIED)
		return;
	m->peers.nr = 0;
	for (uint32_t i = 0; i < answer->nr; i++) {
		const struct meta_record *r = &answer->records[i];
		struct rs_peer p = {.node = r->key.node};

		if (r->key.kind != META_KEY_NODE || !r->present || !r->value.node.addresses.nr)
			continue;
		(void)snprintf(p.address, sizeof(p.address), "%s", r->value.node.addresses.at[0]);
		(void)sc_vec_push(&m->peers, p); /* else: asked for again */
	}
}

void rs_peers_send(struct rs_member *m, const struct rs_act *a)
{
	static const uint8_t kinds[] = {[RS_MSG_PREPARED] = RS_FRAME_PREPARED, [RS_MSG_REFUSED] = RS_FRAME_REFUSED,
					[RS_MSG_HIDDEN] = RS_FRAME_HIDDEN};
	const struct rs_message *x = &a->message;
	const char *address = rs_peers_address(m, a->node);
	struct rs_net_frame *f;
	struct rs_shared *j;
	struct sc_err err;

	f = address ? sc_zalloc(sizeof(*f)) : NULL;
	if (!f)
		return;
	f->kind = kinds[x->kind];
	f->message = (struct rs_frame_message){.job = x->job, .token = x->token, .nr = x->nr};
	if (x->kind == RS_MSG_REFUSED)
		f->message.code = (uint32_t)-x->code;
	(void)pthread_mutex_lock(&m->lock);
	j = rs_shared_of(m, x->job);
	if (j && x->kind == RS_MSG_REFUSED && j->refused == x->token)
		(void)snprintf(f->message.text, sizeof(f->message.text), "%s", j->why);
	(void)pthread_mutex_unlock(&m->lock);
	if (rs_net_send(m->net, address, f, &err) < 0)
		sc_log(SC_LOG_DEBUG, "node %u: %s", a->node, err.msg);
	sc_sys.release(f);
}

/* Bytes of a sealed blob, by its number. */
static int serve(void *arg, const struct rs_node_id *peer, const struct rs_pull *p, uint8_t *to)
{
	struct rs_member *m = arg;
	char *end;
	unsigned long long blob = strtoull(p->file, &end, 10);
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err err;

	(void)peer;
	if (strcmp(p->tensor, "part") == 0)
		return rs_part_serve(m, p, to);
	if (*p->tensor || p->file == end || *end || !blob || !rs_pull_is_run(p, &(uint64_t){0}))
		return RS_CODE_BAD;
	if (meta_store_open_blob(&m->s->store, blob, UINT64_MAX, &fd, &err) < 0)
		return err.code == SC_E_DAMAGED ? RS_CODE_DAMAGED : RS_CODE_NOT_HERE;
	return sc_pread_all(fd, to, p->bytes, p->from + p->at) < 0 ? RS_CODE_DAMAGED : RS_CODE_OK;
}

static bool is_member(void *arg, uint32_t node, uint64_t epoch)
{
	const struct rs_member *m = arg;

	return rs_core_has_member(m->core, node, epoch);
}

int rs_peers_start(struct rs_member *m,
		   void (*message)(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f),
		   struct sc_err *err)
{
	struct rs_net_config c = {.id = {.node = m->node, .protocol_min = RS_PROTOCOL, .protocol_max = RS_PROTOCOL},
				  .nr_secrets = 1, .listen = m->listen, .hello_ms = 2000, .arg = m, .serve = serve,
				  .message = message, .is_member = is_member};

	memcpy(c.id.cluster, m->id, sizeof(m->id));
	memcpy(c.secrets[0], m->secret, sizeof(m->secret));
	if (sc_sys.random(&c.id.boot, sizeof(c.id.boot), 0) != (ssize_t)sizeof(c.id.boot))
		return sc_fail_sys(err, errno, "cannot get a random number");
	return rs_net_new(&c, &m->net, err);
}
