/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats and parses what two nodes say to each other.  Pure.  Numbers are little-endian:
 *
 *	u16 magic 'Sc'  u8 protocol  u8 kind  u32 body_bytes  u32 payload_bytes  u32 id  u64 epoch (sender's)  u64 mac
 *	body		fields of the kind, below
 *	payload		bytes of tensors and objects, not looked at here
 *
 * Formatting and parsing are one walk over the fields, so that one is the inverse of the other.  A frame that does not
 * fit its own limits, or has bytes left over, is refused, and the connection that it came by is of no use any more.
 */
#ifndef RS_FRAME_H
#define RS_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "meta/base/err.h"

/*
 * The numbers of the protocol that this program speaks.  Tests change them, before there is a node.
 *	1	the first one
 *	2	the same frames; who names objects puts again what a sweep has announced, and knows `all/ended`: only
 *		then etcd is swept (reshard/cluster/stored/sweep.c)
 */
#define RS_PROTOCOL_SWEEPS 2
struct rs_protocols {
	uint8_t min, max;
};
extern struct rs_protocols rs_protocols;

#define RS_FRAME_HEADER 32u
#define RS_FRAME_BODY_MAX 8192u
#define RS_FRAME_PAYLOAD_MAX (4u << 20)
#define RS_FRAME_FILE_MAX 1024u
#define RS_FRAME_TENSOR_MAX 4096u
#define RS_FRAME_TEXT_MAX 1024u
#define RS_FRAME_DIMS_MAX 8u

enum rs_frame_kind {
	RS_FRAME_HELLO = 1,
	RS_FRAME_PREPARED,	/* a member to the proposer */
	RS_FRAME_REFUSED,
	RS_FRAME_HIDDEN,	/* a member to the committer */
	RS_FRAME_PULL = 6,	/* a node to a holder; answered by DATA */
	RS_FRAME_DATA,
	RS_FRAME_OBJECT,	/* the same, by hash */
	RS_FRAME_CANCEL = 10,
	RS_FRAME_ACK = 13,
};

enum rs_frame_code {
	RS_CODE_OK,
	RS_CODE_BUSY,		/* ask again after `again_ms` */
	RS_CODE_NOT_HERE,	/* ask another */
	RS_CODE_GONE,		/* the set died */
	RS_CODE_DAMAGED,
	RS_CODE_FENCED,		/* either side is no member, as the other one knows */
	RS_CODE_BAD,		/* does not lie in what it asks for */
	RS_CODE_IO,
	RS_CODE_VERSION,	/* of a kind that the other side does not know */
	RS_CODES_NR
};

struct rs_hello {
	uint8_t step;		/* 1: who asks; 2: the answer, with its mac; 3: the mac of who asked */
	uint8_t cluster[16];
	uint32_t node;
	uint64_t boot;
	uint8_t protocol_min, protocol_max;
	uint8_t nonce[32], mac[32];
};

/*
 * A region of a stored tensor: runs of `run` bytes, the first at `from`, the others by strides, in row-major order of
 * `extent`.  Packed one behind the other they are the whole region, of which bytes [at, at + bytes) are asked for.
 */
struct rs_pull {
	uint64_t job;
	uint8_t set[32];
	uint32_t rank;
	char file[RS_FRAME_FILE_MAX + 1], tensor[RS_FRAME_TENSOR_MAX + 1]; /* tensor "": bytes of the file */
	uint64_t from, run;
	uint8_t nr;
	uint64_t extent[RS_FRAME_DIMS_MAX], stride[RS_FRAME_DIMS_MAX]; /* stride: bytes */
	uint64_t at;
	uint32_t bytes, deadline_ms;
};

struct rs_frame_message {
	uint64_t job, token, nr;
	uint32_t code;		/* REFUSED: SC_E_*, positive */
	char text[RS_FRAME_TEXT_MAX + 1];
};

struct rs_data {
	uint8_t code;		/* enum rs_frame_code */
	uint32_t again_ms;
	uint64_t xxh3;		/* XXH3-64 of the payload */
};

struct rs_net_frame {
	uint8_t protocol, kind;
	uint32_t body_bytes, payload_bytes, id;
	uint64_t epoch, mac;
	union {
		struct rs_hello hello;
		struct rs_frame_message message; /* PREPARED, REFUSED, HIDDEN */
		struct rs_pull pull;
		struct rs_data data;		 /* DATA, ACK */
		uint8_t object[32];
		uint32_t cancelled;
	};
};

/** Writes header and body to `to`, which has RS_FRAME_HEADER + RS_FRAME_BODY_MAX bytes, and sets f->body_bytes; the mac
 *  stays 0.  Returns how many bytes it wrote.  SC_E_LIMIT (a text, a number of dimensions, the payload). */
int rs_frame_format(struct rs_net_frame *f, uint8_t *to, struct sc_err *err);

/** Reads a header: a frame beyond the limits is refused before its bytes are taken.  A kind that is not known is no
 *  error: its body is passed over, and the frame is answered VERSION.  SC_E_FORMAT. */
int rs_frame_header(const uint8_t header[RS_FRAME_HEADER], struct rs_net_frame *ret, struct sc_err *err);

/** Reads the body of f->body_bytes bytes.  SC_E_FORMAT. */
int rs_frame_body(struct rs_net_frame *f, const uint8_t *body, struct sc_err *err);
bool rs_frame_is_known(uint8_t kind);

/** Tells whether a pull lies inside of `bytes` bytes of its tensor, and inside of itself, without overflow. */
bool rs_pull_fits(const struct rs_pull *p, uint64_t bytes);
/** Copies the p->bytes bytes that a pull asks for to `to`, without gaps.  `tensor` is the tensor's first byte;
 *  rs_pull_fits() must be true. */
void rs_pull_gather(const struct rs_pull *p, const uint8_t *tensor, uint8_t *to);
/** Gives the place of the bytes of a pull in their tensor, if they are one run; false: they are several, or do not
 *  fit. */
bool rs_pull_is_run(const struct rs_pull *p, uint64_t *ret_at);
/** Makes it one run of a file, and says how many bytes the whole file has.  A program that does not look for that reads
 *  the same run: it is a dimension of extent 1, with that stride. */
void rs_pull_of_file(struct rs_pull *p, uint64_t from, uint32_t bytes, uint64_t whole);
/** Returns what it says that the whole file has; 0: it does not say so. */
uint64_t rs_pull_whole(const struct rs_pull *p);

#endif
