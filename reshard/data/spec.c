/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/data/spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	const char *suffixes;	/* of files that are taken to be of this format; the first is the default */
} formats[] = {
	[RS_DATA_UNKNOWN] = {"", ""},
	[RS_DATA_LINES] = {"lines", "jsonl ndjson txt"},
	[RS_DATA_RECORDS] = {"records", "bin"},
	[RS_DATA_NPY] = {"npy", "npy"},
	[RS_DATA_TAR] = {"tar", "tar"},
	[RS_DATA_TFRECORD] = {"tfrecord", "tfrecord tfrecords"},
	[RS_DATA_MEGATRON] = {"megatron", "idx"},
};
#define FORMATS ((int)(sizeof(formats) / sizeof(*formats)))

void rs_data_spec_default(struct rs_data_spec *spec)
{
	*spec = (struct rs_data_spec){.shuffle = META_SHUFFLE_GLOBAL, .deal = {.drop_last = true}, .axes = "dp"};
}

/* --- words --- */

static bool number_of(const char *text, uint64_t *ret)
{
	char *end;

	if (*text < '0' || *text > '9' || strlen(text) > 19)
		return false;
	*ret = strtoull(text, &end, 10);
	return *end == 0;
}

static bool one_of(const char *value, const char *a, const char *b, bool *ret)
{
	*ret = strcmp(value, b) == 0;
	return *ret || strcmp(value, a) == 0;
}

static bool set_name(struct rs_data_spec *s, const char *value)
{
	size_t n = strlen(value);

	for (const char *p = value; *p; p++)
		if ((unsigned char)*p <= ' ' || *p == '/' || *p == 127)
			return false;
	if (n == 0 || n > RS_DATA_NAME_MAX || *value == '.' || (n > 5 && strcmp(value + n - 5, ".next") == 0))
		return false;
	memcpy(s->name, value, n + 1);
	return true;
}

static bool set_format(struct rs_data_spec *s, const char *value)
{
	for (int i = 1; i < FORMATS; i++)
		if (strcmp(formats[i].name, value) == 0)
			s->format = (enum rs_data_format)i;
	return s->format != RS_DATA_UNKNOWN;
}

static bool set_shuffle(struct rs_data_spec *s, const char *value)
{
	if (strncmp(value, "block=", 6) == 0) {
		s->shuffle = META_SHUFFLE_BLOCK;
		return number_of(value + 6, &s->block) && s->block > 0;
	}
	s->shuffle = strcmp(value, "none") == 0 ? META_SHUFFLE_NONE : META_SHUFFLE_GLOBAL;
	return s->shuffle == META_SHUFFLE_NONE || strcmp(value, "global") == 0;
}

static bool set_uneven(struct rs_data_spec *s, const char *value)
{
	s->deal.uneven = strcmp(value, "pad") == 0 ? META_UNEVEN_PAD
			 : strcmp(value, "drop") == 0 ? META_UNEVEN_DROP : META_UNEVEN_REFUSE;
	return s->deal.uneven != META_UNEVEN_REFUSE || strcmp(value, "refuse") == 0;
}

static bool set_text(char *to, size_t room, const char *value, const char *allowed)
{
	if (!*value || strlen(value) >= room || value[strspn(value, allowed)])
		return false;
	(void)snprintf(to, room, "%s", value);
	return true;
}

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

int rs_data_spec_word(struct rs_data_spec *s, const char *key, const char *value, struct sc_err *err)
{
	const char *want;
	bool good;

	if (strcmp(key, "name") == 0) {
		good = set_name(s, value);
		want = "a file name of at most 100 bytes, no leading '.', no '/', not NAME.next";
	} else if (strcmp(key, "format") == 0) {
		good = set_format(s, value);
		want = "lines, records, npy, tar, tfrecord or megatron";
	} else if (strcmp(key, "seed") == 0) {
		good = number_of(value, &s->seed);
		want = "a number";
	} else if (strcmp(key, "shuffle") == 0) {
		good = set_shuffle(s, value);
		want = "global, none or block=N";
	} else if (strcmp(key, "global_batch") == 0) {
		good = number_of(value, &s->deal.batch) && s->deal.batch > 0;
		want = "a number of samples, at least 1";
	} else if (strcmp(key, "drop_last") == 0) {
		good = one_of(value, "no", "yes", &s->deal.drop_last);
		want = "yes or no";
	} else if (strcmp(key, "share") == 0) {
		good = one_of(value, "contiguous", "strided", &s->deal.strided);
		want = "contiguous or strided";
	} else if (strcmp(key, "uneven") == 0) {
		good = set_uneven(s, value);
		want = "refuse, pad or drop";
	} else if (strcmp(key, "unit") == 0) {
		good = one_of(value, "document", "sequence", &s->sequences);
		want = "document or sequence";
	} else if (strcmp(key, "record") == 0) {
		good = number_of(value, &s->record) && s->record > 0;
		want = "a number of bytes, at least 1";
	} else if (strcmp(key, "head") == 0) {
		good = number_of(value, &s->head) && s->head <= 1u << 20;
		want = "a number of bytes, at most 1 MiB";
	} else if (strcmp(key, "start") == 0) {
		good = number_of(value, &s->start);
		want = "a number of samples";
	} else if (strcmp(key, "axes") == 0) {
		good = set_text(s->axes, sizeof(s->axes), value, LETTERS ",");
		want = "names of axes, as in dp,ep";
	} else if (strcmp(key, "suffix") == 0) {
		good = set_text(s->suffix, sizeof(s->suffix), value, LETTERS);
		want = "at most 16 letters and digits";
	} else if (strcmp(key, "copy") == 0) {
		good = one_of(value, "no", "yes", &s->copy);
		want = "yes or no";
	} else {
		return 1;
	}
	return good ? 0 : sc_fail(err, SC_E_COMMAND, "%s='%s' is not %s", key, value, want);
}

/* --- a whole one --- */

static const char *suffix_of(const char *path)
{
	const char *name = strrchr(path, '/'), *dot;

	name = name ? name + 1 : path;
	dot = strrchr(name, '.');
	return dot && dot != name ? dot + 1 : "";
}

static bool is_in(const char *word, const char *words)
{
	size_t n = strlen(word);

	for (const char *p = words; n && *p; p += strcspn(p, " "), p += *p == ' ')
		if (strncmp(p, word, n) == 0 && (p[n] == ' ' || p[n] == 0))
			return true;
	return false;
}

/* Chooses the suffix of partitions: that of the source, if the format has it or takes any word, else the format's. */
static void choose_suffix(struct rs_data_spec *s, const char *path)
{
	const char *own = suffix_of(path), *first = formats[s->format].suffixes;
	bool keep = s->format == RS_DATA_LINES || s->format == RS_DATA_RECORDS ||
		    is_in(own, formats[s->format].suffixes);

	if (s->format == RS_DATA_MEGATRON)
		(void)snprintf(s->suffix, sizeof(s->suffix), "bin");
	else if (!keep || !set_text(s->suffix, sizeof(s->suffix), own, LETTERS))
		(void)snprintf(s->suffix, sizeof(s->suffix), "%.*s", (int)strcspn(first, " "), first);
}

/* Formats that exist, but are not read here, and what a user does about each. */
static const struct {
	const char *suffixes, *sentence;
} strange[] = {
	{"parquet pq",
	 "Parquet keeps a sample in pieces, compressed with others, so no run of its bytes is a partition; write JSON "
	 "Lines from it (datasets: Dataset.from_parquet(FILE).to_json(OTHER)) or TFRecords"},
	{"arrow feather",
	 "Arrow keeps a sample in pieces, column by column, so no run of its bytes is a partition; write JSON Lines "
	 "from it (datasets: Dataset.from_file(FILE).to_json(OTHER)) or TFRecords"},
	{"mds",
	 "shards of MosaicML's streaming have their index in another file; write WebDataset archives or JSON Lines "
	 "from them"},
	{"gz zst bz2 xz tgz zip",
	 "compressed files have no samples that can be read by themselves; decompress it first"},
	{"bin",
	 "NAME.bin of Megatron needs its NAME.idx beside it; if it holds samples of one size, add format=records "
	 "record=BYTES"},
};

static int refuse_unknown(const struct rs_data_spec *s, const char *path, struct sc_err *err)
{
	for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++)
		if (is_in(suffix_of(path), strange[i].suffixes))
			return sc_fail(err, SC_E_COMMAND, "dataset '%s': '%s' cannot be added: %s", s->name, path,
				       strange[i].sentence);
	return sc_fail(err, SC_E_COMMAND, "dataset '%s': cannot tell the format from the file name '%s'; add "
		       "format=lines, records, npy, tar, tfrecord or megatron", s->name, path);
}

int rs_data_spec_finish(struct rs_data_spec *s, const char *path, struct sc_err *err)
{
	if (!*s->name)
		return sc_fail(err, SC_E_COMMAND, "name= is missing");
	for (int i = 1; s->format == RS_DATA_UNKNOWN && i < FORMATS; i++)
		if (i != RS_DATA_RECORDS && is_in(suffix_of(path), formats[i].suffixes))
			s->format = (enum rs_data_format)i;
	if (s->format == RS_DATA_UNKNOWN)
		return refuse_unknown(s, path, err);
	if (s->deal.batch == 0)
		return sc_fail(err, SC_E_COMMAND, "dataset '%s': global_batch= is missing", s->name);
	if ((s->format == RS_DATA_RECORDS) != (s->record != 0))
		return sc_fail(err, SC_E_COMMAND, "dataset '%s': record=BYTES %s format=records", s->name,
			       s->record ? "is only for" : "is missing for");
	if (s->head && s->format != RS_DATA_RECORDS)
		return sc_fail(err, SC_E_COMMAND, "dataset '%s': head= is only for format=records", s->name);
	if (s->sequences && s->format != RS_DATA_MEGATRON)
		return sc_fail(err, SC_E_COMMAND, "dataset '%s': unit= is only for format=megatron", s->name);
	if (!*s->suffix)
		choose_suffix(s, path);
	return 0;
}

void rs_data_spec_text(const struct rs_data_spec *s, struct sc_buf *buf)
{
	static const char *const uneven[] = {"refuse", "pad", "drop"};

	sc_buf_printf(buf, "format=%s seed=%" PRIu64, formats[s->format].name, s->seed);
	if (s->shuffle == META_SHUFFLE_BLOCK)
		sc_buf_printf(buf, " shuffle=block=%" PRIu64, s->block);
	else
		sc_buf_printf(buf, " shuffle=%s", s->shuffle == META_SHUFFLE_NONE ? "none" : "global");
	sc_buf_printf(buf, " global_batch=%" PRIu64 " drop_last=%s share=%s uneven=%s", s->deal.batch,
		      s->deal.drop_last ? "yes" : "no", s->deal.strided ? "strided" : "contiguous",
		      uneven[s->deal.uneven]);
	if (s->format == RS_DATA_MEGATRON)
		sc_buf_printf(buf, " unit=%s", s->sequences ? "sequence" : "document");
	if (s->format == RS_DATA_RECORDS)
		sc_buf_printf(buf, " record=%" PRIu64 " head=%" PRIu64, s->record, s->head);
	sc_buf_printf(buf, " start=%" PRIu64 " axes=%s suffix=%s copy=%s", s->start, s->axes, s->suffix,
		      s->copy ? "yes" : "no");
}

int rs_data_spec_parse(const char *name, const char *text, struct rs_data_spec *ret, struct sc_err *err)
{
	char *copy = sc_strdup(text), *save = NULL;
	int rc = copy ? 0 : sc_nomem(err);

	rs_data_spec_default(ret);
	if (rc == 0)
		rc = rs_data_spec_word(ret, "name", name, err);
	for (char *word = rc == 0 ? strtok_r(copy, " ", &save) : NULL; rc == 0 && word;
	     word = strtok_r(NULL, " ", &save)) {
		char *eq = strchr(word, '=');

		if (eq)
			*eq = 0;
		rc = eq ? rs_data_spec_word(ret, word, eq + 1, err) : 1;
	}
	sc_sys.release(copy);
	return rc > 0 ? sc_fail(err, SC_E_CATALOG, "catalog: dataset '%s' has options '%s', which this program does "
		"not "
				"know: use the newer scalai that wrote them", name, text) : rc;
}

bool rs_data_file_name(const struct rs_data_spec *s, int file, char *buf, size_t bytes)
{
	if (file > (s->format == RS_DATA_MEGATRON))
		return false;
	(void)snprintf(buf, bytes, "%s.%s", s->name, file ? "idx" : s->suffix);
	return true;
}

int rs_data_axes(const struct rs_data_spec *s, const struct meta_layout *layout, uint32_t *ret,
		 struct sc_err *err)
{
	*ret = 0;
	for (const char *p = s->axes; *p; p += strcspn(p, ","), p += *p == ',') {
		size_t n = strcspn(p, ",");
		int found = -1;

		for (int i = 0; i < layout->axes.nr; i++)
			if (strlen(layout->axes.name[i]) == n && strncmp(layout->axes.name[i], p, n) == 0)
				found = i;
		if (found < 0)
			return sc_fail(err, SC_E_COMMAND, "dataset '%s': the layout has no axis '%.*s'; name the axes "
				"that number "
				       "data-parallel ranks, as in axes=dp", s->name, (int)n, p);
		*ret |= 1u << found;
	}
	if (meta_layout_mesh_axes(layout, *ret) == 0)
		return sc_fail(err, SC_E_COMMAND, "dataset '%s': no mesh has all of axes=%s", s->name, s->axes);
	return 0;
}
