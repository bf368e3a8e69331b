/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells on stderr how far a command is: on a terminal in one line, which is written anew about twice a second;
 * elsewhere only with --progress, in a line every two seconds.  A process has one stderr, so there is one progress, of
 * one thread.  A command that takes less than half a second tells nothing on a terminal; with --progress it tells its
 * end.
 */
#ifndef FS_PROGRESS_H
#define FS_PROGRESS_H

#include <stdint.h>

#include "fs/cli/args.h"

#define CLI_PROGRESS_BYTES 512

/** Begins to tell; `name` is in front of each line. */
void cli_progress_begin(const struct cli_args *args, const char *name);
/** Tells whether anybody is told: whoever is not need not count beforehand. */
bool cli_progress_is_on(void);
/** Names what is done now, and of how many bytes; 0: nobody knows. */
void cli_progress_step(const char *what, uint64_t total);
/** Adds bytes to what is to be done, before the first of them is done. */
void cli_progress_more(uint64_t bytes);
/** Counts bytes that are done; with 0 it tells the time, where nothing can be counted. */
void cli_progress_add(uint64_t bytes);
/** Sets how many bytes are done, and of how many. */
void cli_progress_set(uint64_t done, uint64_t total);
/** Takes the line off the terminal: a message follows. */
void cli_progress_hide(void);
/** Tells the end; nothing if the command has failed. */
void cli_progress_end(bool failed);

/** Writes "P %, WHAT, DONE of TOTAL, RATE, TIME left" for people; `rate` is in bytes a second.  With a total of 0 only
 *  WHAT, and the seconds that it has taken. */
void cli_progress_text(char text[CLI_PROGRESS_BYTES], const char *what, uint64_t done, uint64_t total, double rate,
		       double seconds);

#endif
