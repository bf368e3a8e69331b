/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/host_run.h"

#include <stddef.h>

static void *wrong(struct host_device *d, uint64_t address, const char *what)
{
	static _Thread_local unsigned char nowhere[16];

	if (!d->wrong) {
		d->wrong = what;
		d->wrong_at = address;
	}
	return nowhere;
}

void *host_access(struct host_device *d, uint64_t address, uint32_t bytes, int store)
{
	if (address % bytes)
		return wrong(d, address, "not aligned");
	for (uint32_t i = 0; i < d->nr; i++) {
		const struct host_region *r = &d->regions[i];
		const uint64_t at = address - r->address;

		if (address < r->address || at >= r->bytes)
			continue;
		if (bytes > r->bytes - at)
			return wrong(d, address, "beyond the end of a region");
		if (store != (r->stored != NULL))
			return wrong(d, address, store ? "a source is stored to" : "a target is loaded");
		for (uint32_t k = 0; k < bytes; k++) {
			if (store && r->stored[at + k]++)
				return wrong(d, address + k, "a byte is stored twice");
			if (!store && r->readable && !r->readable[at + k])
				return wrong(d, address + k, "a byte outside of all rows is loaded");
		}
		return r->memory + at;
	}
	return wrong(d, address, "in no region");
}
