/* SPDX-License-Identifier: Apache-2.0 */
/* A puller without a network: threads that answer in any order, late, and not always. */
#ifndef TESTS_SUPPORT_PULLER_H
#define TESTS_SUPPORT_PULLER_H

#include "reshard/engine/remote/landing.h"

/** Fills `to` with the true bytes.  Returns 0, or fails with why they don't come. */
typedef int puller_bytes_fn(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err);

struct fake_puller;

/** `threads` 0: it answers before `begin` returns.  One of `fails` pulls fails (0: none). */
struct fake_puller *fake_puller_new(puller_bytes_fn *bytes, int threads, unsigned fails, unsigned delay_us);
struct rs_puller fake_puller_of(struct fake_puller *p);
/** Holds back all answers, or lets them go; cancelled ones are answered in any case. */
void fake_puller_hold(struct fake_puller *p, bool held);
/** How many were on their way at once, at most.  The program ends if a byte was on its way twice. */
uint32_t fake_puller_free(struct fake_puller *p);

#endif
