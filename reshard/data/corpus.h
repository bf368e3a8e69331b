/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A corpus: the sources of a dataset as one sequence of samples.  A corpus never changes.  A sample is an extent of
 * a source; arithmetic finds it where samples have one size, else a table of offsets does (8 bytes a
 * sample, in a sealed blob beside the dataset, mapped).
 *
 * Sources stay where they are, and others may change them.  A source that has changed since it was
 * added (size, time of modification; gone) is never read from: SC_E_SOURCE.  Only text may have grown:
 * then the hash of 64 KiB at either end of its old part is compared.  On a node other than the one that
 * added the source, the source is a file of that node's own: there this hash and the size are compared when
 * the file is first read, and its time of modification from then on.
 *
 * A source is opened, at its first use, with the file-system identity of the user who added it.
 */
#ifndef RS_DATA_CORPUS_H
#define RS_DATA_CORPUS_H

#include <pthread.h>

#include "meta/store/store.h"
#include "reshard/data/spec.h"
#include "reshard/engine/io/local.h"

/** A source as it was when it was added (a row of data_source). */
struct rs_data_source_info {
	char *path;
	uint64_t blob;			/* its copy in the store, 0: none */
	uint64_t bytes;
	int64_t mtime_ns;		/* 0: another node added it */
	uint8_t ends[16];
	uint64_t samples, sequences;	/* sequences: of RS_DATA_MEGATRON, else samples */
	uint64_t first;			/* byte at which its samples begin */
	bool bare;			/* its last line has no newline */
	uint64_t borders;		/* blob with the table: u64[sequences + 1], where sequences begin and the
					 * last one ends; before that u64[samples + 1], the first sequence
					 * of each document, unless each document has one */
	uint64_t table_bytes;		/* of that blob */
};

/** An open source.  The corpus keeps it until its end, because a reader may be using it. */
struct rs_data_bytes {
	int fd;
	const unsigned char *map;
	int64_t seen_mtime_ns;		/* text that has grown, or of another node: checked at this time and size */
	uint64_t seen_bytes;
	bool gone;			/* removed or replaced: atomic */
	struct rs_data_bytes *older;
};

struct rs_data_source {
	struct rs_data_source_info info;
	uint64_t at_sample, at_sequence; /* number of its first sample and sequence in the corpus */
	struct rs_data_bytes *bytes;	/* atomic; NULL: not open */
	/* after its first use, under the corpus's lock: */
	int has_table;			/* atomic */
	const uint64_t *documents;	/* first sequence of each, NULL: a sample is one sequence */
	const uint64_t *borders;	/* NULL: samples of one size */
	uint64_t table_bytes;
	struct rs_place table_at;	/* of one that another node has */
	struct rs_bytes *table;		/* NULL: it is here */
};

struct rs_corpus {
	uint32_t refs;
	uint64_t id;			/* of the dataset, 0: not in the catalog yet */
	struct rs_data_spec spec;
	char *form;			/* RS_DATA_NPY: "DESCR (ROW SHAPE)"; RS_DATA_MEGATRON: code and modes */
	uint64_t record;		/* bytes of a sample, 0: they vary */
	uint32_t token;			/* RS_DATA_MEGATRON: bytes of a token */
	uint8_t code;			/* of its type */
	uid_t uid;
	gid_t gid;
	const struct meta_store *store;
	struct rs_blobs *blobs;
	uint64_t samples, sequences;
	size_t nr, room;
	struct rs_data_source *at;
	pthread_mutex_t lock;
};

/** Megatron's .idx: bytes before its arrays; bytes of a token by its type code, 0: unknown code. */
#define RS_MEGATRON_HEAD 34
uint32_t rs_megatron_token(uint64_t code);

struct rs_corpus *rs_corpus_new(const struct meta_store *store, struct rs_blobs *blobs);
/** Take and drop a reference; the last rs_corpus_unref() frees the corpus.  rs_corpus_unref() accepts NULL. */
struct rs_corpus *rs_corpus_ref(struct rs_corpus *corpus);
void rs_corpus_unref(struct rs_corpus *corpus);
/** Adds a source.  Takes info->path, which is NULL if there was no memory for it. */
int rs_corpus_add(struct rs_corpus *corpus, struct rs_data_source_info *info, struct sc_err *err);
/** Completes a corpus; call after all sources are added and `form` is set.  Errors: SC_E_CATALOG. */
int rs_corpus_finish(struct rs_corpus *corpus, struct sc_err *err);

/** The bytes of *nr samples from `sample` on, as far as these are neighbours in one source.  Finding an extent needs
 *  the table alone, so sizes are known even while a source is gone. */
struct rs_data_extent {
	struct rs_data_source *source;
	uint64_t begin, end;		/* bytes of the source */
	bool bare;			/* followed by a newline that the source does not have */
};
/** Opens a source; call before its bytes are read.  Errors: SC_E_SOURCE. */
int rs_data_source_ready(struct rs_corpus *corpus, struct rs_data_source *source,
			 struct rs_data_bytes **ret, struct sc_err *err);
int rs_corpus_extent(struct rs_corpus *corpus, uint64_t sample, uint64_t *nr, struct rs_data_extent *ret,
		     struct sc_err *err);
/** Maps all tables; *ret_documents: some source has samples of several sequences. */
int rs_corpus_tables(struct rs_corpus *corpus, bool *ret_documents, struct sc_err *err);
/** Prefetches a sample's entry of the table; call after rs_corpus_tables(). */
void rs_corpus_prefetch(const struct rs_corpus *corpus, uint64_t sample);
/** Finds the sequences of a sample of RS_DATA_MEGATRON: *ret_nr from *ret_first on, of *ret_source. */
int rs_corpus_sequences(struct rs_corpus *corpus, uint64_t sample, struct rs_data_source **ret_source,
			uint64_t *ret_first, uint64_t *ret_nr, struct sc_err *err);

/** Fills the error for a mapping that could not be read at `lost`: SC_E_DAMAGED for a table or a copy, else
 *  SC_E_SOURCE. */
int rs_corpus_lost(const struct rs_corpus *corpus, const void *lost, struct sc_err *err);

/** Sets the file-system identity of this thread, if the daemon is root's; a call with the daemon's own ids ends
 *  that. */
void rs_become(uid_t uid, gid_t gid);
/** Opens a source as the user who added it.  Errors: SC_E_SYSTEM. */
int rs_data_source_open(const char *path, uid_t uid, gid_t gid, int *ret_fd, struct sc_err *err);
/** Checks that a source has not changed; call after its bytes were copied.  Errors: SC_E_SOURCE. */
int rs_data_source_check(const struct rs_corpus *corpus, struct rs_data_source *source,
			 struct rs_data_bytes *bytes, struct sc_err *err);
/** Computes the hash of both ends of [0, bytes) of a file. */
int rs_data_source_ends(int fd, uint64_t bytes, uint8_t ret[16], struct sc_err *err);

#endif
