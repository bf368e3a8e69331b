/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions of datasets: what is left of an epoch for a rank, in files of data/ (reshard/data). */
#ifndef RS_PARTS_H
#define RS_PARTS_H

#include <sys/uio.h>

#include "reshard/version/state/state.h"

struct rs_data_file;
bool rs_view_has_data(const struct rs_view *view, const char *path);
/** Tells whether a folder of ranks ("": any) has files of datasets, in itself or in folders. */
bool rs_view_has_data_in(const struct rs_view *view, const char *folder);
/** Tells whether files of a view are loaded into the memory of a GPU when they are opened. */
bool rs_view_is_for_gpus(const struct rs_view *view);
/** Opens a file of a dataset; rs_data_close() closes it.  Errors: SC_E_NOT_FOUND, SC_E_SOURCE. */
int rs_data_open(struct rs_service *s, struct rs_view *view, uint32_t rank, const char *path,
		 struct rs_data_file **ret, struct sc_err *err);
void rs_data_close(struct rs_service *s, struct rs_data_file *file);
uint64_t rs_data_bytes(const struct rs_data_file *file);
/** Reads a file of a dataset; at + bytes must be within the file.  Errors: SC_E_SOURCE (a source has changed). */
int rs_data_read(struct rs_data_file *file, uint64_t at, uint64_t bytes, unsigned char *to,
		 struct sc_err *err);
/** Gives bytes of a file of a dataset as pieces of memory, checked now.  Returns their number, 0 (more than `room`), or
 *  an error. */
int rs_data_pieces(struct rs_data_file *file, uint64_t at, uint64_t bytes, struct iovec *iov, int room,
		   struct sc_err *err);

#endif
