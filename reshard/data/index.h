/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scans a source when it is added: finds its samples and checks, once, everything that its format
 * promises.  Errors name the byte or sample, what was expected and what was found.
 *
 *     lines.c     a newline ends a sample; the last one may lack it
 *     records.c   samples of one size: plain records, .npy
 *     tar.c       WebDataset, by libarchive
 *     tfrecord.c  with both CRCs of every record, by ISA-L
 *     megatron.c  .idx beside .bin
 */
#ifndef RS_DATA_INDEX_H
#define RS_DATA_INDEX_H

#include "reshard/data/corpus.h"

/** A table of u64 that is written to a file, a buffer at a time. */
struct rs_table {
	int fd;
	uint64_t bytes;			/* written */
	size_t nr;			/* in the buffer */
	uint64_t buffer[8192];
};

struct rs_index {
	const struct rs_data_spec *spec;
	const char *path;
	int fd;
	const unsigned char *map;	/* of `bytes`; NULL when empty */
	uint64_t bytes;
	struct rs_data_source_info *info;	/* samples, sequences, first, bare: to be filled */
	struct sc_buf form;		/* type of this source; all sources must agree */
	struct rs_table *table;
	bool has_table;
	struct rs_keys {		/* tar: hashes of all keys, over all sources */
		uint64_t *at;
		size_t nr, room;
		struct sc_buf *named;	/* not NULL: nothing is added, but the members that begin samples whose
					 * key has the hash `twice` are named here */
		uint64_t twice;
	} *keys;
	/* megatron: the .idx */
	const unsigned char *idx;
	uint64_t idx_bytes;
	bool failed;			/* the table could not be written; errno is `error` */
	int error;
};

/** Fills info and the table (if has_table, the caller sets info->borders).
 *  Errors: SC_E_FORMAT, SC_E_SYSTEM, SC_E_SOURCE (the source became shorter meanwhile), SC_E_NO_MEMORY. */
int rs_index_source(struct rs_index *index, struct sc_err *err);
/** Appends to the table, which is written a buffer at a time; a failure is kept in `failed` and `error`. */
void rs_index_push(struct rs_index *index, uint64_t value);
/** Writes the table's buffer to its file. */
void rs_index_flush(struct rs_index *index);
/** Tells whether two samples have one key, and sets `twice`: readers would join such samples to one where they meet. */
bool rs_keys_meet(struct rs_keys *keys);

/* Scanners, one for each format; all but rs_index_tar() run under sc_guard_run(). */
int rs_index_lines(struct rs_index *index, struct sc_err *err);
int rs_index_records(struct rs_index *index, struct sc_err *err);
int rs_index_npy(struct rs_index *index, struct sc_err *err);
int rs_index_tar(struct rs_index *index, struct sc_err *err);
int rs_index_tfrecord(struct rs_index *index, struct sc_err *err);
int rs_index_megatron(struct rs_index *index, struct sc_err *err);

/** Makes the head of a partition of .npy; `form` is "DESCR (ROW SHAPE) BYTES". */
void rs_npy_head(const char *form, uint64_t rows, struct sc_buf *buf);

#endif
