-- SPDX-License-Identifier: Apache-2.0
-- Version 5 of the catalog: a command that comes again, because the daemon died before it answered, is
-- recognised by the version that it has made.

ALTER TABLE version ADD COLUMN request INTEGER;	-- a random number; NULL: none
