/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of a dataset: the words of `add` (scalai(1), DATASETS), checked and completed.  The catalog
 * keeps their text form (canonical words).
 */
#ifndef RS_DATA_SPEC_H
#define RS_DATA_SPEC_H

#include "meta/base/mem.h"
#include "meta/model/deal.h"
#include "meta/model/layout.h"
#include "meta/model/order.h"

#define RS_DATA_NAME_MAX 100	/* with ".next/", a suffix, and twice in a path */

enum rs_data_format {
	RS_DATA_UNKNOWN,
	RS_DATA_LINES,		/* JSON Lines and other text: a sample is a line */
	RS_DATA_RECORDS,	/* samples of one size, after a head that all partitions repeat */
	RS_DATA_NPY,		/* rows of a NumPy array */
	RS_DATA_TAR,		/* WebDataset: consecutive members with one key */
	RS_DATA_TFRECORD,
	RS_DATA_MEGATRON,	/* .bin and .idx: documents, or sequences */
};

struct rs_data_spec {
	char name[RS_DATA_NAME_MAX + 1];
	enum rs_data_format format;
	enum meta_shuffle shuffle;
	uint64_t block;			/* of META_SHUFFLE_BLOCK */
	uint64_t seed;
	struct meta_deal deal;
	bool sequences;			/* RS_DATA_MEGATRON: a sample is a sequence, not a document */
	uint64_t record, head;		/* RS_DATA_RECORDS: bytes */
	uint64_t start;			/* consumed samples at which its first epoch begins */
	char axes[64];			/* whose product numbers its ranks: "dp", "dp,ep" */
	char suffix[17];		/* of the partition's file, without a dot; of .bin "bin" */
	bool copy;			/* taken into the store */
};

/** Sets one option.  Returns 1 if there is no such option.  Errors: SC_E_COMMAND (and what the value may be). */
int rs_data_spec_word(struct rs_data_spec *spec, const char *key, const char *value, struct sc_err *err);
void rs_data_spec_default(struct rs_data_spec *spec);
/** Completes the options by the name of the first source, and checks that none is missing. */
int rs_data_spec_finish(struct rs_data_spec *spec, const char *path, struct sc_err *err);
/** Prints all options but `name=`. */
void rs_data_spec_text(const struct rs_data_spec *spec, struct sc_buf *buf);
/** Parses what rs_data_spec_text() printed. */
int rs_data_spec_parse(const char *name, const char *text, struct rs_data_spec *ret, struct sc_err *err);
/** Gives the file name of partitions: file 0, and 1 for a second file (.idx).  False: there is no such file. */
bool rs_data_file_name(const struct rs_data_spec *spec, int file, char *buf, size_t bytes);
/** Finds the axes of a layout that number data-parallel ranks, as a bit set.  Errors: SC_E_COMMAND (one is missing). */
int rs_data_axes(const struct rs_data_spec *spec, const struct meta_layout *layout, uint32_t *ret,
		 struct sc_err *err);

#endif
