/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "reshard/engine/io/source.h"

#define END_BYTES (64u << 10)

uint32_t rs_megatron_token(uint64_t code)
{
	static const uint32_t tokens[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};

	return code < sizeof(tokens) / sizeof(*tokens) ? tokens[code] : 0;
}

struct rs_corpus *rs_corpus_new(const struct meta_store *store, struct rs_blobs *blobs)
{
	struct rs_corpus *c = sc_zalloc(sizeof(*c));

	if (c) {
		c->refs = 1;
		c->store = store;
		c->blobs = blobs;
		(void)pthread_mutex_init(&c->lock, NULL);
	}
	return c;
}

static void bytes_close(struct rs_data_bytes *b, uint64_t bytes)
{
	if (b->map)
		(void)sc_sys.munmap((void *)b->map, bytes);
	sc_closep(&b->fd);
	sc_sys.release(b);
}

static void source_close(struct rs_data_source *s)
{
	const uint64_t *table = s->documents ? s->documents : s->borders;

	for (struct rs_data_bytes *b = s->bytes, *older; b; b = older) {
		older = b->older;
		bytes_close(b, s->info.bytes);
	}
	if (s->table) {
		rs_bytes_release(s->table, 0, s->table_bytes);
		rs_place_close(&s->table_at, s->table);
	} else if (table) {
		(void)sc_sys.munmap((void *)table, s->table_bytes);
	}
}

static void corpus_free(struct rs_corpus *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < c->nr; i++) {
		source_close(&c->at[i]);
		sc_sys.release(c->at[i].info.path);
	}
	sc_sys.release(c->at);
	sc_sys.release(c->form);
	(void)pthread_mutex_destroy(&c->lock);
	sc_sys.release(c);
}

struct rs_corpus *rs_corpus_ref(struct rs_corpus *c)
{
	(void)__atomic_add_fetch(&c->refs, 1, __ATOMIC_RELAXED);
	return c;
}

void rs_corpus_unref(struct rs_corpus *c)
{
	if (c && __atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) == 0)
		corpus_free(c);
}

int rs_corpus_add(struct rs_corpus *c, struct rs_data_source_info *info, struct sc_err *err)
{
	struct rs_data_source s = {.info = *info, .at_sample = c->samples, .at_sequence = c->sequences};

	if (!info->path || sc_vec_push(c, s) < 0)
		return sc_nomem(err);
	info->path = NULL;
	c->samples += s.info.samples;
	c->sequences += s.info.sequences;
	return 0;
}

int rs_corpus_finish(struct rs_corpus *c, struct sc_err *err)
{
	uint64_t code;

	c->record = c->spec.record;
	if (c->spec.format == RS_DATA_NPY) {
		const char *row = strrchr(c->form, ' ');

		c->record = row ? strtoull(row + 1, NULL, 10) : 0;
	} else if (c->spec.format == RS_DATA_MEGATRON) {
		code = strtoull(c->form, NULL, 10);
		if (!rs_megatron_token(code))
			return sc_fail(err, SC_E_CATALOG, "catalog: dataset '%s': type code '%s'", c->spec.name,
				       c->form);
		c->code = (uint8_t)code;
		c->token = rs_megatron_token(code);
	}
	return 0;
}

/* --- opening --- */

void rs_become(uid_t uid, gid_t gid)
{
	if (geteuid() != 0)
		return;
	/* back to root first: only root may choose a group */
	(void)setfsuid(0);
	(void)setfsgid(gid);
	(void)setfsuid(uid);
}

int rs_data_source_open(const char *path, uid_t uid, gid_t gid, int *ret_fd, struct sc_err *err)
{
	int fd, error;

	if (geteuid() != 0 && uid != geteuid())
		return sc_fail(err, SC_E_PERMISSION, "the daemon does not run as root, so it cannot check whether "
			"user %u may read '%s'",
			       uid, path);
	rs_become(uid, gid);
	fd = sc_sys.openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
	error = errno;
	rs_become(geteuid(), getegid());
	if (fd < 0)
		return sc_fail_sys(err, error, "cannot open the source '%s'", path);
	*ret_fd = fd;
	return 0;
}

int rs_data_source_ends(int fd, uint64_t bytes, uint8_t ret[16], struct sc_err *err)
{
	unsigned char *buffer = sc_sys.alloc((size_t)2 * END_BYTES);
	uint64_t n = bytes < END_BYTES ? bytes : END_BYTES;
	XXH128_canonical_t canonical;

	if (!buffer)
		return sc_nomem(err);
	if (sc_pread_all(fd, buffer, n, 0) < 0 || sc_pread_all(fd, buffer + n, n, bytes - n) < 0) {
		sc_sys.release(buffer);
		return sc_fail_sys(err, errno, "cannot read");
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(buffer, 2 * n));
	memcpy(ret, canonical.digest, 16);
	sc_sys.release(buffer);
	return 0;
}

static int changed(const struct rs_data_source *s, const char *what, struct sc_err *err)
{
	return sc_fail(err, SC_E_SOURCE, "source '%s' %s since it was added, so it is not read any more; put it back, "
		"or "
		       "remove the dataset and add it again", s->info.path, what);
}

/* Checks by the hash of its ends a text that has grown, whose old part must be unchanged, or a source that another node
 * added. */
static int check_ends(struct rs_data_source *s, struct rs_data_bytes *b, const struct stat *st, int64_t mtime_ns,
		      struct sc_err *err)
{
	const int64_t seen = __atomic_load_n(&b->seen_mtime_ns, __ATOMIC_ACQUIRE);
	const bool has_grown = (uint64_t)st->st_size > s->info.bytes;
	uint8_t ends[16];
	int rc;

	if (seen == mtime_ns && __atomic_load_n(&b->seen_bytes, __ATOMIC_ACQUIRE) == (uint64_t)st->st_size)
		return 0;
	if (seen && !has_grown)
		return changed(s, "was written to", err);
	rc = rs_data_source_ends(b->fd, s->info.bytes, ends, err);
	if (rc == 0 && memcmp(ends, s->info.ends, sizeof(ends)) != 0)
		rc = s->info.mtime_ns ? changed(s, "was rewritten", err)
				      : sc_fail(err, SC_E_SOURCE, "source '%s' is not, on this node, the file that "
						"was added on another one: its first or last 64 KiB differ; copy it "
						"from there", s->info.path);
	if (rc == 0) {
		__atomic_store_n(&b->seen_bytes, (uint64_t)st->st_size, __ATOMIC_RELEASE);
		__atomic_store_n(&b->seen_mtime_ns, mtime_ns, __ATOMIC_RELEASE);
	}
	return rc;
}

int rs_data_source_check(const struct rs_corpus *c, struct rs_data_source *s, struct rs_data_bytes *b,
			 struct sc_err *err)
{
	int64_t mtime_ns;
	struct stat st;

	if (s->info.blob)
		return 0; /* sealed */
	if (sc_sys.fstat(b->fd, &st) < 0)
		return sc_fail(err, SC_E_SOURCE, "source '%s': %s", s->info.path, strerror(errno));
	mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
	if (st.st_nlink == 0) {
		/* the next read opens the file that is there then */
		if (__atomic_load_n(&s->bytes, __ATOMIC_ACQUIRE) == b)
			__atomic_store_n(&b->gone, true, __ATOMIC_RELEASE);
		return changed(s, "was removed or replaced", err);
	}
	if ((uint64_t)st.st_size < s->info.bytes)
		return changed(s, "became shorter", err);
	if ((uint64_t)st.st_size == s->info.bytes && mtime_ns == s->info.mtime_ns)
		return 0;
	if ((uint64_t)st.st_size > s->info.bytes ? c->spec.format == RS_DATA_LINES : !s->info.mtime_ns)
		return check_ends(s, b, &st, mtime_ns, err);
	return changed(s, (uint64_t)st.st_size == s->info.bytes ? "was written to" : "grew", err);
}

/* --- tables --- */

static uint64_t plain_bytes(const struct rs_data_source *s)
{
	return (s->info.sequences + 1) * sizeof(uint64_t);
}

static uint64_t whole_bytes(const struct rs_data_source *s)
{
	return plain_bytes(s) + (s->info.samples + 1) * sizeof(uint64_t);
}

static int check_size(const struct rs_data_source *s, uint64_t bytes, struct sc_err *err)
{
	if (bytes == whole_bytes(s) || (bytes == plain_bytes(s) && s->info.sequences == s->info.samples))
		return 0;
	return sc_fail(err, SC_E_DAMAGED, "the table of '%s', blob %" PRIu64 ", is damaged: its size is not the "
		       "%" PRIu64 " or %" PRIu64 " bytes that it had; restore it", s->info.path, s->info.borders,
		       plain_bytes(s), whole_bytes(s));
}

/* Maps a table that another node has, which comes as a whole and stays: 1, 0 (the table is here) or an error. */
static int table_from_elsewhere(struct rs_corpus *c, struct rs_data_source *s, const void **ret, struct sc_err *err)
{
	int rc = rs_blob_place(c->blobs, s->info.borders, s->info.table_bytes, 0, &s->table_at, err);

	if (rc > 0 && check_size(s, s->info.table_bytes, err) < 0)
		rc = err->code;
	if (rc <= 0)
		return rc;
	rc = rs_place_open(&s->table_at, &s->table, err);
	if (rc < 0)
		return sc_wrap(err, rc, "the table of '%s'", s->info.path);
	rc = rs_bytes_need(s->table, 0, s->info.table_bytes, NULL, err);
	*ret = s->table->map;
	if (rc == RS_HERE)
		return 1;
	rs_place_close(&s->table_at, s->table);
	s->table = NULL;
	return sc_wrap(err, rc, "the table of '%s'", s->info.path);
}

static int table_from_here(struct rs_corpus *c, struct rs_data_source *s, const void **ret, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct stat st;
	void *map;
	int rc = meta_store_open_blob(c->store, s->info.borders, UINT64_MAX, &fd, err);

	if (rc < 0)
		return rc;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(err, errno, "store: cannot stat the table of '%s', blob %" PRIu64, s->info.path,
			s->info.borders);
	if (check_size(s, (uint64_t)st.st_size, err) < 0)
		return err->code;
	s->info.table_bytes = (uint64_t)st.st_size;
	map = sc_sys.mmap(NULL, s->info.table_bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return sc_fail_sys(err, errno, "store: cannot map the table of '%s'", s->info.path);
	*ret = map;
	return 0;
}

static int map_table(struct rs_corpus *c, struct rs_data_source *s, struct sc_err *err)
{
	const void *map = NULL;
	int rc = s->info.borders ? table_from_elsewhere(c, s, &map, err) : 1;

	if (rc == 0)
		rc = table_from_here(c, s, &map, err);
	if (rc < 0 || !map)
		return rc < 0 ? rc : 0;
	s->table_bytes = s->info.table_bytes;
	s->borders = map;
	if (s->table_bytes == whole_bytes(s)) {
		s->documents = map;
		s->borders = s->documents + s->info.samples + 1;
	}
	return 0;
}

/* --- bytes --- */

static int open_bytes(struct rs_corpus *c, struct rs_data_source *s, struct rs_data_bytes *b, struct sc_err *err)
{
	void *map;
	int rc;

	if (s->info.blob)
		rc = meta_store_open_blob(c->store, s->info.blob, s->info.bytes, &b->fd, err);
	else
		rc = rs_data_source_open(s->info.path, c->uid, c->gid, &b->fd, err);
	if (rc < 0 && s->info.blob)
		return sc_wrap(err, rc, "the copy of '%s'", s->info.path);
	if (rc < 0)
		return sc_fail(err, SC_E_SOURCE, "source '%s' cannot be opened any more: %s", s->info.path,
			       strerror(err->errnum));
	rc = rs_data_source_check(c, s, b, err);
	if (rc == 0 && s->info.bytes) {
		map = sc_sys.mmap(NULL, s->info.bytes, PROT_READ, MAP_SHARED, b->fd, 0);
		if (map == MAP_FAILED)
			rc = sc_fail_sys(err, errno, "cannot map the source '%s'", s->info.path);
		else
			b->map = map;
	}
	return rc;
}

static bool is_usable(const struct rs_data_bytes *b)
{
	return b && !__atomic_load_n(&b->gone, __ATOMIC_ACQUIRE);
}

int rs_data_source_ready(struct rs_corpus *c, struct rs_data_source *s, struct rs_data_bytes **ret,
			 struct sc_err *err)
{
	struct rs_data_bytes *b;
	int rc = 0;

	*ret = __atomic_load_n(&s->bytes, __ATOMIC_ACQUIRE);
	if (is_usable(*ret))
		return 0;
	(void)pthread_mutex_lock(&c->lock);
	if (!is_usable(s->bytes)) {
		b = sc_zalloc(sizeof(*b));
		rc = b ? 0 : sc_nomem(err);
		if (b) {
			b->fd = -1;
			rc = open_bytes(c, s, b, err);
		}
		if (rc == 0) {
			b->older = s->bytes;
			__atomic_store_n(&s->bytes, b, __ATOMIC_RELEASE);
		} else if (b) {
			bytes_close(b, s->info.bytes);
		}
	}
	*ret = s->bytes;
	(void)pthread_mutex_unlock(&c->lock);
	return rc;
}

static int table_ready(struct rs_corpus *c, struct rs_data_source *s, struct sc_err *err)
{
	int rc = 0;

	if (__atomic_load_n(&s->has_table, __ATOMIC_ACQUIRE))
		return 0;
	(void)pthread_mutex_lock(&c->lock);
	if (!s->has_table) {
		rc = map_table(c, s, err);
		if (rc == 0)
			__atomic_store_n(&s->has_table, 1, __ATOMIC_RELEASE);
	}
	(void)pthread_mutex_unlock(&c->lock);
	return rc;
}

/* --- samples --- */

/* Finds the last source that begins at or before the sample; empty sources come before it. */
static struct rs_data_source *source_of(const struct rs_corpus *c, uint64_t sample)
{
	return &c->at[sc_first(c->nr - 1, i, c->at[i + 1].at_sample > sample)];
}

int rs_corpus_extent(struct rs_corpus *c, uint64_t sample, uint64_t *nr, struct rs_data_extent *ret,
		     struct sc_err *err)
{
	struct rs_data_source *s = source_of(c, sample);
	uint64_t i = sample - s->at_sample, from, to;
	int rc = table_ready(c, s, err);

	if (rc < 0)
		return rc;
	*nr = sc_min_u64(*nr, s->info.samples - i);
	from = i;
	to = i + *nr;
	ret->source = s;
	ret->bare = s->info.bare && to == s->info.samples;
	if (!s->borders) {
		ret->begin = s->info.first + from * c->record;
		ret->end = s->info.first + to * c->record;
		return 0;
	}
	if (s->documents) {
		from = s->documents[from];
		to = s->documents[to];
	}
	ret->begin = s->borders[from];
	ret->end = s->borders[to];
	/* even a damaged table must not lead outside of the mapping */
	if (ret->begin > ret->end || ret->end > s->info.bytes)
		return sc_fail(err, SC_E_SOURCE, "store: the table of '%s' is damaged at sample %" PRIu64, s->info.path,
			       i);
	return 0;
}

int rs_corpus_tables(struct rs_corpus *c, bool *ret_documents, struct sc_err *err)
{
	int rc = 0;

	*ret_documents = false;
	for (size_t i = 0; rc == 0 && i < c->nr; i++) {
		rc = table_ready(c, &c->at[i], err);
		*ret_documents |= c->at[i].documents != NULL;
	}
	return rc;
}

void rs_corpus_prefetch(const struct rs_corpus *c, uint64_t sample)
{
	const struct rs_data_source *s = source_of(c, sample);
	const uint64_t *table = s->documents ? s->documents : s->borders;

	if (table)
		__builtin_prefetch(table + (sample - s->at_sample));
}

int rs_corpus_sequences(struct rs_corpus *c, uint64_t sample, struct rs_data_source **ret_source,
			uint64_t *ret_first, uint64_t *ret_nr, struct sc_err *err)
{
	struct rs_data_source *s = source_of(c, sample);
	uint64_t i = sample - s->at_sample;
	int rc = table_ready(c, s, err);

	if (rc < 0)
		return rc;
	*ret_source = s;
	*ret_first = s->documents ? s->documents[i] : i;
	*ret_nr = s->documents ? s->documents[i + 1] - *ret_first : 1;
	if (*ret_first > s->info.sequences || *ret_nr > s->info.sequences - *ret_first)
		return sc_fail(err, SC_E_SOURCE, "store: the table of '%s' is damaged at sample %" PRIu64, s->info.path,
			       i);
	return 0;
}

static bool is_in(const void *lost, const void *map, uint64_t bytes, uint64_t *ret_at)
{
	*ret_at = (uint64_t)((uintptr_t)lost - (uintptr_t)map);
	return map && *ret_at < bytes;
}

int rs_corpus_lost(const struct rs_corpus *c, const void *lost, struct sc_err *err)
{
	for (size_t i = 0; i < c->nr; i++) {
		const struct rs_data_source *s = &c->at[i];
		const struct rs_data_bytes *b = __atomic_load_n(&s->bytes, __ATOMIC_ACQUIRE);
		uint64_t at;

		if (is_in(lost, s->documents ? s->documents : s->borders, s->table_bytes, &at))
			return sc_wrap(err, rs_cannot_read(s->info.borders, at, EIO, err), "the table of '%s'",
				       s->info.path);
		if (s->info.blob && b && is_in(lost, b->map, s->info.bytes, &at))
			return sc_wrap(err, rs_cannot_read(s->info.blob, at, EIO, err), "the copy of '%s'",
				       s->info.path);
	}
	return sc_fail(err, SC_E_SOURCE, "a source of dataset '%s' became shorter while it was read", c->spec.name);
}
