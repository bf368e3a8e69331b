/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors.  A function that can fail returns 0 or a negative SC_E_* and fills the caller's
 * `struct sc_err`, a value on the stack that never allocates.  The message is one sentence for a
 * person who has only the message: object, what failed, why, what to do.  The table below says which
 * errno the kernel is told.
 */
#ifndef SC_ERR_H
#define SC_ERR_H

#include <stddef.h>
#include <stdint.h>

#define SC_ERR_TABLE(X)                                                                            \
	X(1, SYSTEM, EIO, "system call failed")     /* the errno is that of the call */            \
	X(2, NO_MEMORY, ENOMEM, "out of memory")                                                   \
	X(3, LIMIT, E2BIG, "limit exceeded")                                                       \
	X(4, TOPOLOGY, EINVAL, "bad topology")                                                     \
	X(5, LAYOUT, EINVAL, "bad layout")                                                         \
	X(6, STATE, EINVAL, "files do not fit topology and layout")                                \
	X(7, FORMAT, EINVAL, "bad file")                                                           \
	X(8, COMMAND, EINVAL, "bad command")                                                       \
	X(9, BUSY, EBUSY, "busy")                                                                  \
	X(10, NOT_FOUND, ENOENT, "not found")                                                      \
	X(11, EXISTS, EEXIST, "exists")                                                            \
	X(12, COPIES, EBADMSG, "copies differ")                                                    \
	X(13, CATALOG, EIO, "catalog failed")                                                      \
	X(14, STALE, ESTALE, "stale")                                                              \
	X(15, SEALED, EROFS, "sealed")                                                             \
	X(16, PERMISSION, EPERM, "not permitted")                                                  \
	X(17, UNSUPPORTED, EOPNOTSUPP, "not supported")                                            \
	X(18, NO_SPACE, ENOSPC, "no space")                                                        \
	X(19, IS_DIR, EISDIR, "is a directory")                                                    \
	X(20, NOT_DIR, ENOTDIR, "not a directory")                                                 \
	X(21, NOT_EMPTY, ENOTEMPTY, "not empty")                                                   \
	X(22, CROSS, EXDEV, "across folders or jobs")                                              \
	X(23, NAME, ENAMETOOLONG, "name too long")                                                 \
	X(24, CANCELLED, ECANCELED, "cancelled")                                                   \
	X(25, SOURCE, EIO, "source of a dataset changed")                                          \
	X(26, DAMAGED, EIO, "damaged on disk")                                                     \
	X(27, CORRUPT, EIO, "catalog is corrupt")

enum sc_err_code {
#define X(nr, name, err_no, text) SC_E_##name = -(nr),
	SC_ERR_TABLE(X)
#undef X
};

#define SC_ERR_BYTES_MAX 1024

struct sc_err {
	int code;	   /* SC_E_*, 0 when nothing failed */
	int errnum;	   /* what the kernel is told, positive */
	uint64_t blob;	   /* that is damaged or missing; 0: it says nothing of a blob */
	const char *file;  /* where it was thrown, for the log */
	int line;
	char msg[SC_ERR_BYTES_MAX];
};

/** Fills `err` and returns `code`.  The errno is that of the table. */
#define sc_fail(err, code, ...) sc_fail_at((err), (code), 0, __FILE__, __LINE__, __VA_ARGS__)
/** Fills `err` for a failed system call: keeps `errnum`; ENOSPC and ENOMEM get their own code. */
#define sc_fail_sys(err, errnum, ...)                                                              \
	sc_fail_at((err), SC_E_SYSTEM, (errnum), __FILE__, __LINE__, __VA_ARGS__)
#define sc_nomem(err) sc_fail_at((err), SC_E_NO_MEMORY, 0, __FILE__, __LINE__, "out of memory")

int sc_fail_at(struct sc_err *err, int code, int errnum, const char *file, int line,
	       const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/** Says which blob a failure is about, and returns its code. */
static inline int sc_about(struct sc_err *err, uint64_t blob)
{
	err->blob = blob;
	return err->code;
}

/** Puts context before the message ("context: message") and returns `rc`. */
int sc_wrap(struct sc_err *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/** Puts "NAME: " before the message, unless it begins with that name. */
void sc_err_name(struct sc_err *err, const char *name);

#endif
