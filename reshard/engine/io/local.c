/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/io/local.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define BUCKETS 4096
#define BLOBS_IDLE_MAX 1024

const struct rs_source_ops *rs_source_extra;

struct rs_blobs {
	const struct meta_store *store;
	pthread_mutex_t lock;
	struct rs_blob *buckets[BUCKETS];
	struct rs_elsewhere elsewhere;
	struct rs_blob idle; /* ring: after = longest idle */
	uint32_t nr_idle;
	uint64_t forgets; /* calls of rs_blob_forget() */
};

int rs_blobs_new(const struct meta_store *store, struct rs_blobs **ret, struct sc_err *err)
{
	struct rs_blobs *b = sc_zalloc(sizeof(*b));

	if (!b)
		return sc_nomem(err);
	b->store = store;
	(void)pthread_mutex_init(&b->lock, NULL);
	b->idle.idle_before = b->idle.idle_after = &b->idle;
	*ret = b;
	return 0;
}

void rs_blobs_elsewhere(struct rs_blobs *b, const struct rs_elsewhere *elsewhere)
{
	b->elsewhere = *elsewhere;
}

int rs_blob_place(struct rs_blobs *b, uint64_t id, uint64_t bytes, uint64_t at, struct rs_place *ret,
		  struct sc_err *err)
{
	int rc = b->elsewhere.place ? b->elsewhere.place(b->elsewhere.arg, id, bytes, at, ret, err) : 0;

	if (rc == 0)
		*ret = (struct rs_place){rs_source_extra ? rs_source_extra : &rs_source_local, b, id, bytes, at};
	return rc;
}

int rs_blob_copies(struct rs_blobs *b, uint64_t id, uint64_t bytes, struct rs_place *ret, struct sc_err *err)
{
	return b->elsewhere.copies ? b->elsewhere.copies(b->elsewhere.arg, id, bytes, ret, err) : 0;
}

int rs_blob_read(struct rs_blobs *b, uint64_t id, uint64_t bytes, void *to, struct sc_err *err)
{
	struct rs_place place;
	struct rs_bytes *from;
	int rc = rs_blob_place(b, id, bytes, 0, &place, err);

	if (rc >= 0)
		rc = rs_place_open(&place, &from, err);
	if (rc < 0)
		return rc;
	rc = rs_bytes_read(from, 0, bytes, to, err);
	rs_place_close(&place, from);
	return rc;
}

bool rs_blobs_may_be_away(const struct rs_blobs *b)
{
	return b && b->elsewhere.place;
}

int rs_blob_is_there(struct rs_blobs *b, uint64_t id, uint32_t *ret_node, struct sc_err *err)
{
	return b->elsewhere.is_there ? b->elsewhere.is_there(b->elsewhere.arg, id, ret_node, err) : 1;
}

bool rs_blob_is_gone(struct rs_blobs *b, uint64_t id)
{
	return b->elsewhere.is_gone && b->elsewhere.is_gone(b->elsewhere.arg, id);
}

static void blob_free(struct rs_blob *blob)
{
	if (blob->bytes.map)
		(void)sc_sys.munmap((void *)blob->bytes.map, blob->bytes.bytes);
	rs_found_done(&blob->found);
	sc_sys.release(blob);
}

static void leave_idle(struct rs_blobs *b, struct rs_blob *blob)
{
	blob->idle_before->idle_after = blob->idle_after;
	blob->idle_after->idle_before = blob->idle_before;
	blob->idle_before = blob->idle_after = NULL;
	b->nr_idle--;
}

static void drop(struct rs_blobs *b, struct rs_blob *blob)
{
	struct rs_blob **at = &b->buckets[blob->bytes.blob % BUCKETS];

	leave_idle(b, blob);
	while (*at != blob)
		at = &(*at)->next;
	*at = blob->next;
	blob_free(blob);
}

struct rs_blobs *rs_blobs_free(struct rs_blobs *b)
{
	if (b) {
		while (b->nr_idle)
			drop(b, b->idle.idle_after);
		(void)pthread_mutex_destroy(&b->lock);
		sc_sys.release(b);
	}
	return NULL;
}

static int map_blob(struct rs_blob *blob, struct sc_err *err)
{
	struct rs_bytes *b = &blob->bytes;
	sc_cleanup(sc_closep) int fd = -1;
	void *map;
	int rc = meta_store_open_blob(blob->blobs->store, b->blob, b->bytes, &fd, err);

	if (rc < 0 || b->bytes == 0)
		return rc;
	map = sc_sys.mmap(NULL, b->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return sc_fail_sys(err, errno, "store: cannot map blob %" PRIu64, b->blob);
	b->map = map;
	return 0;
}

static int read_file(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	return rs_bytes_read(arg, at, bytes, to, err);
}

static int parse(struct rs_blob *blob, struct rs_bytes *bytes, struct sc_err *err)
{
	struct rs_file file = {.bytes = blob->bytes.bytes, .arg = bytes, .read = read_file, .tensors_only = true};

	return rs_format_parse(blob->format, &file, &blob->found, err);
}

/* Parses a blob of another node by its place: this store has no mapping of it. */
static int parse_elsewhere(struct rs_blob *blob, const struct rs_place *place, struct sc_err *err)
{
	struct rs_bytes *bytes;
	int rc = rs_place_open(place, &bytes, err);

	if (rc < 0)
		return rc;
	rc = parse(blob, bytes, err);
	rs_place_close(place, bytes);
	return rc;
}

/* Loads a blob; `found` is what is in it (NULL: the file is parsed). */
static int load(struct rs_blobs *b, uint64_t id, const struct rs_format_ops *format, uint64_t bytes,
		const struct rs_found *found, struct rs_blob **ret, struct sc_err *err)
{
	struct rs_blob *blob = sc_zalloc(sizeof(*blob));
	struct rs_place place;
	int is_elsewhere, rc;

	if (!blob)
		return sc_nomem(err);
	blob->bytes = (struct rs_bytes){.ops = &rs_source_local, .bytes = bytes, .blob = id};
	blob->blobs = b;
	blob->format = format;
	blob->refs = 1;
	is_elsewhere = rs_blob_place(b, id, bytes, 0, &place, err);
	rc = is_elsewhere < 0 ? is_elsewhere : is_elsewhere ? 0 : map_blob(blob, err);
	if (rc == 0 && found)
		rc = rs_found_copy(found, &blob->found, err);
	else if (rc == 0 && format)
		rc = is_elsewhere ? parse_elsewhere(blob, &place, err) : parse(blob, &blob->bytes, err);
	if (rc < 0)
		blob_free(blob);
	else
		*ret = blob;
	return rc;
}

/* Tells whether a kept blob is the one that is asked for.  `format` NULL asks for its bytes; a blob without a mapping
 * was on another node when it was loaded. */
static bool is_it(const struct rs_blob *blob, uint64_t id, const struct rs_format_ops *format)
{
	return blob->bytes.blob == id && !blob->forgotten &&
	       (format ? blob->format == format : blob->bytes.map || !blob->bytes.bytes);
}

/* Finds a blob, and takes a reference; `format` NULL: parsed or not. */
static struct rs_blob *find(struct rs_blobs *b, uint64_t id, const struct rs_format_ops *format)
{
	struct rs_blob *blob = b->buckets[id % BUCKETS];

	while (blob && !is_it(blob, id, format))
		blob = blob->next;
	if (blob && blob->refs++ == 0)
		leave_idle(b, blob);
	return blob;
}

int rs_blob_get(struct rs_blobs *b, uint64_t id, const struct rs_format_ops *format, uint64_t bytes,
		struct rs_blob **ret, struct sc_err *err)
{
	return rs_blob_get_found(b, id, format, bytes, NULL, ret, err);
}

int rs_blob_get_found(struct rs_blobs *b, uint64_t id, const struct rs_format_ops *format, uint64_t bytes,
		      const struct rs_found *found, struct rs_blob **ret, struct sc_err *err)
{
	struct rs_blob *blob, *mine = NULL;
	uint64_t forgets;
	int rc = 0;

	(void)pthread_mutex_lock(&b->lock);
	blob = find(b, id, format);
	forgets = b->forgets;
	(void)pthread_mutex_unlock(&b->lock);
	if (!blob) {
		/* parsed without the lock; a second thread may do the same, and one result stays */
		rc = load(b, id, format, bytes, found, &mine, err);
		if (rc < 0)
			return rc;
		(void)pthread_mutex_lock(&b->lock);
		blob = find(b, id, format);
		if (!blob) {
			blob = sc_steal(&mine);
			blob->forgotten = b->forgets != forgets; /* it may have been loaded before */
			blob->next = b->buckets[id % BUCKETS];
			b->buckets[id % BUCKETS] = blob;
		}
		(void)pthread_mutex_unlock(&b->lock);
		if (mine)
			blob_free(mine);
	}
	if (blob->bytes.bytes != bytes) {
		rc = sc_fail(err, SC_E_DAMAGED, "blob %" PRIu64 " has %" PRIu64 " bytes, not %" PRIu64, id,
			     blob->bytes.bytes, bytes);
		rs_blob_put(b, blob);
		return rc;
	}
	*ret = blob;
	return 0;
}

void rs_blob_put(struct rs_blobs *b, struct rs_blob *blob)
{
	if (!blob)
		return;
	(void)pthread_mutex_lock(&b->lock);
	assert(blob->refs > 0);
	if (--blob->refs == 0) {
		blob->idle_before = b->idle.idle_before;
		blob->idle_after = &b->idle;
		b->idle.idle_before->idle_after = blob;
		b->idle.idle_before = blob;
		b->nr_idle++;
		if (blob->forgotten)
			drop(b, blob);
		else if (b->nr_idle > BLOBS_IDLE_MAX)
			drop(b, b->idle.idle_after);
	}
	(void)pthread_mutex_unlock(&b->lock);
}

void rs_blob_forget(struct rs_blobs *b, uint64_t id)
{
	(void)pthread_mutex_lock(&b->lock);
	for (size_t i = id % BUCKETS, end = id ? i + 1 : BUCKETS; i < end; i++)
		for (struct rs_blob *blob = b->buckets[i], *next; blob; blob = next) {
			next = blob->next;
			if (id ? blob->bytes.blob != id : blob->bytes.map != NULL)
				continue;
			blob->forgotten = true;
			if (blob->refs == 0)
				drop(b, blob);
		}
	b->forgets++;
	(void)pthread_mutex_unlock(&b->lock);
}

/* --- as a source --- */

static int local_open(void *arg, uint64_t id, uint64_t bytes_expected, struct rs_bytes **ret, struct sc_err *err)
{
	struct rs_blob *blob;
	int rc = rs_blob_get(arg, id, NULL, bytes_expected, &blob, err);

	if (rc == 0)
		*ret = &blob->bytes;
	return rc;
}

static void local_close(void *arg, struct rs_bytes *b)
{
	rs_blob_put(arg, (struct rs_blob *)b);
}

static int local_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	const struct rs_blob *blob = (struct rs_blob *)b;

	return meta_store_open_blob(blob->blobs->store, b->blob, b->bytes, ret_fd, err);
}

const struct rs_source_ops rs_source_local = {
	.name = "local",
	.open = local_open,
	.close = local_close,
	.fd = local_fd,
};
