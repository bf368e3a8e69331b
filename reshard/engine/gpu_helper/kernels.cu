/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel: copies the tiles of all boxes of a round.  A thread depends on no other (no shared memory, no barrier,
 * nothing atomic), so the same text runs as loops of the host, too: tests/gpu/host_cuda.h has what CUDA has for it.
 */
#include "reshard/engine/gpu/boxes.h"

#define WORD 16u
#define IN_FLIGHT 4	/* loads before the first store: the latency of one is longer than its transfer */

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
/* of global memory; read once and written once, so the first to leave the cache */
#define LOAD(p) __ldcs(p)
#define STORE(p, v) __stcs(p, v)
#endif

/* --- where a row is --- */

__device__ static inline uint32_t quotient(uint32_t n, struct rs_div v)
{
	return v.d == 1 ? n : __umulhi(n, v.mul) >> v.shift;
}

/*
 * What a thread needs of a box with NR dimensions, in registers: after each store a compiler would have to read it
 * again.  NR -1: any number, from memory.
 */
template <int NR> struct walk {
	const struct rs_box *box;
	uint64_t from, to, from_stride[NR > 0 ? NR : 1], to_stride[NR > 0 ? NR : 1];
	struct rs_div ext[NR > 0 ? NR : 1], units;

	__device__ explicit walk(const struct rs_box *b) : box(b), from(b->from), to(b->to), units(b->units)
	{
UNROLL
		for (int k = 0; k < NR; k++) {
			from_stride[k] = b->from_stride[k];
			to_stride[k] = b->to_stride[k];
			ext[k] = b->ext[k];
		}
	}

	/* Finds the addresses of a row; the last dimension is the fastest. */
	__device__ void find(uint32_t row, uint64_t *ret_from, uint64_t *ret_to) const
	{
		const uint64_t *fs = NR >= 0 ? from_stride : box->from_stride;
		const uint64_t *ts = NR >= 0 ? to_stride : box->to_stride;
		const struct rs_div *e = NR >= 0 ? ext : box->ext;

		*ret_from = from;
		*ret_to = to;
UNROLL
		for (int k = (NR >= 0 ? NR : box->nr) - 1; k >= 0; k--) {
			const uint32_t rest = k ? quotient(row, e[k]) : 0, i = row - rest * e[k].d;

			*ret_from += i * fs[k];
			*ret_to += i * ts[k];
			row = rest;
		}
	}
};

/* --- units that are aligned --- */

template <typename T, int NR> __device__ static inline void find_unit(const walk<NR> &w, uint32_t u, uint64_t *ret_from,
								       uint64_t *ret_to)
{
	const uint32_t row = quotient(u, w.units);
	const uint64_t in_row = (uint64_t)(u - row * w.units.d) * sizeof(T);

	w.find(row, ret_from, ret_to);
	*ret_from += in_row;
	*ret_to += in_row;
}

template <typename T, int NR> __device__ static inline void copy_units(const walk<NR> &w, const struct rs_tile *t)
{
	const uint32_t end = t->first + t->nr, step = blockDim.x;
	uint32_t u = t->first + threadIdx.x;
	uint64_t from, to[IN_FLIGHT];

	for (; u + (IN_FLIGHT - 1) * step < end; u += IN_FLIGHT * step) {
		T v[IN_FLIGHT];

UNROLL
		for (uint32_t i = 0; i < IN_FLIGHT; i++) {
			find_unit<T>(w, u + i * step, &from, &to[i]);
			v[i] = LOAD((const T *)from);
		}
UNROLL
		for (uint32_t i = 0; i < IN_FLIGHT; i++)
			STORE((T *)to[i], v[i]);
	}
	for (; u < end; u += step) {
		find_unit<T>(w, u, &from, &to[0]);
		STORE((T *)to[0], LOAD((const T *)from));
	}
}

/* --- words of the target --- */

/* 16 bytes from any address, of the aligned words of 4 around them: those have up to 3 bytes before and behind. */
__device__ static inline uint4 load_shifted(uint64_t at)
{
	const uint32_t *w = (const uint32_t *)(at & ~3ull), bits = (uint32_t)(at & 3) * 8;
	const uint32_t a = LOAD(w), b = LOAD(w + 1), c = LOAD(w + 2), d = LOAD(w + 3), e = bits ? LOAD(w + 4) : 0;

	return make_uint4(__funnelshift_r(a, b, bits), __funnelshift_r(b, c, bits), __funnelshift_r(c, d, bits),
			  __funnelshift_r(d, e, bits));
}

/*
 * A row's units are the words of the target that it touches.  Those that it has whole are copied at once, if no byte
 * outside of the row is read for it; bytes of the others one by one.
 */
template <int NR> __device__ static inline void copy_words(const walk<NR> &w, const struct rs_tile *t)
{
	const uint32_t run = w.box->run, kind = w.box->kind;

	for (uint32_t u = t->first + threadIdx.x; u < t->first + t->nr; u += blockDim.x) {
		const uint32_t row = quotient(u, w.units);
		uint64_t from, to, word;
		uint32_t begin, end;

		w.find(row, &from, &to);
		word = (to & ~(uint64_t)(WORD - 1)) + (uint64_t)(u - row * w.units.d) * WORD;
		if (word >= to + run)
			continue; /* this row touches a word less than a row may */
		begin = word < to ? (uint32_t)(to - word) : 0;
		end = to + run - word < WORD ? (uint32_t)(to + run - word) : WORD;
		from += word - to;
		if (kind == RS_BOX_ZERO && begin == 0 && end == WORD)
			STORE((uint4 *)word, make_uint4(0, 0, 0, 0));
		else if (kind == RS_BOX_PEEL && begin == 0 && end == WORD)
			STORE((uint4 *)word, LOAD((const uint4 *)from));
		else if (kind == RS_BOX_SHIFT && word >= to + 3 && word + WORD + 3 <= to + run)
			STORE((uint4 *)word, load_shifted(from));
		else
			for (uint32_t i = begin; i < end; i++)
				STORE((uint8_t *)word + i,
				      kind == RS_BOX_ZERO ? (uint8_t)0 : LOAD((const uint8_t *)from + i));
	}
}

/* --- tiles --- */

template <int NR> __device__ static inline void copy_tile(const struct rs_box *b, const struct rs_tile *t)
{
	const walk<NR> w(b);

	if (b->kind != RS_BOX_UNITS)
		copy_words(w, t);
	else if (b->shift == 4)
		copy_units<uint4>(w, t);
	else if (b->shift == 3)
		copy_units<uint2>(w, t);
	else if (b->shift == 2)
		copy_units<uint32_t>(w, t);
	else if (b->shift == 1)
		copy_units<uint16_t>(w, t);
	else
		copy_units<uint8_t>(w, t);
}

/** Copies tiles [0, nr), a block each at a time; any number of blocks, of threads in them. */
extern "C" __global__ void __launch_bounds__(RS_BLOCK_THREADS, 4)
scalai_copy(const struct rs_box *boxes, const struct rs_tile *tiles, uint32_t nr)
{
	for (uint32_t i = blockIdx.x; i < nr; i += gridDim.x) {
		const struct rs_tile t = tiles[i];
		const struct rs_box *b = &boxes[t.box];

		switch (b->nr) {
		case 0:
			copy_tile<0>(b, &t);
			break;
		case 1:
			copy_tile<1>(b, &t);
			break;
		case 2:
			copy_tile<2>(b, &t);
			break;
		default:
			copy_tile<-1>(b, &t);
		}
	}
}
