/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers files and folders that nobody made, as they follow from a topology.  A number says what it stands for:
 *
 *     bit 60   59..42   41..22   21..0
 *          1   job      rank     path        (all ranks but the last one, which is the job's own folder)
 */
#ifndef META_VIRTUAL_H
#define META_VIRTUAL_H

#include <stdint.h>

#include "meta/base/limits.h"

#define META_VIRTUAL (UINT64_C(1) << 60)
#define META_VIRTUAL_JOB (SC_PATH_BITS + 20)	/* the bit where it begins */

static inline uint64_t meta_virtual(uint64_t job, uint32_t rank, uint64_t path)
{
	return META_VIRTUAL | job << META_VIRTUAL_JOB | (uint64_t)rank << SC_PATH_BITS | path;
}

static inline uint64_t meta_virtual_job(uint64_t ino)
{
	return ino >> META_VIRTUAL_JOB & (SC_JOBS_MAX - 1);
}

static inline uint32_t meta_virtual_rank(uint64_t ino)
{
	return ino >> SC_PATH_BITS & (SC_RANKS_MAX - 1);
}

static inline uint64_t meta_virtual_path(uint64_t ino)
{
	return ino & (SC_PATHS_MAX - 1);
}

#endif
