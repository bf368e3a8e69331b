/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control files: one row each, in controls.c.  fs/control/control.c walks the rows and keeps the state of open files
 * (text, documents, polls, parked requests); the row decides what a file shows and does.
 *
 *     open, read   rs_control_read()    the text that this reader gets
 *     write        rs_control_write()   one command, decided when it returns
 *                      RS_CTL_ANSWER: and its answer is what is read next
 *                      RS_CTL_HELD: then rs_control_held(), after each news, until it is done
 *
 * Thread: any; no lock of a job or of the service is held when a row is called.
 */
#ifndef RS_CONTROL_H
#define RS_CONTROL_H

#include "reshard/service/service.h"

enum rs_control_flags {
	RS_CTL_MOUNT = 1,	/* below /.ctl/, its job is NULL; else below JOB/.ctl/ */
	RS_CTL_LONG = 2,	/* write() reads what there is: it has a thread of its own, of few */
	RS_CTL_MOVES = 4,	/* the caller has a token: sent again, the command is done once */
	RS_CTL_ANSWER = 8,	/* write() makes the text that is read next on the same descriptor */
	RS_CTL_DOCUMENT = 16,	/* what is written is collected, and judged at close(2); one line `use ...` at once */
	RS_CTL_HELD = 32,	/* after write() the request waits until `held` says so */
	RS_CTL_WAITS = 64,	/* write() waits for other requests, or for the job's other commands: it has a thread of
				 * its own, when the job's commands before it are done.  So has RS_CTL_DOCUMENT */
};

struct rs_control {
	const char *name;
	unsigned nr;		/* of nodeids, which outlive the program: never another file's */
	mode_t mode;		/* group-writable where the job is: rs_control_mode() */
	unsigned flags;
	size_t bytes_max;	/* of a command or document; 0: SC_COMMAND_BYTES_MAX */
	/** Adds the current text.  NULL: the file is write-only. */
	int (*read)(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf, struct sc_err *err);
	/** Does one command, which has no zero bytes.  A refusal changes nothing.  NULL: the file is only read.
	 *  `answer` with RS_CTL_ANSWER, `ret_held` with RS_CTL_HELD, else NULL. */
	int (*write)(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_buf *answer,
		     uint64_t *ret_held, struct sc_err *err);
	/** Returns 1 if what was written is done, 0 if not yet, negative if it never will be.  Asked again after
	 *  each change. */
	int (*held)(struct rs_job *job, uint64_t held, struct sc_err *err);
};

/** All rows, in the order of listings, ended by NULL. */
extern const struct rs_control *const rs_controls[];
/** More rows, ended by NULL, or NULL; tests set it before they open a store. */
extern const struct rs_control *const *rs_controls_extra;

/** Returns row i of both lists, NULL at the end. */
const struct rs_control *rs_control_at(size_t i);
/** Finds a row by name or number, of the mount's files or of a job's.  NULL: there is none. */
const struct rs_control *rs_control_find(bool of_mount, const char *name);
const struct rs_control *rs_control_by_nr(bool of_mount, unsigned nr);
/** Returns the mode in a job of mode `job`: the group may command a job that it may write. */
mode_t rs_control_mode(const struct rs_control *c, mode_t job);
size_t rs_control_bytes_max(const struct rs_control *c);

/** Adds the text to `buf`; nothing if the file is write-only.  Errors: SC_E_NO_MEMORY, those of the row. */
int rs_control_read(const struct rs_control *c, const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf,
		    struct sc_err *err);
/** Does a command.  Errors: SC_E_PERMISSION (the file is read-only), SC_E_LIMIT (`text` is too long),
 *  SC_E_NO_MEMORY, those of the row. */
int rs_control_write(const struct rs_control *c, const struct rs_caller *who, struct rs_job *job, const char *text,
		     struct sc_buf *answer, uint64_t *ret_held, struct sc_err *err);
/** Asks a row with RS_CTL_HELD whether a parked request is done: 1, 0, or an error. */
int rs_control_held(const struct rs_control *c, struct rs_job *job, uint64_t held, struct sc_err *err);

#endif
