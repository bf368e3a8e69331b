/* SPDX-License-Identifier: Apache-2.0 */
/* Verification of what is stored: copies of a tensor compared, logical tensors digested. */
#ifndef RS_VERIFY_H
#define RS_VERIFY_H

#include "reshard/engine/engine.h"
#include "reshard/state/state_i.h"

/**
 * Compares all copies of a tensor set and digests its logical tensors: *ret_digests, of set->state.nr; *ret_report is
 * lines.  Both are the caller's.  Files that have a hash are compared with it first, if the set has no digests yet.  Of
 * tensors that have other digests than when they were verified first, or copies that differ since, the blobs are looked
 * at: rs_verify_suspect().
 * SC_E_COPIES when copies differ (the report says which), SC_E_DAMAGED, or an error of reading.
 */
int rs_verify_set(struct rs_service *s, struct rs_set *set, rs_tick_fn *tick, void *arg,
		  uint8_t (**ret_digests)[16], char **ret_report, struct sc_err *err);
/**
 * Looks at a blob that holds what is not as it was.  One that has other bytes than when it was hashed is damage that
 * was met: it is shown from then on, and the worker judges it.  Returns 1, or 0 (it has not, or has no hash yet).
 * Errors: SC_E_CANCELLED, those of the catalog, of descriptors and memory.
 */
int rs_verify_suspect(struct rs_service *s, uint64_t blob, rs_tick_fn *tick, void *arg, struct sc_err *err);
/** Looks at each file of a set that is here, as above.  Errors: SC_E_DAMAGED, which names the first that has other
 *  bytes; as above. */
int rs_verify_files(struct rs_service *s, const struct rs_set *set, rs_tick_fn *tick, void *arg, struct sc_err *err);
/** Keeps a verdict (0, or SC_E_COPIES) in the set's row, and digests and lines of a report, which it takes; NULL: none.
 *  Errors: those of the catalog. */
int rs_verify_keep(struct rs_service *s, struct rs_set *set, int verdict, uint8_t (*digests)[16], char *report,
		   struct sc_err *err);
/**
 * A tensor of a set has another digest than when it was verified first.  `news`: what meta_store_damage_news() was
 * before that was found.  SC_E_DAMAGED: a file of the set is known to be damaged, and is seen to, or one was mended
 * meanwhile; SC_E_COPIES: none is, and (but in a cluster) the verdict was kept, see rs_verify_is_other(); or errors of
 * the catalog.
 */
int rs_verify_other(struct rs_service *s, struct rs_set *set, const char *tensor, uint64_t news, struct sc_err *err);
bool rs_verify_is_other(const struct rs_set *set);
/** All tensors of it have their digests, or (none are kept) all copies are equal: a verdict that they differ is taken
 *  back.  Takes `digests`.  Errors: those of the catalog. */
int rs_verify_same(struct rs_service *s, struct rs_set *set, uint8_t (*digests)[16], struct sc_err *err);
/** Compares a set that was made of another one, and that no version has yet, with the digests of that.  If bytes of
 *  `of` have changed, errors are those of rs_verify_other(); SC_E_DAMAGED: they have not; or errors of reading. */
int rs_verify_made(struct rs_service *s, struct rs_set *of, struct rs_set *made, rs_tick_fn *tick, void *arg,
		   struct sc_err *err);
/** Reports rows of padding that differ, so that they may be real ones, and bytes that are not zero and that no reshard
 *  keeps. */
int rs_verify_padding(struct rs_service *s, struct rs_set *set, char **ret_report,
		      struct sc_err *err);

#endif
