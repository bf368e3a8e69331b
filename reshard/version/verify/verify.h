/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies what is stored: compares the copies of a tensor, digests logical tensors. */
#ifndef RS_VERIFY_H
#define RS_VERIFY_H

#include "reshard/engine/io/engine.h"
#include "reshard/version/state/state_i.h"

/**
 * Compares all copies of a tensor set and digests its logical tensors: *ret_digests has set->state.nr of them,
 * *ret_report lines.  Both are the caller's.  If the set has no digests yet, files that have a hash are compared with
 * it first.  If a tensor has another digest than when it was first verified, or copies that differ now, its blobs are
 * looked at (rs_verify_suspect()).  Errors: SC_E_COPIES (copies differ, the report says which), SC_E_DAMAGED, errors of
 * reading.
 */
int rs_verify_set(struct rs_service *s, struct rs_set *set, rs_tick_fn *tick, void *arg,
		  uint8_t (**ret_digests)[16], char **ret_report, struct sc_err *err);
enum {
	RS_SUSPECT_OTHER = 1,	/* a blob has other bytes than when it was hashed */
	RS_SUSPECT_UNREADABLE	/* it can't be read, is cut or gone: `err` says which */
};

/**
 * Looks at a blob of a tensor that is not as it was.  If the blob has other bytes than when it was hashed, or can't be
 * read, that is noted as damage that was met: it is shown from then on, and the worker judges it.  Returns an
 * RS_SUSPECT then, and 0 if it has the bytes, or no hash yet.  Errors: SC_E_CANCELLED, those of the catalog, of
 * descriptors and memory.
 */
int rs_verify_suspect(struct rs_service *s, uint64_t blob, rs_tick_fn *tick, void *arg, struct sc_err *err);
/** Refuses, by SC_E_DAMAGED, a file of which rs_verify_suspect() has found that, with its sentence in `err`. */
int rs_verify_refuse(int found, const char *file, struct sc_err *err);
/** Looks so at each file of a set that is on this node.  Errors: SC_E_DAMAGED names the first file that has other
 *  bytes; those of rs_verify_suspect(). */
int rs_verify_files(struct rs_service *s, const struct rs_set *set, rs_tick_fn *tick, void *arg, struct sc_err *err);
/** Keeps a verdict (0, or SC_E_COPIES) in the set's row, with digests and lines of a report (NULL: none), which it
 *  takes.  Errors: those of the catalog. */
int rs_verify_keep(struct rs_service *s, struct rs_set *set, int verdict, uint8_t (*digests)[16], char *report,
		   struct sc_err *err);
/**
 * Says what it means that a tensor of a set has another digest than when it was first verified.  `news`: what
 * meta_store_damage_news() was before that was found.  SC_E_DAMAGED: a file of the set is known to be damaged, and the
 * worker mends it, or one was mended meanwhile.  SC_E_COPIES: no file is, and the verdict was kept (not in a cluster),
 * see rs_verify_is_other().  Or errors of the catalog.
 */
int rs_verify_other(struct rs_service *s, struct rs_set *set, const char *tensor, uint64_t news, struct sc_err *err);
bool rs_verify_is_other(const struct rs_set *set);
/** Takes back the verdict that copies of a set differ: all tensors have their digests, or all copies are equal, if no
 *  digests are kept.  Takes `digests`.  Errors: those of the catalog. */
int rs_verify_same(struct rs_service *s, struct rs_set *set, uint8_t (*digests)[16], struct sc_err *err);
/** Compares a set that was made of the set `of`, and that no version has yet, with the digests of `of`.  If bytes of
 *  `of` have changed, the errors are those of rs_verify_other(); if they have not, SC_E_DAMAGED.  Or errors of
 *  reading. */
int rs_verify_made(struct rs_service *s, struct rs_set *of, struct rs_set *made, rs_tick_fn *tick, void *arg,
		   struct sc_err *err);
/** Reports rows of padding that differ, as they may be real rows, and bytes that are not zero and that no reshard
 *  keeps. */
int rs_verify_padding(struct rs_service *s, struct rs_set *set, char **ret_report,
		      struct sc_err *err);

#endif
