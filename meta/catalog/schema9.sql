-- SPDX-License-Identifier: Apache-2.0
-- Version 9 of the catalog: a model may lie in several files, each with a set of its own.  Where a tensor was stored
-- depends on how many layers and experts the whole version had when the set was written, which the set's own tensors
-- need not tell, nor those of the versions that have the set later.

ALTER TABLE blob_set ADD COLUMN layers INTEGER NOT NULL DEFAULT 0;	-- 0: its tensors tell
ALTER TABLE blob_set ADD COLUMN experts INTEGER NOT NULL DEFAULT 0;	-- of families that are spread over files; likewise
