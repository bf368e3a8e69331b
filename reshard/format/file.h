/* SPDX-License-Identifier: Apache-2.0 */
/* A file as a format sees it: its size, and a function that reads. */
#ifndef RS_FILE_H
#define RS_FILE_H

#include <string.h>

#include "meta/base/err.h"
#include "meta/base/mem.h"

/** Borrowed for the call. */
struct rs_file {
	uint64_t bytes;
	void *arg;
	/** at + bytes is within the file. */
	int (*read)(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);
};

static inline int rs_memory_read(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	(void)err;
	memcpy(to, (const char *)arg + at, bytes);
	return 0;
}

/** A file that is in memory, which nobody takes away. */
static inline struct rs_file rs_file_in_memory(const void *memory, uint64_t bytes)
{
	return (struct rs_file){bytes, (void *)memory, rs_memory_read};
}

#endif
