/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out a zip archive as torch.save() does, as pieces of a file: records stored one behind the other, each with its
 * sizes in front of it, then the directory.  The data of tensors is not known: its checksum is 0, as torch leaves it
 * under torch.serialization.set_crc32_options(False); torch checks none.
 * Source: APPNOTE.TXT 6.3.10 (PKWARE); pytorch's caffe2/serialize/inline_container.cc, 2.13.
 */
#ifndef RS_ZIP_FRAME_H
#define RS_ZIP_FRAME_H

#include "reshard/codec/format/format.h"

/** All zero at first.  rs_zip_frame_end() or rs_zip_frame_drop() ends it. */
struct rs_zip_frame {
	struct sc_buf text, directory;
	struct {
		struct rs_piece *at;	/* text: NULL, until the end */
		size_t nr, room;
	} pieces;
	uint64_t at, nr;		/* bytes of the file, records */
	bool failed;
};

/** Adds a record whose data is in memory. */
void rs_zip_frame_record(struct rs_zip_frame *z, const char *name, const void *data, uint64_t bytes);
/** Adds a record that is a tensor.  A large one begins at byte `skew` of a block if its elements are aligned then. */
void rs_zip_frame_tensor(struct rs_zip_frame *z, const char *name, uint32_t tensor, uint64_t bytes, uint32_t skew);
/** Writes the directory and fills the frame.  Errors: SC_E_NO_MEMORY. */
int rs_zip_frame_end(struct rs_zip_frame *z, struct rs_frame *ret, struct sc_err *err);
void rs_zip_frame_drop(struct rs_zip_frame *z);

#endif
