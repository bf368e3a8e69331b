/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the rows of datasets. */
#include "meta/catalog/db_i.h"

#include "meta/base/mem.h"

#include <string.h>

struct data_walk {
	meta_dataset_fn *dataset;
	meta_data_source_fn *source;
	void *arg;
};

int meta_dataset_add(struct meta_catalog *c, const struct meta_dataset_row *row, uint64_t *ret_id,
		     struct sc_err *err)
{
	return ADD(c, err, ret_id, "INSERT INTO dataset (name, spec, form, uid, gid) VALUES (?, ?, ?, ?, ?)", "sssii",
		   row->name, row->spec, row->form, (uint64_t)row->uid, (uint64_t)row->gid);
}

int meta_dataset_add_source(struct meta_catalog *c, uint64_t dataset, uint64_t nr,
			    const struct meta_data_source_row *row, struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO data_source (dataset, nr, path, blob, bytes, mtime_ns, ends, samples, "
			      "sequences, first, bare, borders) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		      "iis0iIbiiii0", dataset, nr, row->path, row->blob, row->bytes, row->mtime_ns, row->ends,
		      row->samples, row->sequences, row->first, (uint64_t)row->bare, row->borders);
}

int meta_version_add_data(struct meta_catalog *c, uint64_t version, uint64_t dataset,
			  uint64_t from_epoch, uint64_t from_samples, struct sc_err *err)
{
	return db_run(c, err, "INSERT INTO version_data (version, dataset, from_epoch, from_samples) "
			      "VALUES (?, ?, ?, ?)", "iiii", version, dataset, from_epoch, from_samples);
}

static int on_dataset(void *arg, sqlite3_stmt *row)
{
	const struct data_walk *w = arg;
	struct meta_dataset_row d = {
		.id = (uint64_t)sqlite3_column_int64(row, 0), .name = db_text(row, 1), .spec = db_text(row, 2),
		.form = db_text(row, 3), .uid = (uid_t)sqlite3_column_int64(row, 4),
		.gid = (gid_t)sqlite3_column_int64(row, 5),
		.from_epoch = (uint64_t)sqlite3_column_int64(row, 6),
		.from_samples = (uint64_t)sqlite3_column_int64(row, 7)};

	return w->dataset(w->arg, &d);
}

int meta_version_data(struct meta_catalog *c, uint64_t version, meta_dataset_fn *fn, void *arg,
		      struct sc_err *err)
{
	struct data_walk w = {.dataset = fn, .arg = arg};

	return db_each(c, err, on_dataset, &w, "SELECT id, name, spec, form, uid, gid, from_epoch, from_samples "
		       "FROM version_data JOIN dataset ON id = dataset WHERE version = ? "
		       "ORDER BY name, from_epoch", "i", version);
}

static int on_source(void *arg, sqlite3_stmt *row)
{
	const struct data_walk *w = arg;
	struct meta_data_source_row s = {
		.path = db_text(row, 0), .blob = (uint64_t)sqlite3_column_int64(row, 1),
		.bytes = (uint64_t)sqlite3_column_int64(row, 2), .mtime_ns = sqlite3_column_int64(row, 3),
		.samples = (uint64_t)sqlite3_column_int64(row, 5),
		.sequences = (uint64_t)sqlite3_column_int64(row, 6),
		.first = (uint64_t)sqlite3_column_int64(row, 7), .bare = sqlite3_column_int(row, 8) != 0,
		.borders = (uint64_t)sqlite3_column_int64(row, 9)};

	if (sqlite3_column_bytes(row, 4) == sizeof(s.ends))
		memcpy(s.ends, sqlite3_column_blob(row, 4), sizeof(s.ends));
	return w->source(w->arg, &s);
}

int meta_dataset_sources(struct meta_catalog *c, uint64_t dataset, meta_data_source_fn *fn, void *arg,
			 struct sc_err *err)
{
	struct data_walk w = {.source = fn, .arg = arg};

	return db_each(c, err, on_source, &w, "SELECT path, blob, bytes, mtime_ns, ends, samples, sequences, first, "
		       "bare, borders FROM data_source WHERE dataset = ? ORDER BY nr", "i", dataset);
}
