/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shares of rounds (reshard/rounds/rounds.h) through one GPU, some at a time.  Only this file and device.c call CUDA;
 * the daemon links neither.
 *
 *     fill() ──> pinned ── stream in ──> device ── stream run ──> device ── stream out ──> pinned ──> drain()
 *
 * A slot has a window of each of the four, and tables.  Slots are used in turn.  Who waits for what, by an event of the
 * slot; the host itself waits where it says so:
 *
 *     does                        waits for                in the slot's last round     records
 *     host: fill(), tables                                 in_done
 *     in: copies input, tables                             copied                       in_done
 *     run: zeros, copies boxes    in_done                  out_done                     copied
 *     host: drain()                                        out_done
 *     out: copies output          copied                   (drain() has ended)          out_done
 *
 * A wait for the last round comes before its event is recorded again.  Whatever synchronizes a device (memory, events)
 * is made by rs_pipeline_new() and ended by rs_pipeline_close(), and nothing of it in between.
 *
 * The first error is kept: every later call gives it.  One thread.
 */
#ifndef RS_PIPELINE_H
#define RS_PIPELINE_H

#include "reshard/gpu/pool.h"
#include "reshard/rounds/rounds.h"

struct rs_pipeline_options {
	int device;		/* as CUDA numbers it */
	struct rs_pool pool;
	const char *kernel;	/* PTX that has scalai_copy() */
	void *memory;		/* of the caller, as large as the pool: it is pinned until the end */
	/** Fills window `in` with what the share reads.  May block. */
	int (*fill)(void *arg, const struct rs_share *share, unsigned char *in, struct sc_err *err);
	/** Takes what a share wrote; bytes of extents are at their windows.  In the order of shares.  May block. */
	int (*drain)(void *arg, const struct rs_extent *out, uint32_t nr, const unsigned char *bytes,
		     struct sc_err *err);
	/** Is called again and again while the device is waited for; an error ends the work.  It has the clock. */
	int (*idle)(void *arg, struct sc_err *err);
	void *arg;
};

struct rs_pipeline;

/** Takes the device's memory and pins the pool.  Owner: the caller, rs_pipeline_close().
 *  Errors, which name the call of CUDA: SC_E_NO_MEMORY, SC_E_SYSTEM. */
int rs_pipeline_new(const struct rs_pipeline_options *options, struct rs_pipeline **ret, struct sc_err *err);

/**
 * Copies a share: calls fill(), and drain() for an earlier one whose slot it takes.  The share is not needed any more
 * when it returns.
 * Errors: SC_E_LIMIT (it does not fit), SC_E_STATE (a box is outside), SC_E_UNSUPPORTED (it exchanges bytes with
 * peers), SC_E_SYSTEM (a call of CUDA failed), those of fill(), drain(), idle().
 */
int rs_pipeline_put(struct rs_pipeline *p, const struct rs_share *share, struct sc_err *err);

/** Drains all shares that have been put.  Errors: as rs_pipeline_put(). */
int rs_pipeline_finish(struct rs_pipeline *p, struct sc_err *err);

/**
 * Waits until the device does nothing any more, and gives back what it had; the pool is the caller's again.  NULL is
 * fine.
 * Errors: those of idle(): the device goes on and may write into the pool.  Nothing was given back; call it again, or
 * end the process.
 */
int rs_pipeline_close(struct rs_pipeline *p, struct sc_err *err);

#endif
