/* SPDX-License-Identifier: Apache-2.0 */
/* How a node that starts waits for etcd. */
#ifndef RS_BOOT_H
#define RS_BOOT_H

#include <stdbool.h>

struct rs_boot_options {
	void *arg;
	bool (*ends)(void *arg);	/* has the mount been ended meanwhile? NULL: never */
	void (*waits)(const char *why); /* is called again and again while it waits, with "" afterwards; or NULL */
	bool is_patient;		/* waits as long as it takes: else it is refused after some tries */
};

#endif
