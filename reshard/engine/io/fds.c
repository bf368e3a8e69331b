/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/fds.h"

#include "meta/base/sys.h"

int rs_fds_get(struct rs_fds *fds, struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	unsigned i = 0;
	int fd, rc;

	for (; i < fds->nr; i++)
		if (fds->open[i].of == b) {
			*ret_fd = fds->open[i].fd;
			return 0;
		}
	rc = rs_bytes_fd(b, &fd, err);
	if (rc < 0)
		return rc;
	if (fds->nr < RS_FDS_MAX) {
		fds->nr++;
	} else {
		i = fds->next;
		sc_closep(&fds->open[i].fd);
		fds->next = (i + 1) % RS_FDS_MAX;
	}
	fds->open[i].of = b;
	fds->open[i].fd = fd;
	*ret_fd = fd;
	return 0;
}

void rs_fds_close(struct rs_fds *fds)
{
	for (unsigned i = 0; i < fds->nr; i++)
		sc_closep(&fds->open[i].fd);
	fds->nr = fds->next = 0;
}
