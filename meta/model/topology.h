/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A topology: degrees of the axes of a layout's meshes (docs/layout.md, section 2).  A value.
 * Ranks are numbered 0 to ranks-1; coord(axis, rank) = rank / stride % degree.
 */
#ifndef META_TOPOLOGY_H
#define META_TOPOLOGY_H

#include "meta/model/layout.h"

struct meta_topology {
	uint8_t nr_axes;
	uint32_t degree[SC_AXES_MAX], stride[SC_AXES_MAX];
	uint32_t ranks;
	uint32_t pp, ep, vp;	/* degrees; 1 when no mesh has the axis */
	uint32_t chunks;	/* pp * vp */
	uint32_t nr_stages;	/* 0: layers are divided evenly */
	uint32_t *stages;	/* layers of every chunk, in model order */
	char *text;		/* canonical */
};

/** Errors: SC_E_TOPOLOGY with what is wrong; SC_E_LIMIT; SC_E_NO_MEMORY.  The layout is not kept. */
int meta_topology_parse(const struct meta_layout *layout, const char *text,
			struct meta_topology *ret, struct sc_err *err);
void meta_topology_done(struct meta_topology *topo);
int meta_topology_copy(const struct meta_topology *from, struct meta_topology *ret);

/** Computes the coordinates of a rank, one for each axis, of all meshes. */
void meta_topology_coords(const struct meta_topology *topo, uint32_t rank,
			  uint32_t ret[SC_AXES_MAX]);
/** Returns the rank of coordinates of one mesh: two meshes number the same ranks, so those of the other one have to be
 *  0, and what meta_topology_coords() gives is none of these. */
uint32_t meta_topology_rank(const struct meta_topology *topo, const uint32_t coords[SC_AXES_MAX]);

/** Compute the degree of a compound axis, and a rank's index in it; the axis of smaller stride is faster. */
uint32_t meta_topology_degree(const struct meta_topology *topo, uint32_t axes);
uint32_t meta_topology_index(const struct meta_topology *topo, uint32_t axes,
			     const uint32_t coords[SC_AXES_MAX]);
/** Sets the coordinates of `axes` from an index: the inverse of meta_topology_index(). */
void meta_topology_split(const struct meta_topology *topo, uint32_t axes, uint32_t index,
			 uint32_t coords[SC_AXES_MAX]);

/**
 * Computes the first layer of every chunk, and the end: ret[chunks + 1].
 * Errors: SC_E_TOPOLOGY when `layers` does not divide or is not what stages= adds up to.
 */
int meta_topology_starts(const struct meta_topology *topo, uint32_t layers, uint32_t *ret,
			 struct sc_err *err);

#endif
