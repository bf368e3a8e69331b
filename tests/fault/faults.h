/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of faults: in each, one call of some fails, or many do less than they were asked for. */
#ifndef TESTS_FAULT_FAULTS_H
#define TESTS_FAULT_FAULTS_H

/* What fails, one kind after another. */
enum kind { MEMORY, READING, WRITING, DESCRIPTORS, CATALOG_FULL, CATALOG_BROKEN, RING, RING_FULL, ODD, KINDS };

extern const char *const kind_names[KINDS];
extern int failures; /* that happened since break_all() */

/** Fails the n-th call of this kind from now on, counted from 0.  ODD: many calls are short or interrupted, whatever n is. */
void break_all(enum kind kind, long n);

/** Nothing fails any more. */
void mend_all(void);

#endif
