/* SPDX-License-Identifier: Apache-2.0 */
/* What etcd has of a large cluster: keys, values and objects as the program prints them. */
#include "tests/prop/reshard/cluster/peers/many.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/exchange/objects/objects_i.h"
#include "reshard/cluster/peers/pack.h"
#include "tests/prop/pick.h"

#define CLUSTER "production-1"
#define JOB UINT64_C(0xf0e1d2c3b4a59687)
#define TAGS 3u

struct sums {
	uint64_t bytes[META_KEY_KINDS_NR], keys[META_KEY_KINDS_NR];
	size_t largest;			/* value */
	uint64_t raw;			/* bytes of objects, as they were */
	unsigned keeps;			/* the version of which lists of what is kept are put; 0: other objects */
};

static struct meta_hash some_hash(void)
{
	struct meta_hash h;

	for (size_t i = 0; i < sizeof(h.at); i++)
		h.at[i] = (uint8_t)pick(256);
	return h;
}

static void add(struct sums *sums, struct meta_key key, struct meta_value value)
{
	struct sc_buf buf = {0};
	struct sc_err err;
	size_t name;

	value.kind = key.kind;
	MUST(meta_key_print(CLUSTER, &key, &buf, &err));
	name = buf.bytes;
	MUST(meta_value_print(&value, &buf, &err));
	sums->bytes[key.kind] += buf.bytes;
	sums->keys[key.kind]++;
	sums->largest = sc_max_u64(sums->largest, buf.bytes - name);
	sc_buf_done(&buf);
}

/* --- objects --- */

static int name_object(void *arg, const void *at, size_t bytes, uint8_t ret[RS_OBJECT_NAME_BYTES], struct sc_err *err)
{
	struct meta_hash h = some_hash(); /* nobody reads it here */

	(void)arg, (void)at, (void)bytes, (void)err;
	memcpy(ret, h.at, sizeof(h.at));
	return 0;
}

static int put_object(void *arg, const uint8_t name[RS_OBJECT_NAME_BYTES], const void *at, size_t bytes, struct sc_err *err)
{
	struct sc_buf text = {0}, again = {0};
	struct sums *sums = arg;
	struct meta_key key = {.kind = sums->keeps ? META_KEY_KEPT : META_KEY_OBJECT, .job = JOB, .nr = sums->keeps, .node = 1999};

	(void)err;
	memcpy(key.hash.at, name, sizeof(key.hash.at));
	assert_int_equal(0, rs_pack(at, bytes, &text));
	assert_int_equal(1, rs_unpack(text.text, &again));
	assert_int_equal(bytes, again.bytes);
	assert_memory_equal(at, again.text, bytes);
	sums->raw += bytes;
	add(sums, key, (struct meta_value){.rest = text.text});
	sc_buf_done(&text);
	sc_buf_done(&again);
	return 0;
}

static const struct rs_object_ops ops = {.name = name_object, .put = put_object};

static struct rs_object_name put(struct sums *sums, struct sc_buf *text)
{
	struct rs_object_name name;
	struct sc_err err;

	MUST(rs_object_put(&(struct rs_object_io){&ops, sums, &err}, text, &name));
	return name;
}

static struct rs_object_name some_name(void)
{
	struct meta_hash h = some_hash();
	struct rs_object_name n;

	memcpy(n.at, h.at, sizeof(n.at));
	return n;
}

/* Numbers of blobs: each node has counted its own, not all as far. */
static uint64_t blob_of(unsigned node, unsigned rank, unsigned nr)
{
	return 40 + nr * RANKS + rank % RANKS + node * 7919u % 97;
}

static struct rs_object_name put_set(const struct many_job *j, struct sums *sums, unsigned nr)
{
	struct rs_object_set s = {.file = FILE_NAME, .format = "safetensors",
				  .place = {.layout = some_name(), .topology = many_topology(j), .layers = 126}};
	uint64_t bytes[16];
	struct sc_buf tensors = {0}, text = {0};
	struct rs_object_name name;

	for (unsigned i = 0; i < 16; i++) /* those of a stage have files of like sizes */
		bytes[i] = many_file_bytes(j, i * (many_ranks(j) / 16));
	many_tensors(j, &tensors);
	s.tensors = (struct meta_bytes){tensors.text, tensors.bytes};
	for (unsigned r = 0; r < many_ranks(j); r++) {
		unsigned node = r / RANKS + 1;
		struct rs_object_file f = {.rank = r, .mode = 0644, .uid = 1000, .gid = 1000, .path = FILE_NAME,
					   .blob = {node, blob_of(node, r, nr), bytes[r / (many_ranks(j) / 16)]}};

		assert_int_equal(0, sc_vec_push(&s.files, f));
	}
	rs_object_walk_set(&(struct rs_text){.to = &text}, &s);
	name = put(sums, &text);
	rs_object_set_done(&s);
	sc_buf_done(&tensors);
	return name;
}

/* A commit that all nodes have written for: it says whose parts are in it. */
static void put_version(const struct many_job *j, struct sums *sums, unsigned nodes, unsigned nr, struct rs_object_name set)
{
	struct rs_object_version v = {.nr = nr, .parent = nr - 1, .step = 1000 * (int64_t)nr, .made_by = "commit", .note = "",
				      .topology = many_topology(j), .layout = some_name(), .tree = some_name(), .has_tree = 1,
				      .made_ns = INT64_C(1795676881123456789), .floor_ns = INT64_C(1795676881123456789)};
	struct sc_buf text = {0};

	for (unsigned i = 1; i <= nodes; i++)
		assert_int_equal(0, sc_vec_push(&v.parts, (struct rs_object_from){i, some_name()}));
	assert_int_equal(0, sc_vec_push(&v.sets, set));
	rs_object_walk_version(&(struct rs_text){.to = &text}, &v);
	(void)put(sums, &text);
	rs_object_version_done(&v);
}

/* What a node keeps of the newest version. */
static struct meta_hash put_keep(struct sums *sums, unsigned node, unsigned nr)
{
	struct rs_object_keep keep = {0};
	struct rs_object_name name;
	struct meta_hash h;
	struct sc_err err;

	for (unsigned i = 0; i < RANKS; i++) {
		unsigned rank = (node - 1) * RANKS + i;
		struct rs_object_kept k = {rank, node, blob_of(node, rank, nr), UINT64_C(354287616) + 1024 * node, FILE_NAME};

		assert_int_equal(0, sc_vec_push(&keep, k));
	}
	MUST(rs_objects_put_keep(nr, &keep, &ops, sums, &name, &err));
	sc_vec_done(&keep);
	memcpy(h.at, name.at, sizeof(h.at));
	return h;
}

/* --- keys --- */

static void put_nodes(struct sums *sums, unsigned nodes)
{
	struct meta_member *members = calloc(nodes, sizeof(*members));

	for (unsigned i = 1; i <= nodes; i++) {
		char name[64], address[64], store[40];
		const char *addresses[] = {address};
		struct meta_node_value v = {.name = name, .store = store, .domain = "", .boot = draw(), .protocol_min = 1,
					    .protocol_max = 1, .capacity = UINT64_C(15360950534144), .space = UINT64_C(9360950534144) - i,
					    .addresses = {1, addresses}};

		(void)snprintf(name, sizeof(name), "gpu-node-%04u.cluster.example.net", i);
		(void)snprintf(address, sizeof(address), "10.%u.%u.%u 7077", i / 250 / 250, i / 250 % 250, i % 250);
		(void)snprintf(store, sizeof(store), "%016llx%016llx", (unsigned long long)draw(), (unsigned long long)draw());
		add(sums, (struct meta_key){.kind = META_KEY_NODE, .node = i}, (struct meta_value){.node = v});
		add(sums, (struct meta_key){.kind = META_KEY_NUMBER, .text = name}, (struct meta_value){.number = {i}});
		members[i - 1] = (struct meta_member){i, 100000000 + 13 * i};
	}
	add(sums, (struct meta_key){.kind = META_KEY_MEMBERS}, (struct meta_value){.members = {nodes, members}});
	add(sums, (struct meta_key){.kind = META_KEY_TICK}, (struct meta_value){.rest = ""});
	add(sums, (struct meta_key){.kind = META_KEY_KEEPER}, (struct meta_value){.keeper = {1, 100000013}});
	free(members);
}

static void put_job(struct sums *sums, const struct many_job *j, unsigned nodes, unsigned versions)
{
	struct meta_head_value head = {.nr = versions, .token = draw(), .members = 200000000, .record = some_hash(),
				       .node = nodes, .epoch = 100000000};
	struct meta_proposal_value p = {.token = draw(), .node = nodes, .epoch = 100000000, .base = versions, .deadline_s = 120,
					.record = some_hash()};

	add(sums, (struct meta_key){.kind = META_KEY_HEAD, .job = JOB}, (struct meta_value){.head = head});
	add(sums, (struct meta_key){.kind = META_KEY_SHOWN, .job = JOB}, (struct meta_value){.number = {versions}});
	add(sums, (struct meta_key){.kind = META_KEY_PROPOSAL, .job = JOB}, (struct meta_value){.proposal = p});
	add(sums, (struct meta_key){.kind = META_KEY_NAME, .text = "llama-405b"}, (struct meta_value){.number = {JOB}});
	for (unsigned nr = 1; nr <= versions; nr++) {
		struct rs_object_name set = put_set(j, sums, nr);
		struct meta_set_name named = {.token = draw(), .file = FILE_NAME};
		struct meta_version_value v = {.parent = nr - 1, .token = draw(), .topology = many_topology(j), .note = "",
					       .layout = some_hash(), .placement = some_hash()};

		memcpy(named.set.at, set.at, sizeof(set.at));
		put_version(j, sums, nodes, nr, set);
		add(sums, (struct meta_key){.kind = META_KEY_VERSION, .job = JOB, .nr = nr}, (struct meta_value){.version = v});
		add(sums, (struct meta_key){.kind = META_KEY_STORE, .job = JOB, .nr = nr},
		    (struct meta_value){.store = {1, &named, true}});
	}
}

/* By each node, of the newest version. */
static void put_reports(struct sums *sums, unsigned nodes, unsigned nr)
{
	sums->keeps = nr;
	for (unsigned i = 1; i <= nodes; i++) {
		struct meta_ready_value ready = {.epoch = 100000000 + i, .pulled = 2834300928, .planned = 2834300928,
						 .files = put_keep(sums, i, nr)};
		struct meta_copied_value copied = {.version = nr, .basis = 200000000, .wants = UINT64_C(28343009280),
						   .has = UINT64_C(28343009280), .files = 80, .newest = 8};
		struct meta_low_value low = {.revision = 200000000 + i};

		add(sums, (struct meta_key){.kind = META_KEY_READY, .job = JOB, .nr = nr, .node = i}, (struct meta_value){.ready = ready});
		add(sums, (struct meta_key){.kind = META_KEY_COPIED, .job = JOB, .node = i}, (struct meta_value){.copied = copied});
		add(sums, (struct meta_key){.kind = META_KEY_LOW, .node = i}, (struct meta_value){.low = low});
	}
}

uint64_t many_etcd(const struct many_job *j, unsigned nodes, unsigned versions)
{
	static const char *const names[] = {
#define X(name, path, bytes) path,
		META_KEY_KINDS(X)
#undef X
	};
	struct sums sums = {0};
	uint64_t total = 0;

	random_state = 7;
	put_nodes(&sums, nodes);
	put_job(&sums, j, nodes, versions);
	put_reports(&sums, nodes, versions);
	for (int k = 0; k < META_KEY_KINDS_NR; k++) {
		total += sums.bytes[k];
		if (sums.bytes[k] > 20000)
			fprintf(stderr, "%8llu bytes of %llu keys %s\n", (unsigned long long)sums.bytes[k],
				(unsigned long long)sums.keys[k], names[k]);
	}
	fprintf(stderr, "%8llu bytes in etcd, keys and values, of %u nodes, %u ranks and %u versions; the largest value has %zu\n",
		(unsigned long long)total, nodes, many_ranks(j), versions, sums.largest);
	fprintf(stderr, "%8llu bytes of objects, as they were\n", (unsigned long long)sums.raw);
	return total;
}
