/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recovery record of a blob, in an extended attribute of its file: enough to make the newest state of its
 * job again if the catalog is lost (rebuild.c).  Two lines, and then for each job that has the blob as a file of
 * tensors (of other files the records of trees tell, trees.h):
 *
 *     scalai 3
 *     hash HEX
 *     job NAME
 *     owner UID GID MODE           of the job
 *     set ID FILE
 *     layout NAME                  of its text in STORE/layouts
 *     topology TEXT
 *     whole LAYERS EXPERTS
 *     step NUMBER                  -1: none
 *     path PATH
 *     ranks FIRST-LAST/STEP MODE UID GID,...
 *
 * Names and paths are quoted (sc_buf_quoted).
 */
#ifndef RS_RECORD_H
#define RS_RECORD_H

#include "reshard/command/commands/command_i.h"

struct rs_record {
	uint64_t blob;
	const char *job, *file, *layout, *topology, *path, *ranks;
	uint64_t uid, gid, job_mode, set;
	uint32_t layers, experts;	/* of the version for which the set was written, 0: its tensors tell */
	int64_t step;			/* -1: none */
	uint8_t hash[16];
};

typedef int rs_record_fn(void *arg, const struct rs_record *record);
typedef int rs_record_rank_fn(void *arg, uint32_t rank, const struct rs_owner *owner);

#define RS_LAYOUT_NAME_BYTES 33
/** Writes the text of a layout beside the blobs, once, and gives its name there. */
int rs_record_layout(struct rs_service *s, uint64_t id, char name[RS_LAYOUT_NAME_BYTES], struct sc_err *err);
/** Writes the record of a sealed and hashed blob.  Errors: SC_E_UNSUPPORTED (the file system has no such
 *  attributes). */
int rs_record_write(struct rs_service *s, uint64_t blob, const uint8_t hash[16], struct sc_err *err);
/** Writes the record, but logs errors and goes on: only fsck --rebuild needs the record. */
void rs_record_keep(struct rs_service *s, uint64_t blob, const uint8_t hash[16]);
/** Writes the records of blobs whose sets or jobs are not those that their files say.  `yields`: stops if the worker is
 *  called meanwhile. */
int rs_records_renew(struct rs_service *s, bool yields, struct sc_err *err);
/** Gives the hash, and calls `each` for each job that the file names; texts are the arena's.  Errors: SC_E_NOT_FOUND,
 *  the file says nothing; SC_E_FORMAT. */
int rs_record_read(struct rs_service *s, uint64_t blob, struct sc_arena *arena, uint8_t hash[16], rs_record_fn *each,
		   void *arg, struct sc_err *err);
/**
 * (newer.c) Refuses a catalog that is older than its store: a blob or tree has a recovery record, and a number that the
 * catalog has never given.  `path`: of the catalog.  Changes nothing.  Errors: SC_E_CORRUPT, those of reading.
 */
int rs_records_refuse_newer(struct rs_service *s, const char *path, struct sc_err *err);
/** (newer.c) Moves what is newer than the catalog to lost+found; changes of working trees that are in the log go. */
int rs_records_set_newer_aside(struct rs_service *s, struct sc_err *err);
/** Calls `each` with each rank of a record (RS_SHARED: of the job itself) and the owner of its file. */
int rs_record_ranks(const struct rs_record *record, rs_record_rank_fn *each, void *arg, struct sc_err *err);

#endif
