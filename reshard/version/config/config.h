/* SPDX-License-Identifier: Apache-2.0 */
/* A job's settings: `key=value`, as the catalog keeps them and as the control file `config` shows them. */
#ifndef RS_CONFIG_H
#define RS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "meta/base/mem.h"

#define RS_CONFIG_GLOB_BYTES 256
#define RS_CONFIG_HOME_BYTES 256

struct rs_config {
	enum { RS_EAGER, RS_LAZY, RS_NEVER } materialize;
	enum { RS_VERIFY_COMMIT, RS_VERIFY_BACKGROUND } verify;
	uint32_t keep;			/* versions, 0: all */
	uint32_t replicas;		/* nodes of a cluster that have a file's bytes; 0: as the cluster says */
	enum { RS_ENGINE_AUTO, RS_ENGINE_HOST, RS_ENGINE_GPU } engine;
	bool sync, show, remove;
	bool drop_plain;		/* a topology may leave plain files without a place */
	bool accept_suspicious;		/* a commit takes equal parts, shapes that are not the model's */
	uint32_t ranks_per_node;	/* 0: one node */
	uint64_t buffer_bytes;		/* of the engine */
	uint64_t hf_shard_bytes;	/* a file of .hf has no more, unless it has one tensor */
	bool steps_unknown;		/* no setting: nobody knows of which step what is committed is */
	bool drop_at_once;		/* no setting: versions go though nothing is known of the head yet */
	char home[RS_CONFIG_HOME_BYTES]; /* ranks that a node of a cluster keeps: "0-3,7", "none", or empty */
	char hf[RS_CONFIG_GLOB_BYTES];	/* which files of tensors are the model of .hf; empty: found by their names */
};

/** Returns the settings of a job whose config was never written. */
struct rs_config rs_config_default(void);
/** The forms of settings, KEY=VALUES, for messages; NULL ends the list. */
extern const char *const rs_config_forms[];
/** Sets one key; -1: the key or value is unknown. */
int rs_config_apply(struct rs_config *config, const char *key, const char *value);

/* A list of ranks as text: "0-3,7".  "none", and whatever is no list, has none. */
struct rs_ranks {
	uint32_t first, last;
};
/** Takes the next range from *at; false: there is none, and what is left is no list. */
bool rs_ranks_next(const char **at, struct rs_ranks *ret);
bool rs_ranks_have(const char *list, uint32_t rank);

/** Writes the settings of .hf as options of its form. */
void rs_config_hf(const struct rs_config *config, char *ret, size_t bytes);
/** Returns the kind of engine that is asked for by name (reshard/engine/io/engine.h); NULL: none is. */
const char *rs_config_engine(const struct rs_config *config);
/** Appends all settings, a line each. */
void rs_config_text(const struct rs_config *config, struct sc_buf *buf);

#endif
