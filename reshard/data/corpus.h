/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A corpus: the sources of a dataset as one sequence of samples.  Immutable: a sample is an extent
 * of a source, found by arithmetic where samples are of one size, else in a table of borders (8
 * bytes a sample, a sealed blob beside the dataset, mapped).
 *
 * Sources stay where they are, and may change behind our back.  A source that is not as it was when
 * it was added (size, time of modification; gone) is never read from: SC_E_SOURCE.  Only text may
 * have grown: then its first and last bytes are compared (hash of 64 KiB at either end).
 *
 * Sources are opened with the file-system identity of whoever added them, at each first use.
 */
#ifndef RS_DATA_CORPUS_H
#define RS_DATA_CORPUS_H

#include <pthread.h>

#include "meta/store/store.h"
#include "reshard/data/spec.h"

/** What is known of a source since it was added (a row of data_source). */
struct rs_data_source_info {
	char *path;
	uint64_t blob;			/* its copy in the store, 0: none */
	uint64_t bytes;
	int64_t mtime_ns;
	uint8_t ends[16];
	uint64_t samples, sequences;	/* sequences: of RS_DATA_MEGATRON, else samples */
	uint64_t first;			/* byte at which its samples begin */
	bool bare;			/* its last line has no newline */
	uint64_t borders;		/* blob: u64[sequences + 1], where they begin and the last one ends;
					 * before it u64[samples + 1], the first sequence of each
					 * document, unless each has one */
	uint64_t table_bytes;		/* of that blob, while it is made */
};

/** A source as it was opened; kept until the corpus ends, as somebody may be reading. */
struct rs_data_bytes {
	int fd;
	const unsigned char *map;
	int64_t grown_mtime_ns;		/* text that has grown: checked at this time and size */
	uint64_t grown_bytes;
	bool gone;			/* removed or replaced: atomic */
	struct rs_data_bytes *older;
};

struct rs_data_source {
	struct rs_data_source_info info;
	uint64_t at_sample, at_sequence; /* of its first in the corpus */
	struct rs_data_bytes *bytes;	/* atomic; NULL: to be opened */
	/* after its first use, under the corpus's lock: */
	int has_table;			/* atomic */
	const uint64_t *documents;	/* first sequence of each, NULL: a sample is one sequence */
	const uint64_t *borders;	/* NULL: samples of one size */
	uint64_t table_bytes;
};

struct rs_corpus {
	uint32_t refs;			/* owner: whoever keeps it */
	uint64_t id;			/* of the dataset, 0: not kept yet */
	struct rs_data_spec spec;
	char *form;			/* RS_DATA_NPY: "DESCR (ROW SHAPE)"; RS_DATA_MEGATRON: code and modes */
	uint64_t record;		/* bytes of a sample, 0: they vary */
	uint32_t token;			/* RS_DATA_MEGATRON: bytes of a token */
	uint8_t code;			/* of its type */
	uid_t uid;
	gid_t gid;
	const struct meta_store *store;
	uint64_t samples, sequences;
	size_t nr, room;
	struct rs_data_source *at;
	pthread_mutex_t lock;
};

/** Of Megatron's .idx: bytes before its arrays; bytes of a token by its type code, 0: unknown. */
#define RS_MEGATRON_HEAD 34
uint32_t rs_megatron_token(uint64_t code);

struct rs_corpus *rs_corpus_new(const struct meta_store *store);
void rs_corpus_free(struct rs_corpus *corpus);
/** References, from one that is kept: the last rs_corpus_unref() frees it.  NULL is nothing to unref. */
struct rs_corpus *rs_corpus_ref(struct rs_corpus *corpus);
void rs_corpus_unref(struct rs_corpus *corpus);
/** Takes info->path. */
int rs_corpus_add(struct rs_corpus *corpus, struct rs_data_source_info *info, struct sc_err *err);
/** After all sources and `form`.  Errors: SC_E_CATALOG. */
int rs_corpus_finish(struct rs_corpus *corpus, struct sc_err *err);

/** A run of `*nr` samples from `sample` on, as far as they are neighbours in one source.  Needs
 *  the table only: sizes are known while a source is away. */
struct rs_extent {
	struct rs_data_source *source;
	uint64_t begin, end;		/* bytes of the source */
	bool bare;			/* a newline follows that the source does not have */
};
/** Before its bytes are read.  Errors: SC_E_SOURCE. */
int rs_data_source_ready(struct rs_corpus *corpus, struct rs_data_source *source,
			 struct rs_data_bytes **ret, struct sc_err *err);
int rs_corpus_extent(struct rs_corpus *corpus, uint64_t sample, uint64_t *nr, struct rs_extent *ret,
		     struct sc_err *err);
/** Maps all tables; *ret_documents: in some source a sample is not one sequence. */
int rs_corpus_tables(struct rs_corpus *corpus, bool *ret_documents, struct sc_err *err);
/** Its part of the table will be wanted soon; after rs_corpus_tables(). */
void rs_corpus_prefetch(const struct rs_corpus *corpus, uint64_t sample);
/** Sequences of a sample of RS_DATA_MEGATRON: [*ret_first, + *ret_nr) of ret_source. */
int rs_corpus_sequences(struct rs_corpus *corpus, uint64_t sample, struct rs_data_source **ret_source,
			uint64_t *ret_first, uint64_t *ret_nr, struct sc_err *err);

/** What to say when a mapping could not be read at `lost`: of a table or a copy SC_E_DAMAGED, else SC_E_SOURCE. */
int rs_corpus_lost(const struct rs_corpus *corpus, const void *lost, struct sc_err *err);

/** The file-system identity of this thread, if the daemon is root's; its own ends it. */
void rs_become(uid_t uid, gid_t gid);
/** Opens a source as the user who added it.  Errors: SC_E_SYSTEM. */
int rs_data_source_open(const char *path, uid_t uid, gid_t gid, int *ret_fd, struct sc_err *err);
/** Is it still what it was?  Errors: SC_E_SOURCE.  Call it after its bytes were copied. */
int rs_data_source_check(const struct rs_corpus *corpus, struct rs_data_source *source,
			 struct rs_data_bytes *bytes, struct sc_err *err);
/** Hash of both ends of [0, bytes) of a file. */
int rs_data_source_ends(int fd, uint64_t bytes, uint8_t ret[16], struct sc_err *err);

#endif
