/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes rules of the protocol out of a daemon that is compiled with RS_RULES_CAN_BE_OFF: those that $SCALAI_RULE_OFF names, with
 * commas between them (tests/cluster/rules.py).
 */
#include "tests/support/rule_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


__attribute__((constructor)) static void take_out(void)
{
	const char *names = getenv("SCALAI_RULE_OFF");

	while (names && *names) {
		size_t n = strcspn(names, ","), i = 0;

		while (i < RULES_NR && (strlen(rules[i].name) != n || memcmp(rules[i].name, names, n) != 0))
			i++;
		if (i == RULES_NR) {
			fprintf(stderr, "SCALAI_RULE_OFF: there is no rule '%.*s'\n", (int)n, names);
			exit(2);
		}
		*rules[i].off = true;
		names += n + (names[n] == ',');
	}
}
