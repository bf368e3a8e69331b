/* SPDX-License-Identifier: Apache-2.0 */
/* What commands print, as JSON: made of the same text, so that both say the same. */
#ifndef FS_JSON_H
#define FS_JSON_H

#include <jansson.h>

/**
 * Makes an object of lines "key: value".  Numbers are numbers; "version: none" is null; a blank in a key is "_"; keys
 * that may come several times are lists, also where they come once or not at all.  NULL: out of memory.
 */
json_t *cli_json_lines(const char *text);
/** Makes a list of objects of a table whose first line names its columns, between tabs.  NULL: out of memory. */
json_t *cli_json_table(const char *text);
/** The same of a table whose columns are named here (`names`: between tabs); a line may have fewer.  What a line has
 *  more belongs to its last column. */
json_t *cli_json_rows(const char *names, const char *text);
/** Prints it, takes the reference, and returns the exit status: 0, or 1 after a message if it is NULL. */
int cli_json_print(json_t *json);

#endif
