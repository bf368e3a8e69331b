-- SPDX-License-Identifier: Apache-2.0
-- Version 4 of the catalog: scrubbing.

ALTER TABLE blob ADD COLUMN checked_s INTEGER NOT NULL DEFAULT 0;	-- when its bytes were last those of its hash
ALTER TABLE blob ADD COLUMN damaged INTEGER NOT NULL DEFAULT 0;		-- they were not, and nothing could mend them
