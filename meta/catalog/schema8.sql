-- SPDX-License-Identifier: Apache-2.0
-- Version 8 of the catalog: nodeids of views are places (fs/node.h): view.id is a view's last place.  Blobs with adjacent
-- numbers lie in one folder.

CREATE TABLE job_number (
	given INTEGER NOT NULL,			-- numbers of jobs that were given; beyond the last one they begin anew
	before_mount INTEGER NOT NULL		-- those of them that no kernel remembers
) STRICT;
INSERT INTO job_number VALUES (0, 0);
