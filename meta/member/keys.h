/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints and parses what a cluster keeps in etcd: the names of its keys, and their values as text.  Pure: no I/O, no
 * memory but the caller's arena.
 *
 *	/scalai/CLUSTER/nodes/7			a node of the cluster, as long as its lease lives
 *	/scalai/CLUSTER/all/...			what each node watches
 *	/scalai/CLUSTER/v/JOB/NR		a version's record
 *	...					meta_key_kinds below has all of them
 *
 * A value is lines "name value" in ASCII.  Numbers are decimal without leading zeros, tokens and hashes lower-case hex,
 * text is quoted as by sc_buf_quoted().  Lines whose name is not known here, say, those of a newer program during an
 * upgrade, are kept in `rest` and written again.  Printing and parsing are each other's inverse.
 */
#ifndef META_KEYS_H
#define META_KEYS_H

#include "meta/base/err.h"
#include "meta/base/mem.h"

#define META_CLUSTER_NAME_MAX 63
#define META_KEY_BYTES_MAX 384		/* the longest has a job's name of 255 bytes */
#define META_NODES_MAX 65536u		/* numbers of nodes have 16 bits */
#define META_MEMBERS_MAX 4096u		/* 48 KiB of text at 2,000 */
#define META_SETS_MAX 128u		/* of one version; 16 KiB of text */
#define META_USES_MAX 64u		/* dead sets that a node still reads, by name */
#define META_VALUE_BYTES_MAX (1u << 20)	/* of any value: etcd takes requests of 1.5 MiB */

struct meta_hash {
	uint8_t at[32];
};

/* name, path below the prefix: %j job, %v version, %n number of a node, %h hash, %t text; bytes at most of its value */
#define META_KEY_KINDS(X)                                                                                              \
	X(CLUSTER, "meta", 512)                                                                                        \
	X(SECRET, "secret/%v", 64)                                                                                     \
	X(NUMBERS, "number", 64)	      /* the last number that was given */                                     \
	X(NUMBER, "number/%t", 64)	      /* of a node, by name */                                                 \
	X(BOUND, "bound/%n", 256)	      /* a number's store, for ever; the numbers of files it was given */     \
	X(JOBS, "jobs", 64)		      /* the last number that was given to a job */                            \
	X(SWEEPING, "sweeping", 256u << 10)   /* what the sweep removes next, as text */                               \
	X(NODE, "nodes/%n", 512)                                                                                       \
	X(KEEPER, "keeper", 96)                                                                                        \
	X(MEMBERS, "all/members", 128u << 10)                                                                          \
	X(TICK, "all/tick", 1)                                                                                         \
	X(DRAIN, "all/drain", 64u << 10)      /* numbers of nodes that are emptied, a line each */                     \
	X(DOMAINS, "all/domains", 256u << 10) /* number of a node and name of its domain, a line each */               \
	X(PROTOCOL, "all/protocol", 64)	      /* the number that nodes speak, if it is not `meta`'s */                 \
	X(SWEEP, "all/sweep", 64)	      /* how often that was put */                                             \
	X(ENDED, "all/ended", 256u << 10)     /* numbers of jobs that were removed, and have no keys, as text */       \
	X(FIRST, "all/jobs/%j/first", 384)                                                                             \
	X(HEAD, "all/jobs/%j/head", 320)                                                                               \
	X(SHOWN, "all/jobs/%j/shown", 64)                                                                              \
	X(PROPOSAL, "all/jobs/%j/proposal", 384)                                                                       \
	X(STORE, "all/jobs/%j/store/%v", 16u << 10)                                                                    \
	X(JOB, "all/jobs/%j/name", 384)                                                                                \
	X(REMOVED, "all/jobs/%j/removed", 64) /* of a job: somebody has removed it */                                  \
	X(CONFIG, "all/jobs/%j/config", 1024)                                                                          \
	X(TAG, "all/jobs/%j/tag/%t", 64)                                                                               \
	X(NAME, "names/%t", 64)		      /* of a job */                                                           \
	X(VERSION, "v/%j/%v", 16u << 10)                                                                               \
	X(OBJECT, "obj/%h", 1u << 20)	      /* bytes, as they are */                                                 \
	X(READY, "ready/%j/%v/%n", 256)                                                                                \
	X(KEPT, "kept/%j/%v/%n/%h", 1u << 20) /* lists that READY names by hash, as OBJECT */                          \
	X(COPIED, "copied/%j/%n", 256)                                                                                 \
	X(LOW, "low/%n", 8192)                                                                                         \
	X(WHERE, "where/%j/%h", 64u << 10)    /* text, as it is */                                                     \
	X(DIGEST, "digest/%j/%h", 1u << 20)   /* bytes, as they are */                                                 \
	X(NCCL, "nccl/%j/%v/%t", 256u << 10)  /* what nodes say before they exchange bytes by NCCL (cluster/joint) */

enum meta_key_kind {
#define X(name, path, bytes) META_KEY_##name,
	META_KEY_KINDS(X)
#undef X
	META_KEY_KINDS_NR
};

struct meta_key {
	enum meta_key_kind kind;
	uint64_t job, nr;	/* nr: of a version, or of a secret; 0 where the path has none */
	uint32_t node;
	struct meta_hash hash;
	const char *text;	/* NULL where the path has none */
};

/* META_BY_REMOVAL makes no version: the job's names are removed while all gates are closed. */
enum meta_command_kind {
	META_BY_COMMIT, META_BY_TOPOLOGY, META_BY_LAYOUT, META_BY_ROLLBACK, META_BY_DATA, META_BY_REMOVAL
};

struct meta_member {
	uint32_t node;		/* its number */
	uint64_t epoch;		/* revision at which its key in nodes/ was made */
};
struct meta_set_name {
	struct meta_hash set;
	uint64_t token;		/* of the command that made it: says what became of files that were prepared for it */
	const char *file;	/* logical name */
};
struct meta_text_list {
	uint32_t nr;
	const char **at;
};

/* Values.  Lists and texts are borrowed: the arena's that meta_value_parse() was given, or the caller's. */
struct meta_cluster_value {
	uint64_t id[2], protocol_min, protocol_max, fresh_ms, ttl_ms, copies;
	const char *domains;
	uint64_t era;		/* how often its keys were made anew from a store's backup */
};
struct meta_bound_value {
	uint64_t store[2];
	uint64_t blob, inode;	/* the first numbers that this node was not given yet */
	uint64_t jobs;		/* the last number of a job of which its store may have a version; 0: of none */
};
struct meta_node_value {
	const char *name, *store, *domain;
	uint64_t boot, protocol_min, protocol_max, capacity, space;	/* bytes */
	bool draining, leaving;
	struct meta_text_list addresses;	/* HOST PORT; 4 at most */
};
struct meta_keeper_value {
	uint64_t node, epoch;
};
struct meta_members_value {
	uint32_t nr;
	const struct meta_member *at;	/* by number, each once */
};
struct meta_first_value {
	struct meta_hash layout;
	const char *topology;
};
struct meta_head_value {
	uint64_t nr, token, members;	/* members: MOD of the list that had prepared */
	struct meta_hash record;	/* SHA-256 of the value of v/JOB/NR */
	uint64_t node, epoch;		/* who committed it */
};
struct meta_number_value {
	uint64_t nr;
};
struct meta_proposal_value {
	uint64_t token, node, epoch, base, deadline_s;	/* deadline: seconds it has; says nothing of clocks */
	enum meta_command_kind change;
	struct meta_hash record;	/* of the draft */
};
struct meta_store_value {
	uint32_t nr;
	const struct meta_set_name *at;
	bool settled;
};
struct meta_version_value {
	uint64_t parent, token;
	enum meta_command_kind change;
	const char *topology;
	struct meta_hash layout, placement;
	const char *note;
};
struct meta_ready_value {
	uint64_t epoch, pulled, planned;	/* bytes */
	struct meta_hash files;			/* object that names what the node keeps of the version */
};
struct meta_copied_value {
	uint64_t version, basis, gone;		/* newest version; revision of MEMBERS, DRAIN or DOMAINS; nodes
						 * that are gone, but may be back */
	uint64_t wants, has, lost, files;	/* bytes that the node keeps copies of, and has; that it cannot get */
	uint64_t newest;			/* files of these that the newest version has */
};
struct meta_low_value {
	uint64_t revision;
	uint32_t nr;
	const struct meta_hash *at; /* dead sets that are still read */
};

struct meta_value {
	enum meta_key_kind kind;
	union {
		struct meta_cluster_value cluster;
		struct meta_bound_value bound;
		struct meta_node_value node;
		struct meta_keeper_value keeper;
		struct meta_members_value members;
		struct meta_first_value first;
		struct meta_head_value head;
		struct meta_number_value number;	/* NUMBERS, NUMBER, JOBS, SWEEP, SHOWN, TAG; NAME: of the job */
		struct meta_proposal_value proposal;
		struct meta_store_value store;
		struct meta_version_value version;
		struct meta_ready_value ready;
		struct meta_low_value low;
		struct meta_copied_value copied;
	};
	const char *rest;	/* whole lines that are not known here, or NULL; kinds without fields: the whole text */
};

/** Tells whether a name has 1 to `bytes_max` letters, digits, '-', '_', '.' and nothing else. */
bool meta_plain_name(const char *name, size_t bytes_max);
/** Tells whether a cluster's name can be part of a key: 1 to META_CLUSTER_NAME_MAX letters, digits, '-', '_', '.'. */
bool meta_cluster_name_ok(const char *name);

/**
 * Appends the key, with "/scalai/<cluster>/" in front.  A text in a path (the name of a node, job or tag) is like the
 * name of a file: 1 to 255 bytes, without '/' and zero.  SC_E_LIMIT, SC_E_NO_MEMORY.
 */
int meta_key_print(const char *cluster, const struct meta_key *key, struct sc_buf *buf, struct sc_err *err);

/** Reads a key of this cluster.  `ret->text` lives in `arena`.  SC_E_FORMAT (the text is no key of this cluster, or of
 *  no kind that this program knows), SC_E_NO_MEMORY. */
int meta_key_parse(const char *cluster, const void *text, size_t bytes, struct sc_arena *arena, struct meta_key *ret,
		   struct sc_err *err);

/**
 * Appends the value.  That of a kind without fields (objects, lists of what is kept, digests, where, config, secrets,
 * lists of nodes, protocol, a job's row) is `rest`.
 * SC_E_LIMIT (the value is longer than its kind may be), SC_E_NO_MEMORY.
 */
int meta_value_print(const struct meta_value *value, struct sc_buf *buf, struct sc_err *err);

/** Reads the value of a key of this kind, which has each field once, except lists.  SC_E_FORMAT, SC_E_LIMIT,
 *  SC_E_NO_MEMORY. */
int meta_value_parse(enum meta_key_kind kind, const void *text, size_t bytes, struct sc_arena *arena,
		     struct meta_value *ret, struct sc_err *err);

#endif
