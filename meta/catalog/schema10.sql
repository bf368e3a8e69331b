-- SPDX-License-Identifier: Apache-2.0
-- Version 10 of the catalog: who owns a committed file.  Until now it was the job's owner.
-- Attributes are those that ranks gave their files.  A set that was materialized keeps in `given` what ranks gave, under
-- the layout and topology in which they wrote, where their files do not all have the same attributes.

ALTER TABLE set_blob ADD COLUMN uid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE set_blob ADD COLUMN gid INTEGER NOT NULL DEFAULT 0;
ALTER TABLE blob_set ADD COLUMN given_layout INTEGER;	-- NULL: those of set_blob are what ranks gave
ALTER TABLE blob_set ADD COLUMN given_topology TEXT;
ALTER TABLE blob_set ADD COLUMN given_layers INTEGER NOT NULL DEFAULT 0;	-- as layers and experts
ALTER TABLE blob_set ADD COLUMN given_experts INTEGER NOT NULL DEFAULT 0;
CREATE TABLE given (
	blob_set INTEGER NOT NULL, rank INTEGER NOT NULL, path INTEGER NOT NULL,
	mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL,
	PRIMARY KEY (blob_set, rank, path)
) STRICT, WITHOUT ROWID;
