/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the log's file: a page with a header, then a ring.
 *
 *     | header | record | record | ... | record | zeros |  older bytes, of records that were applied  |
 *                ^ applied                        ^ end
 *
 * A position counts all bytes that were ever put into the ring; its place is the position modulo the ring's bytes.  A
 * record is a head of 32 bytes and its bytes, filled up to a multiple of 32, and does not go over the ring's end: there
 * a filler, a head alone, stands for the rest of the ring.
 *
 * Invariants:
 *
 *  1. Positions only grow, but for a power cut, which all records are lost with.  applied <= end <= applied + ring.
 *  2. The catalog's sequence is a position at which a record or filler began or ended; `applied` is that sequence or an
 *     earlier one: it moves only after the transaction that moved the catalog's.
 *  3. A record is whole if its head has its position and a length that stays inside the ring, and the hash over head
 *     and bytes is right.  From the catalog's sequence to `end` all records are whole, each begins where the one before
 *     it ends, and nothing writes there until the catalog's sequence is behind it.
 *  4. At `end` there is a head of zeros, or what an append left there when the process was killed: neither is whole.
 *     An append changes that last: first it stores zeros behind the new record, then the record's bytes, then its head
 *     with the hash as the last word (a filler's after that).  So a process that is killed in between leaves the old
 *     end; and bytes of records, whatever users put in them, are never taken for a head.
 *  5. Hence what a start finds from the catalog's sequence to the first record that is not whole is what was appended
 *     there, up to the last append that returned.  (The stores of a process that is killed are those of a beginning
 *     of its program: it is stopped between two instructions, and the pages are the kernel's.)
 *  6. The header has the boot id under which records were stored.  If it is not that of now, the ring is made anew
 *     before the header says otherwise.  One with a few wrong bytes is that of now: other boot ids differ in most.
 *  7. What a kill leaves at `end` has no hash: that is stored last, over zeros.  Nor is there a whole record behind it,
 *     but for one at the ring's beginning: where an append goes over the ring's end, its filler is stored last.  A
 *     start that finds anything else finds damage.  It applies nothing from there on, and says so: what is behind a
 *     damaged record may build on it.
 *
 * The position in a head also tells apart a log and a catalog that do not belong together: a catalog that was restored
 * from a copy, or made anew, finds no record at its sequence.
 */
#include "meta/tree/tail.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#define HEADER_BYTES 4096u
#define MAGIC "scalai-tail-1"	/* another format has one that differs in more than WRONG_BYTES_MAX bytes */
#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define WRONG_BYTES_MAX 2u	/* of a header that is taken for what it was */

struct header {
	char magic[16];
	char boot[40];
	uint64_t bytes;		/* of the ring */
};

enum { RECORD = 1, FILLER = 2 };

struct head {
	uint64_t hash;		/* of all behind it, with the bytes of a record */
	uint64_t position;
	uint64_t request;
	uint32_t kind, bytes;
};

#define UNIT ((uint64_t)sizeof(struct head))
_Static_assert(sizeof(struct head) == 32, "places are multiples of it");

struct meta_tail {
	struct header *header;	/* the mapping */
	char *ring;
	uint64_t bytes;		/* of the ring */
	meta_tail_apply_fn *apply;
	void *arg;
	pthread_mutex_t draining;	/* one drain at a time; before `lock` */
	pthread_mutex_t lock;
	uint64_t applied, end;	/* lock */
	bool damaged;		/* this and the next: since it was opened */
	struct meta_tail_damage damage;
};

/* --- heads --- */

static struct head *head_at(const struct meta_tail *t, uint64_t position)
{
	return (struct head *)(void *)(t->ring + position % t->bytes);
}

static uint64_t units(uint64_t bytes)
{
	return (bytes + UNIT - 1) / UNIT * UNIT;
}

static uint64_t left_in_ring(const struct meta_tail *t, uint64_t position)
{
	return t->bytes - position % t->bytes;
}

static uint64_t hash_of(const struct head *h)
{
	return XXH3_64bits(&h->position, UNIT - sizeof(h->hash) + (h->kind == RECORD ? h->bytes : 0));
}

static uint64_t size_of(const struct head *h)
{
	return h->kind == FILLER ? h->bytes : UNIT + units(h->bytes);
}

static bool is_whole(const struct meta_tail *t, uint64_t position)
{
	const struct head *h = head_at(t, position);
	uint64_t left = left_in_ring(t, position);

	if (h->position != position || (h->kind != RECORD && h->kind != FILLER))
		return false;
	if (h->kind == FILLER ? h->bytes != left : h->bytes > left - UNIT)
		return false;
	return h->hash == hash_of(h);
}

/* Stores a head; its last store makes the record whole (invariant 4). */
static void store_head(struct meta_tail *t, uint64_t position, struct head h, const char *bytes)
{
	struct head *to = head_at(t, position);

	if (h.bytes && h.kind == RECORD)
		memcpy(to + 1, bytes, h.bytes);
	to->position = h.position = position;
	to->request = h.request;
	to->kind = h.kind;
	to->bytes = h.bytes;
	__atomic_store_n(&to->hash, hash_of(to), __ATOMIC_RELEASE);
}

/* --- opening --- */

static int read_boot_id(char ret[40], struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = sc_sys.openat(AT_FDCWD, BOOT_ID, O_RDONLY, 0);
	char text[40] = {0};
	ssize_t n;

	if (fd < 0)
		return sc_fail_sys(err, errno, "log of working trees: cannot open " BOOT_ID);
	do
		n = sc_sys.pread(fd, text, sizeof(text) - 1, 0);
	while (n < 0 && errno == EINTR);
	if (n < 36)
		return sc_fail_sys(err, n < 0 ? errno : EIO, "log of working trees: cannot read " BOOT_ID);
	memcpy(ret, text, sizeof(text));
	return 0;
}

static struct header header_of(const char boot[40], uint64_t bytes)
{
	struct header h = {.magic = MAGIC, .bytes = bytes};

	memcpy(h.boot, boot, sizeof(h.boot));
	return h;
}

static bool is_of_boot(const struct header *h, const char boot[40], uint64_t file_bytes)
{
	const struct header want = header_of(boot, file_bytes - HEADER_BYTES);
	unsigned wrong = 0;

	if (want.bytes < META_TAIL_BYTES_MIN || want.bytes > META_TAIL_BYTES_MAX || (want.bytes & (want.bytes - 1)))
		return false;
	for (size_t i = 0; i < sizeof(*h); i++)
		wrong += ((const char *)h)[i] != ((const char *)&want)[i];
	return wrong <= WRONG_BYTES_MAX;
}

/* Reads the header; *ret_bytes is the size of the ring, or 0: there is no ring that can be used. */
static int inspect(int fd, const char *name, const char boot[40], uint64_t *ret_bytes, struct sc_err *err)
{
	struct header h;
	struct stat st;

	*ret_bytes = 0;
	if (sc_sys.fstat(fd, &st) < 0)
		return sc_fail_sys(err, errno, "log of working trees: cannot look at '%s'", name);
	if ((uint64_t)st.st_size < HEADER_BYTES)
		return 0;
	if (sc_pread_all(fd, &h, sizeof(h), 0) < 0)
		return sc_fail_sys(err, errno, "log of working trees: cannot read '%s'", name);
	if (is_of_boot(&h, boot, (uint64_t)st.st_size))
		*ret_bytes = (uint64_t)st.st_size - HEADER_BYTES;
	return 0;
}

static int map(struct meta_tail *t, int fd, const char *name, struct sc_err *err)
{
	void *p = sc_sys.mmap(NULL, HEADER_BYTES + t->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return sc_fail_sys(err, errno, "log of working trees: cannot map '%s'", name);
	t->header = p;
	t->ring = (char *)p + HEADER_BYTES;
	return 0;
}

/* Makes the ring anew (invariant 6): takes the header away first, then the records, and then writes a new header. */
static int make_anew(struct meta_tail *t, int fd, const char *name, const char boot[40], struct sc_err *err)
{
	static const struct header none;
	int rc;

	if (sc_pwrite_all(fd, &none, sizeof(none), 0) < 0)
		return sc_fail_sys(err, errno, "log of working trees: cannot write to '%s'", name);
	if (sc_sys.ftruncate(fd, (off_t)(HEADER_BYTES + t->bytes)) < 0 ||
	    sc_sys.fallocate(fd, 0, 0, (off_t)(HEADER_BYTES + t->bytes)) < 0)
		return sc_fail_sys(err, errno, "log of working trees: cannot allocate %" PRIu64 " bytes for '%s': make "
				   "room on the store's disk", HEADER_BYTES + t->bytes, name);
	rc = map(t, fd, name, err);
	if (rc < 0)
		return rc;
	memset(t->ring, 0, t->bytes);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	*t->header = header_of(boot, t->bytes);
	return 0;
}

static int use(struct meta_tail *t, int fd, const char *name, const char boot[40], struct sc_err *err)
{
	int rc = map(t, fd, name, err);

	if (rc == 0)
		*t->header = header_of(boot, t->bytes); /* it is that, but for damage */
	return rc;
}

/* Looks for damage at and behind `end` (invariant 7). */
static void find_damage(struct meta_tail *t)
{
	const struct head *h = head_at(t, t->end);
	uint64_t nr = 0, first = 0;

	for (uint64_t at = t->end + UNIT; at < t->applied + t->bytes;) {
		bool is = is_whole(t, at);

		if (is && head_at(t, at)->kind == RECORD && nr++ == 0)
			first = at;
		at += is ? size_of(head_at(t, at)) : UNIT;
	}
	/* at the catalog's own sequence there may be anything if the two do not belong together */
	if (h->hash)
		t->damaged = nr || t->end > t->applied || h->position == t->end;
	else
		t->damaged = nr > 1 || (nr == 1 && first % t->bytes != 0);
	t->damage = (struct meta_tail_damage){t->end, nr};
}

static void find_end(struct meta_tail *t)
{
	while (t->end - t->applied < t->bytes && is_whole(t, t->end))
		t->end += size_of(head_at(t, t->end));
	if (t->end - t->applied < t->bytes)
		find_damage(t);
}

bool meta_tail_is_damaged(const struct meta_tail *t, struct meta_tail_damage *ret)
{
	*ret = t->damage;
	return t->damaged;
}

int meta_tail_open(int dir, const char *name, uint64_t bytes, uint64_t applied, meta_tail_apply_fn *apply, void *arg,
		   struct meta_tail **ret, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = -1;
	struct meta_tail *t = sc_zalloc(sizeof(*t));
	char boot[40];
	uint64_t old;
	int rc;

	if (!t)
		return sc_nomem(err);
	(void)pthread_mutex_init(&t->draining, NULL);
	(void)pthread_mutex_init(&t->lock, NULL);
	t->apply = apply;
	t->arg = arg;
	t->applied = t->end = units(applied);
	rc = read_boot_id(boot, err);
	if (rc == 0 && (fd = sc_sys.openat(dir, name, O_RDWR | O_CREAT, 0600)) < 0)
		rc = sc_fail_sys(err, errno, "log of working trees: cannot open '%s'", name);
	if (rc == 0)
		rc = inspect(fd, name, boot, &old, err);
	if (rc == 0) {
		t->bytes = old ? old : bytes;
		rc = old ? use(t, fd, name, boot, err) : make_anew(t, fd, name, boot, err);
	}
	if (rc < 0) {
		meta_tail_close(t);
		return rc;
	}
	find_end(t);
	*ret = t;
	return 0;
}

struct meta_tail *meta_tail_close(struct meta_tail *t)
{
	if (t) {
		if (t->header)
			(void)sc_sys.munmap(t->header, HEADER_BYTES + t->bytes);
		(void)pthread_mutex_destroy(&t->draining);
		(void)pthread_mutex_destroy(&t->lock);
		sc_sys.release(t);
	}
	return NULL;
}

/* --- appending --- */

/* Appends a record, and returns whether there was room.  Under the lock. */
static bool append(struct meta_tail *t, uint64_t request, struct meta_bytes bytes, uint64_t *ret_sequence)
{
	uint64_t size = UNIT + units(bytes.nr), left = left_in_ring(t, t->end), filler = size > left ? left : 0;
	uint64_t at = t->end + filler, end = at + size;

	if (end + UNIT - t->applied > t->bytes)
		return false;
	if (ret_sequence)
		__atomic_store_n(ret_sequence, end, __ATOMIC_RELEASE);
	memset(head_at(t, end), 0, UNIT);
	store_head(t, at, (struct head){.request = request, .kind = RECORD, .bytes = (uint32_t)bytes.nr}, bytes.at);
	if (filler)
		store_head(t, t->end, (struct head){.kind = FILLER, .bytes = (uint32_t)filler}, NULL);
	t->end = end;
	return true;
}

int meta_tail_append(struct meta_tail *t, uint64_t request, struct meta_bytes bytes, uint64_t *ret_sequence,
		     struct sc_err *err)
{
	int rc = 0;

	if (bytes.nr > t->bytes / 4)
		return sc_fail(err, SC_E_LIMIT, "log of working trees: a record of %zu bytes is longer than "
						"%" PRIu64, bytes.nr,
			       t->bytes / 4);
	for (;;) {
		bool done;

		(void)pthread_mutex_lock(&t->lock);
		done = append(t, request, bytes, ret_sequence);
		(void)pthread_mutex_unlock(&t->lock);
		if (done)
			return 0;
		rc = meta_tail_drain(t, err);
		if (rc < 0)
			return sc_wrap(err, rc, "the log of working trees is full, and cannot be applied to the "
						"catalog");
	}
}

/* --- applying --- */

int meta_tail_next(struct meta_tail_batch *batch, struct meta_tail_record *ret, struct sc_err *err)
{
	const struct head *h;

	do {
		if (batch->at == batch->sequence)
			return 0;
		if (!is_whole(batch->tail, batch->at) ||
		    size_of(head_at(batch->tail, batch->at)) > batch->sequence - batch->at)
			return sc_fail(err, SC_E_CORRUPT, "log of working trees: the record at %" PRIu64 " was changed "
				       "by somebody else: unmount the store; a start takes the records before "
				       "it, and keeps the log in lost+found", batch->at);
		h = head_at(batch->tail, batch->at);
		batch->at += size_of(h);
	} while (h->kind == FILLER);
	*ret = (struct meta_tail_record){batch->at, h->request, {(const char *)(h + 1), h->bytes}};
	return 1;
}

int meta_tail_drain(struct meta_tail *t, struct sc_err *err)
{
	struct meta_tail_batch batch = {.tail = t};
	int rc = 0;

	(void)pthread_mutex_lock(&t->draining);
	(void)pthread_mutex_lock(&t->lock);
	batch.at = t->applied;
	batch.sequence = t->end;
	(void)pthread_mutex_unlock(&t->lock);
	if (batch.at != batch.sequence)
		rc = t->apply(t->arg, &batch, err);
	if (rc == 0) {
		(void)pthread_mutex_lock(&t->lock);
		t->applied = batch.sequence;
		(void)pthread_mutex_unlock(&t->lock);
	}
	(void)pthread_mutex_unlock(&t->draining);
	return rc;
}

uint64_t meta_tail_waiting(struct meta_tail *t)
{
	uint64_t n;

	(void)pthread_mutex_lock(&t->lock);
	n = t->end - t->applied;
	(void)pthread_mutex_unlock(&t->lock);
	return n;
}
