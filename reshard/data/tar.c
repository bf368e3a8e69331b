/* SPDX-License-Identifier: Apache-2.0 */
/*
 * WebDataset: consecutive members whose paths are equal up to the first dot of the last component are
 * one sample.  libarchive finds the members; a sample is the bytes from its first member's header
 * (with the pax or GNU headers before it) to the next sample's.  What readers skip stays with the sample before it:
 * folders, and files whose name begins with a dot, as macOS puts '._x' before x.
 */
#include "reshard/data/index.h"

#include <archive.h>
#include <archive_entry.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define BLOCK 512

struct tar {
	struct rs_index *x;
	struct archive *a;
	char key[SC_TENSOR_NAME_BYTES_MAX];	/* of the sample that is open; "" before the first */
	struct sc_arena arena;
	struct sc_map suffixes;			/* of its members */
	char skipped[256];			/* the first member that readers skip */
	struct sc_err *err;
};

/* Gives the type byte of the first header of a member. */
static char type_at(const struct rs_index *x, uint64_t at)
{
	char c = 0;

	return at + BLOCK <= x->bytes && sc_pread_all(x->fd, &c, 1, at + 156) == 0 ? c : 0;
}

static int add_suffix(struct tar *t, const char *suffix)
{
	size_t n = strlen(suffix);
	char *lower = sc_arena_copy(&t->arena, suffix, n);

	if (!lower)
		return sc_nomem(t->err);
	for (char *p = lower; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	if (sc_map_get(&t->suffixes, lower, n))
		return sc_fail(t->err, SC_E_FORMAT, "'%s': sample '%s' has two members '.%s'", t->x->path, t->key,
			       lower);
	return sc_map_put(&t->suffixes, lower, n, lower) < 0 ? sc_nomem(t->err) : 0;
}

static int begin_sample(struct tar *t, const char *key, size_t bytes, uint64_t at)
{
	if (bytes >= sizeof(t->key))
		return sc_fail(t->err, SC_E_LIMIT, "'%s': a key of %zu bytes is too long", t->x->path, bytes);
	memcpy(t->key, key, bytes);
	t->key[bytes] = 0;
	sc_map_done(&t->suffixes);
	sc_arena_done(&t->arena);
	rs_index_push(t->x, at);
	t->x->info->samples++;
	if (!t->x->keys->named)
		return sc_vec_push(t->x->keys, XXH3_64bits(key, bytes)) < 0 ? sc_nomem(t->err) : 0;
	if (XXH3_64bits(key, bytes) == t->x->keys->twice) /* `key` is the front of the member's path */
		sc_buf_printf(t->x->keys->named, "%s'%s' of '%s'", t->x->keys->named->bytes ? " and " : "", key,
			      t->x->path);
	return 0;
}

/* Tells whether webdataset skips a file whose name begins with a dot.  Of d/._x it makes a sample 'd/', unless d has a
 * dot. */
static bool is_skipped(const char *path, const char *name)
{
	const char *folder = name - (name > path);

	while (folder > path && folder[-1] != '/')
		folder--;
	return name == path || memchr(folder, '.', (size_t)(name - folder));
}

static int member(struct tar *t, struct archive_entry *e)
{
	const char *path = archive_entry_pathname(e), *name, *dot;
	uint64_t at = (uint64_t)archive_read_header_position(t->a);
	char type = type_at(t->x, at);
	int rc = 0;

	if (!path)
		return sc_fail(t->err, SC_E_FORMAT, "'%s': the member at byte %" PRIu64 " has no name", t->x->path, at);
	if (type == 'g')
		return sc_fail(t->err, SC_E_FORMAT, "'%s': the global header at byte %" PRIu64 " would apply to other "
			"samples in "
			       "another order; write the archive without it", t->x->path, at);
	if (archive_entry_filetype(e) == AE_IFDIR && !archive_entry_hardlink(e))
		return 0; /* readers skip folders: it stays with the sample before it */
	if (archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e) || archive_entry_sparse_count(e))
		return sc_fail(t->err, SC_E_FORMAT, "'%s': member '%s' is no regular file", t->x->path, path);
	name = strrchr(path, '/');
	name = name ? name + 1 : path;
	dot = strchr(name, '.');
	if (dot == name && is_skipped(path, name)) {
		if (!*t->skipped)
			(void)snprintf(t->skipped, sizeof(t->skipped), "%s", path);
		return 0;
	}
	if (!dot)
		return sc_fail(t->err, SC_E_FORMAT, "'%s': member '%s' has no suffix, so it belongs to no sample",
			       t->x->path, path);
	if (!*t->key || strlen(t->key) != (size_t)(dot - path) || memcmp(t->key, path, (size_t)(dot - path)) != 0)
		rc = begin_sample(t, path, (size_t)(dot - path), at);
	return rc < 0 ? rc : add_suffix(t, dot + 1);
}

/* Finds the archive's end after the last member; it must be at whole blocks inside the file. */
static int end(struct tar *t, uint64_t last, uint64_t last_bytes)
{
	uint64_t at = (uint64_t)archive_read_header_position(t->a);

	/* libarchive seeks over data, also beyond the end of a file that was cut */
	if (t->x->info->samples &&
	    (at > t->x->bytes || last_bytes > t->x->bytes || last + BLOCK + last_bytes > t->x->bytes))
		return sc_fail(t->err, SC_E_FORMAT, "'%s' ends too early: its last member begins at byte %" PRIu64 " "
			"and has %" PRIu64
			       " bytes, but the file has %" PRIu64, t->x->path, last, last_bytes, t->x->bytes);
	rs_index_push(t->x, at);
	return 0;
}

static int walk(struct tar *t)
{
	uint64_t last = 0, last_bytes = 0;
	struct archive_entry *e;
	int got, rc = 0;

	while (rc == 0 && (got = archive_read_next_header(t->a, &e)) == ARCHIVE_OK) {
		last = (uint64_t)archive_read_header_position(t->a);
		last_bytes = (uint64_t)archive_entry_size(e);
		rc = member(t, e);
	}
	if (rc < 0)
		return rc;
	if (got == ARCHIVE_EOF && *t->skipped && !t->x->info->samples)
		return sc_fail(t->err, SC_E_FORMAT, "'%s' has no samples: the names of its files begin with a dot, "
			       "such as '%s', and readers skip those", t->x->path, t->skipped);
	if (got != ARCHIVE_EOF)
		return sc_fail(t->err, SC_E_FORMAT, "'%s' is not a whole tar archive after byte %" PRIu64 ": %s",
			       t->x->path, last, archive_error_string(t->a) ? archive_error_string(t->a) : "?");
	return end(t, last, last_bytes);
}

int rs_index_tar(struct rs_index *x, struct sc_err *err)
{
	struct tar t = {.x = x, .a = archive_read_new(), .err = err};
	int rc = 0;

	if (!t.a || archive_read_support_format_tar(t.a) != ARCHIVE_OK)
		rc = sc_nomem(err);
	else if (x->bytes == 0)
		rs_index_push(x, 0); /* an archive of nothing */
	else if (lseek(x->fd, 0, SEEK_SET) < 0 || archive_read_open_fd(t.a, x->fd, 1u << 16) != ARCHIVE_OK)
		rc = sc_fail(err, SC_E_FORMAT, "'%s': %s", x->path,
			     archive_error_string(t.a) ? archive_error_string(t.a) : strerror(errno));
	else
		rc = walk(&t);
	x->info->sequences = x->info->samples;
	sc_map_done(&t.suffixes);
	sc_arena_done(&t.arena);
	(void)archive_read_free(t.a);
	return rc;
}
