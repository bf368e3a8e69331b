/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tests/sample/job in a service without a mount, written as ranks write them. */
#ifndef TESTS_SUPPORT_SAMPLE_H
#define TESTS_SUPPORT_SAMPLE_H

#include "reshard/service/service.h"

/** Writes the sample's file `from` ("RANK/NAME") as the new file `name` of a rank.  Errors: of work_create(). */
int create_from_sample(struct rs_service *s, struct rs_job *job, const char *from, uint32_t rank, const char *name,
		       mode_t mode, struct sc_err *err);
/** The same, readable by all; the test fails if it cannot be written. */
void put_sample(struct rs_service *s, struct rs_job *job, const char *from, uint32_t rank, const char *name);
/** Puts the sample's model of this rank. */
void put_model(struct rs_service *s, struct rs_job *job, uint32_t rank, const char *name);

#endif
