/* SPDX-License-Identifier: Apache-2.0 */
/* Talks to other nodes: finds where they are, sends and takes messages, and serves bytes of this store. */
#include "reshard/cluster/peers/peers_i.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "meta/catalog/nodes.h"

SC_METRIC(served, SC_COUNTER, "scalai_served_total", "Requests of other nodes for bytes that were given.");
SC_METRIC(bytes_served, SC_COUNTER, "scalai_served_bytes_total", "Bytes that other nodes were given.");

uint8_t rs_protocol_in(const struct meta_record *r)
{
	const char *text = r->present && r->value.rest ? r->value.rest : "";
	uint32_t nr;

	return r->key.kind == META_KEY_PROTOCOL && sc_number_parse(text, strcspn(text, "\n"), &nr) && nr <= UINT8_MAX
		       ? (uint8_t)nr : 0;
}

int rs_protocol_check(const struct rs_member *m, uint8_t protocol, struct sc_err *err)
{
	if (protocol >= rs_protocols.min && protocol <= rs_protocols.max)
		return 0;
	return sc_fail(err, SC_E_UNSUPPORTED, "cluster '%s' speaks protocol %u, this program %u to %u: use %s",
		       m->cluster, protocol, rs_protocols.min, rs_protocols.max,
		       protocol > rs_protocols.max ? "a newer one" : "an older one, or let the cluster speak a newer "
			       "protocol (protocol=N in .ctl/cluster)");
}

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

const char *rs_peers_text(const struct rs_member *m, uint32_t node, char to[RS_PEER_TEXT])
{
	(void)snprintf(to, RS_PEER_TEXT, "node %u", node);
	for (size_t i = 0; i < m->peers.nr; i++)
		if (m->peers.at[i].node == node)
			(void)snprintf(to, RS_PEER_TEXT, "node %u ('%s' at %s)", node, m->peers.at[i].name,
				       m->peers.at[i].address);
	return to;
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
		(void)snprintf(p.name, sizeof(p.name), "%s", r->value.node.name ? r->value.node.name : "");
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

/* Gives the number that another node's blob has here; 0: it is not here.  Reads the catalog, which may wait, once a
 * blob. */
static uint64_t copy_of(struct rs_member *m, uint32_t node, uint64_t number)
{
	struct rs_served *s = &m->served[(number * 31 + node) % (sizeof(m->served) / sizeof(*m->served))];
	struct sc_err err;
	uint64_t blob;

	if (s->node == node && s->number == number)
		return s->blob;
	if (meta_blob_here(m->s->catalog, node, number, &blob, &err) <= 0)
		return 0;
	*s = (struct rs_served){node, number, blob};
	return blob;
}

/* Reads what a pull asks about a blob (RS_ABOUT_*; NULL: its bytes).  Returns what follows in the text. */
static const char *about(const char *tensor, const char **ret)
{
	static const char *const all[] = {RS_ABOUT_HASH, RS_ABOUT_LOOK, RS_ABOUT_WRONG};

	*ret = NULL;
	for (size_t i = 0; !*ret && i < sizeof(all) / sizeof(*all); i++)
		if (strncmp(tensor, all[i], strlen(all[i])) == 0)
			*ret = all[i];
	if (!*ret)
		return tensor;
	tensor += strlen(*ret);
	return *tensor == ' ' && tensor[1] ? tensor + 1 : tensor; /* what else follows is none of this */
}

static int serve_about(struct rs_member *m, uint64_t blob, const char *about, uint8_t to[RS_ABOUT_BYTES])
{
	struct sc_err err = {.code = SC_E_DAMAGED, .blob = blob};
	int known;

	if (strcmp(about, RS_ABOUT_LOOK) == 0)
		rs_damage_met(m->s, &err);
	memset(to, 0, RS_ABOUT_BYTES);
	known = meta_blob_hash(m->s->catalog, blob, to + 1, &err);
	to[0] = known > 0;
	return known < 0 ? RS_CODE_BUSY : RS_CODE_OK;
}

/* Forgets bytes of a blob that may be wrong; this node's kernel may have them, too. */
static void forget_wrong(struct rs_member *m, uint32_t node, uint64_t number)
{
	rs_landing_forget(m->landings, node, number, true);
	rs_bytes_were_wrong(m->s, 0);
}

/* Gives the number of bytes that a sealed blob here has, by the catalog; 0: the blob is not sealed. */
static uint64_t sealed_bytes(struct rs_member *m, uint64_t blob)
{
	typeof(*m->sealed) *known = &m->sealed[blob % (sizeof(m->sealed) / sizeof(*m->sealed))];
	struct sc_err ignored;
	uint64_t bytes = 0;

	if (known->blob == blob)
		return known->bytes;
	if (meta_blob_bytes(m->s->catalog, blob, &bytes, &ignored) < 0)
		return 0;
	if (bytes)
		*known = (typeof(*known)){blob, bytes};
	return bytes;
}

/*
 * Is it what the blob's number says for ever?  A sealed blob is: it has its size in the catalog.  What is not sealed is
 * what a commit takes, while this node has something prepared.  Else it is no version's: a file that was written to, in
 * an older copy of this store maybe, under the number of one that was committed later.
 */
static bool may_serve(struct rs_member *m, uint64_t blob)
{
	bool prepared = false;

	if (sealed_bytes(m, blob))
		return true;
	(void)pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->jobs.nr && !prepared; i++)
		prepared = m->jobs.at[i]->part.token || m->jobs.at[i]->row;
	(void)pthread_mutex_unlock(&m->lock);
	return prepared;
}

int rs_peers_serve(struct rs_member *m, const struct rs_pull *p, uint8_t *to)
{
	char *end;
	unsigned long long blob = strtoull(p->file, &end, 10);
	const char *what, *whose = about(p->tensor, &what);
	const bool is_copy = strncmp(whose, "of ", 3) == 0;
	sc_cleanup(sc_closep) int fd = -1;
	struct sc_err err;
	uint32_t node = m->node;
	uint64_t sealed;

	if (strcmp(p->tensor, "part") == 0)
		return rs_part_serve(m, p, to);
	if (p->file == end || *end || !blob || !rs_pull_is_run(p, &(uint64_t){0}) ||
	    (is_copy ? !sc_number_parse(whose + 3, strlen(whose + 3), &node) : *whose != 0) ||
	    (what && p->bytes != RS_ABOUT_BYTES))
		return RS_CODE_BAD;
	if (what && strcmp(what, RS_ABOUT_WRONG) == 0) {
		forget_wrong(m, node, blob);
		memset(to, 0, RS_ABOUT_BYTES);
		return RS_CODE_OK;
	}
	if (is_copy)
		blob = copy_of(m, node, blob);
	else if (!may_serve(m, blob))
		return RS_CODE_NOT_HERE;
	if (!blob)
		return RS_CODE_NOT_HERE;
	if (what)
		return serve_about(m, blob, what, to);
	sealed = rs_pull_whole(p) ? sealed_bytes(m, blob) : 0;
	if (sealed && sealed != rs_pull_whole(p))
		return RS_CODE_BAD; /* of a store with another history */
	if (meta_store_open_blob(&m->s->store, blob, UINT64_MAX, &fd, &err) < 0)
		return err.code == SC_E_DAMAGED ? RS_CODE_DAMAGED : RS_CODE_NOT_HERE;
	return sc_pread_all(fd, to, p->bytes, p->from + p->at) < 0 ? RS_CODE_DAMAGED : RS_CODE_OK;
}

static int serve(void *arg, const struct rs_node_id *peer, const struct rs_pull *p, uint8_t *to)
{
	const int code = rs_peers_serve(arg, p, to);

	(void)peer;
	if (code == RS_CODE_OK) {
		sc_metric_add(&served, 1);
		sc_metric_add(&bytes_served, p->bytes);
	}
	return code;
}

static bool is_member(void *arg, uint32_t node, uint64_t epoch)
{
	const struct rs_member *m = arg;

	return rs_core_has_member(m->core, node, epoch);
}

int rs_peers_try(const struct rs_member *m, const char *tls, struct sc_err *err)
{
	const struct rs_net_config c = {.nr_secrets = 1, .listen = m->listen, .tls = tls};
	struct rs_net *net;
	int rc = rs_net_new(&c, &net, err);

	if (rc == 0)
		rs_net_free(net);
	return rc;
}

int rs_peers_start(struct rs_member *m,
		   void (*message)(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f),
		   const char *tls, bool ucx, struct sc_err *err)
{
	struct rs_net_config c = {.id = {.node = m->node, .protocol_min = rs_protocols.min,
					 .protocol_max = m->protocol},
				  .nr_secrets = 1, .listen = m->listen, .hello_ms = 2000, .tls = tls, .ucx = ucx,
				  .arg = m, .serve = serve, .message = message, .is_member = is_member};

	memcpy(c.id.cluster, m->id, sizeof(m->id));
	memcpy(c.secrets[0], m->secret, sizeof(m->secret));
	if (sc_sys.random(&c.id.boot, sizeof(c.id.boot), 0) != (ssize_t)sizeof(c.id.boot))
		return sc_fail_sys(err, errno, "cannot get a random number");
	return rs_net_new(&c, &m->net, err);
}
