/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The working tree by path, in a service without a mount: what programs do, as the kernel asks for it by number.  A path
 * is inside a rank's folder ("": that folder), or, rank RS_SHARED, inside the job's.
 * Errors: those of the function of reshard/worktree/requests/tree.h, and SC_E_NOT_FOUND and SC_E_NOT_DIR of the folders above.
 * Who changes a tree while the head may move calls them between rs_tree_enter() and rs_tree_leave().
 */
#ifndef TESTS_SUPPORT_PATHS_H
#define TESTS_SUPPORT_PATHS_H

#include "reshard/service/service.h"

/** Finds what is at a path, by its names; kind RS_NONE is no error. */
int work_find(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct rs_look *ret,
	      struct sc_err *err);
/** Makes the folder of a rank, if it is not there, with mode and owner of the job. */
int work_make_rank(struct rs_service *s, struct rs_job *job, uint32_t rank, struct sc_err *err);
/**
 * Makes the folders of a path, as work_make_rank(), and a file there, or empties the one that is there (whose mode and
 * owner stay): open(path, O_RDWR | O_CREAT | O_TRUNC).  *ret_fd is open on its bytes.
 */
int work_create(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const struct rs_owner *owner,
		uint64_t *ret_blob, int *ret_fd, struct sc_err *err);
/** Likewise with O_EXCL.  Errors: SC_E_EXISTS. */
int work_create_new(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path,
		    const struct rs_owner *owner, uint64_t *ret_blob, int *ret_fd, struct sc_err *err);
/** Errors: SC_E_STALE, also if there is nothing at the path. */
int work_copy_up(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, bool truncate,
		 uint64_t *ret_blob, struct sc_err *err);
/** Makes a folder in one that is there. */
int work_mkdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const struct rs_owner *owner,
	       struct sc_err *err);
int work_symlink(struct rs_service *s, struct rs_job *job, const char *target, uint32_t rank, const char *path,
		 struct sc_err *err);
int work_mkfifo(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct sc_err *err);
int work_link(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, uint32_t new_rank,
	      const char *new_path, struct sc_err *err);
/* What loses its last name is forgotten at once: no kernel holds it.  If that fails, it stays without a name. */
int work_unlink(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct sc_err *err);
int work_rmdir(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, struct sc_err *err);
int work_rename(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, uint32_t new_rank,
		const char *new_path, bool no_replace, struct sc_err *err);
/** Sets mode, owner and mtime. */
int work_chattr(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const struct rs_owner *owner,
		int64_t mtime_ns, struct sc_err *err);
int work_set_xattr(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *path, const char *name,
		   const char *value, struct sc_err *err);

#endif
