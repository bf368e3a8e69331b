/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names the rules of the protocol, as docs/cluster-protocol.md does.  The program has all of them.  A test that is
 * compiled with RS_RULES_CAN_BE_OFF takes one rule away, and must then find a promise broken: a rule that nothing
 * misses is none.
 */
#ifndef RS_RULES_H
#define RS_RULES_H

#include <stdbool.h>

#define RS_RULES(X)                                                                                                    \
	X(head_compared)       /* commit: the head is still that of the proposal */                                    \
	X(spec_compared)       /* commit: the proposal still stands */                                                 \
	X(epoch_compared)      /* any transaction: by the registration that began it */                                \
	X(spec_leased)	       /* a proposal goes with the registration of its proposer */                             \
	X(members_compared)    /* commit: the members are those that prepared */                                       \
	X(store_compared)      /* commit: the storage that it takes over is still that of its base */                  \
	X(sweep_compared)      /* commit, settle: no sweep was announced since it was asked what etcd has */           \
	X(members_true)	       /* a node that is taken off the list of members is registered no more */                \
	X(fresh_limited)       /* plain paths are answered for F after a confirmed read, not longer */                 \
	X(fresh_from_start)    /* ... counted from when the read was sent */                                           \
	X(barrier)	       /* a new head is shown when nobody can show the old one */                              \
	X(barrier_all)	       /* ... because all members have hidden it */                                            \
	X(wait)		       /* ... or because WAIT has passed, with what clocks may differ by */                    \
	X(hidden_honest)       /* a member says that it has hidden a head after it has */                              \
	X(error_unknown)       /* an answer that is lost is no refusal */                                              \
	X(spec_removed_first)  /* a failure is reported when the proposal can't be committed any more */               \
	X(relearn)	       /* WAIT counts from this life of the daemon */                                          \
	X(gate)		       /* a member that has prepared takes no writes */                                        \
	X(gate_until_known)    /* ... until the outcome is known, not for some time */                                 \
	X(member_first)	       /* a node serves when it finds itself among the members */                              \
	X(self_fence)	       /* ... and stops before its registration can end */                                     \
	X(gate_by_command)     /* the outcome of one command does not lift the gate of another */                      \
	X(reads_ordered)       /* older news of a key does not replace newer */                                        \
	X(dirty_refuses)       /* a member with uncommitted files refuses a topology */                                \
	X(prepared_durable)    /* what was prepared for a commit survives a restart */                                 \
	X(left_out_ends)       /* ... and ends with a commit that was made without it */                               \
	X(ready_durable)       /* ready: the bytes are on disk */                                                      \
	X(ready_epoch)	       /* settle: ready in the life of the node that is registered now */                      \
	X(settle_all)	       /* settle: all destinations are ready */                                                \
	X(presented_unsettled) /* a commit that has some of an unsettled storage is not settled */                     \
	X(delete_after_settle) /* files of a set go when no version names it, not when this node has its own */        \
	X(low_water)	       /* ... and no member reads it any more */                                               \
	X(drop_counts_versions) /* a set dies with the last version that names it */                                   \
	X(restart_asks)	       /* a daemon that starts removes nothing before it has asked etcd what lives */

#ifdef RS_RULES_CAN_BE_OFF
struct rs_rules_off {
#define X(name) bool name;
	RS_RULES(X)
#undef X
};
extern struct rs_rules_off rs_rules_off;
#define RULE(name) (!rs_rules_off.name)
#else
#define RULE(name) true
#endif

#endif
