-- SPDX-License-Identifier: Apache-2.0
-- Version 6 of the catalog: views begin their tensors where those who wrote them did, so that whole blocks
-- can be shared.

ALTER TABLE blob_set ADD COLUMN skew INTEGER NOT NULL DEFAULT 0;	-- byte of a 4 KiB block
