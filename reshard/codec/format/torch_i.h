/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payload of a torch file: its objects, with a reference where a tensor was.
 *
 *     u64 bytes of the pickle | u64 nr | nr x u64 bytes of a storage | pickle | storages
 *
 * A reference is the persistent id ("scalai", name, flags).  It stands for the call that makes the tensor from its
 * storage, without what is around it (Parameter and the like), which stays.  The storages are those of tensors that are
 * no tensors of the state: inside of objects, or of types that safetensors has not.  Their keys are their numbers.
 */
#ifndef RS_TORCH_I_H
#define RS_TORCH_I_H

#include "reshard/codec/torch/torch.h"
#include "reshard/codec/format/format_i.h"
#include "reshard/codec/format/zip_frame.h"

#define RS_PAYLOAD_HEAD_BYTES 16 /* before the sizes of storages */

enum {
	RS_REF_GRAD = 1,	/* the tensor requires gradients */
	RS_REF_ARGS = 2,	/* it stands for the call's arguments alone */
};

/* --- torch_ref.c --- */

/** Gives the name and flags of a reference; false: the node is no reference. */
bool rs_torch_ref(const struct rs_pickled *node, const struct rs_pickled_bytes **ret_name, int64_t *ret_flags);
/** Makes a reference.  NULL: no memory. */
struct rs_pickled *rs_torch_make_ref(struct sc_arena *arena, const char *name, int64_t flags);
/** Makes the persistent id of a storage, of five parts, once more, with a number as its key.  NULL: no memory. */
struct rs_pickled *rs_torch_number(struct sc_arena *arena, const struct rs_pickled *id, uint64_t number);
/** Finds the reference that a node is, or that it has calls around; NULL: there is none. */
const struct rs_pickled *rs_torch_ref_in(const struct rs_pickled *node);

/* The calls by which torch makes a tensor: from its storage; f(tensor, ...); f(function, class, arguments, state). */
#define RS_TORCH_AROUND_MAX 16	/* in each other */
bool rs_torch_rebuilds(const struct rs_pickled *what);
bool rs_torch_is_parameter(const struct rs_pickled *what, const struct rs_pickled *args);
bool rs_torch_is_typed(const struct rs_pickled *what, const struct rs_pickled *args);

/* --- torch_payload.c --- */

struct rs_torch_carried {	/* a storage of the payload */
	const char *data;
	uint64_t bytes;
	uint64_t record;	/* the caller's: 0 at first */
};

struct rs_torch_payload {
	struct rs_pickle pickle;	/* rs_pickle_done(); its bytes are the payload's */
	struct rs_torch_carried *carried;
	uint64_t nr;
};

/** Reads a payload; `carried` is in the arena.  Errors: SC_E_CORRUPT (it is cut), those of rs_pickle_read(). */
int rs_torch_payload_read(const char *payload, size_t bytes, struct sc_arena *arena, struct rs_torch_payload *ret,
			  struct sc_err *err);
/** Finds the storage that a persistent id names.  Errors: SC_E_CORRUPT. */
int rs_torch_carried_of(struct rs_torch_payload *payload, const struct rs_pickled *persist,
			struct rs_torch_carried **ret, struct sc_err *err);

/* --- torch_objects.c --- */

int rs_torch_objects(const char *payload, size_t bytes, struct sc_arena *arena, struct rs_object **ret, size_t *ret_nr,
		     struct sc_err *err);

/* --- torch_frame.c --- */

/** Adds the records before those of storages; then those, from number 0 on. */
void rs_torch_begin(struct rs_zip_frame *z, const struct sc_buf *pickle);
void rs_torch_record(struct rs_zip_frame *z, uint64_t number, const char *data, uint64_t bytes);

int rs_torch_describe(const struct rs_wanted *wanted, uint32_t nr, const char *payload, size_t payload_bytes,
		      struct rs_frame *ret, struct sc_err *err);
/** Describes a file that is one tensor, and nothing else. */
int rs_torch_describe_one(const struct rs_wanted *wanted, struct rs_frame *ret, struct sc_err *err);

#endif
