/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a node of a cluster, announced as those of reshard/command/commands/steps.h are: before each is taken. */
#ifndef RS_PEERS_STEPS_H
#define RS_PEERS_STEPS_H

#include "meta/base/sys.h"

enum rs_cluster_step {
	RS_PROPOSE = 31, /* the proposal is asked for */
	RS_PREPARE,	 /* a proposal is known: the gate is closed, and what is here checked */
	RS_PREPARED,	 /* that is done, and on stable storage: the proposer is told */
	RS_COMMIT,	 /* all have prepared and the version is made: the transaction in etcd */
	RS_HIDE,	 /* etcd has a newer head: the older one is shown no more */
	RS_HIDDEN,	 /* that is said: the version is taken */
	RS_PULL,	 /* bytes of another node are asked for */
	RS_READY,	 /* what this node keeps is on disk: etcd is told */
	RS_SETTLE,	 /* all are ready: what they keep becomes the storage */
	RS_DELETE,	 /* no node needs a version, or a set: it is let go */
	RS_SWEEP,	 /* objects of dropped versions are removed from etcd */
	RS_WAS_LOST,	 /* an answer to a change of a job's row was lost: it is found out what became of it */
};

static inline void rs_cluster_step(enum rs_cluster_step step)
{
	static const char *const names[] = {
		"cluster.propose", "cluster.prepare", "cluster.prepared", "cluster.commit", "cluster.hide",
		"cluster.hidden", "cluster.pull", "cluster.ready", "cluster.settle", "cluster.delete",
		"cluster.sweep", "cluster.lost",
	};

	sc_sys.step(step, names[step - RS_PROPOSE]);
}

#endif
