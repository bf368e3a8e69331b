/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds like those of an engine, for whoever looks at them (rounds_look of kinds/rounds.h). */
#ifndef TEST_LOOK_H
#define TEST_LOOK_H

#include "tests/support/kinds/rounds.h"

/** Shows the rounds of a call; `writers` and the reader are those of rounds_options, if it has any, else in turns. */
void look_at_rounds(const struct rs_target *targets, size_t nr);

#endif
