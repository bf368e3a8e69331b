/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the directory of a zip archive whose records can be read where they lie: stored, not compressed or encrypted,
 * each inside the file, none over another, each name once, all in one folder, as torch.save() writes them.
 * Source: APPNOTE.TXT 6.3.10 (PKWARE); pytorch's caffe2/serialize/inline_container.cc, 2.13.
 */
#ifndef RS_ZIP_H
#define RS_ZIP_H

#include "meta/base/err.h"
#include "meta/base/mem.h"

/** A run of bytes of a file, borrowed for a call. */
struct rs_window {
	uint64_t base, bytes;	/* where it begins in the file; how long it is */
	void *arg;
	/** Reads bytes of the file, all of them within the window. */
	int (*read)(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
};

struct rs_zip_record {
	const char *name;	/* without the archive's folder; no 0 is in it */
	uint64_t at, bytes;	/* of its data, in the window */
	uint64_t header_at;
};

/** A directory that was read.  Owns all that it points to, until rs_zip_done(). */
struct rs_zip {
	struct sc_arena arena;
	struct rs_zip_record *records; /* as the directory has them */
	uint32_t nr;
	struct sc_map by_name;
};

/**
 * Reads the directory and the header of each record.  Takes linear time, and memory within limits.h.
 * Errors: SC_E_FORMAT (what says where), SC_E_LIMIT, SC_E_NO_MEMORY, those of reading.  Nothing is to be freed then.
 */
int rs_zip_read(const struct rs_window *window, struct rs_zip *ret, struct sc_err *err);
/** Finds a record; NULL: there is none. */
const struct rs_zip_record *rs_zip_find(const struct rs_zip *zip, const char *name);
/** Reads bytes of the window; `what` names them in the error that says that the window does not have them. */
int rs_window_read(const struct rs_window *window, uint64_t at, uint64_t bytes, void *to, const char *what,
		   struct sc_err *err);
void rs_zip_done(struct rs_zip *zip);

#endif
