/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocols, step by step.  Each step is announced through sc_sys.step before it is taken, so
 * that a test can stop, fail or kill the daemon at any step.  Between two steps the state on disk is
 * valid: before the TRANSACT step the old version, after it the new one, never a mixture.
 *
 *   commit    1 quiet      every file written is closed and unmapped, or a log
 *             2 read       headers are parsed; logical tensors inferred, checked
 *             3 verify     copies compared (verify=commit)
 *             4 sync       blobs on stable storage (sync=on)
 *             5 transact   blobs, sets, version, head, working tree: one transaction
 *             6 publish    names in the kernel become stale; news
 *   reshard   11 present   the target is validated, nothing is written
 *             12 transact  version, head: one transaction
 *             13 publish
 *   materialize
 *             21 check     the head's copies are known to be equal
 *             22 write     new blobs, not referenced by anything yet
 *             23 sync
 *             24 transact  all is in the new files; sets and the version's storage: one transaction (the flip)
 *             25 publish
 *             26 garbage   blobs that nothing references are removed
 */
#ifndef RS_STEPS_H
#define RS_STEPS_H

#include "meta/base/sys.h"

#define RS_STEPS(X)                                                                                \
	X(1, COMMIT_QUIET, "commit.quiet")                                                         \
	X(2, COMMIT_READ, "commit.read")                                                           \
	X(3, COMMIT_VERIFY, "commit.verify")                                                       \
	X(4, COMMIT_SYNC, "commit.sync")                                                           \
	X(5, COMMIT_TRANSACT, "commit.transact")                                                   \
	X(6, COMMIT_PUBLISH, "commit.publish")                                                     \
	X(11, RESHARD_PRESENT, "reshard.present")                                                  \
	X(12, RESHARD_TRANSACT, "reshard.transact")                                                \
	X(13, RESHARD_PUBLISH, "reshard.publish")                                                  \
	X(21, MATERIALIZE_CHECK, "materialize.check")                                              \
	X(22, MATERIALIZE_WRITE, "materialize.write")                                              \
	X(23, MATERIALIZE_SYNC, "materialize.sync")                                                \
	X(24, MATERIALIZE_TRANSACT, "materialize.transact")                                        \
	X(25, MATERIALIZE_PUBLISH, "materialize.publish")                                          \
	X(26, MATERIALIZE_GARBAGE, "materialize.garbage")

enum rs_step {
#define X(nr, name, text) RS_STEP_##name = nr,
	RS_STEPS(X)
#undef X
};

static inline void rs_step(enum rs_step step)
{
	switch (step) {
#define X(nr, name, text)                                                                          \
	case nr:                                                                                   \
		sc_sys.step(nr, text);                                                             \
		break;
		RS_STEPS(X)
#undef X
	}
}

#endif
