-- SPDX-License-Identifier: Apache-2.0
-- Version 3 of the catalog: tags.  A tagged version is kept, whatever keep=N says.

ALTER TABLE version ADD COLUMN tag TEXT;
CREATE UNIQUE INDEX version_by_tag ON version (job, tag) WHERE tag IS NOT NULL;
