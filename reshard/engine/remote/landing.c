/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/remote/landing_i.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

#include "meta/base/limits.h"

#define NODES_MAX (1u << 16)
#define BYTES_MAX (UINT64_C(1) << 47)	/* what can be mapped */
#define BLOB_BITS 40			/* of SC_BLOBS_MAX */

/* --- a landing --- */

static int open_unnamed(const struct rs_landings *set, struct sc_err *err)
{
	int fd = sc_sys.openat(set->config.store->dir, ".", O_TMPFILE | O_RDWR, 0600);

	if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR))
		return sc_fail(err, SC_E_UNSUPPORTED, "the store's file system has no files without a name, which "
			       "bytes of other nodes need; use ext4, XFS, btrfs or tmpfs");
	return fd < 0 ? sc_fail_sys(err, errno, "store: cannot make a file for bytes of other nodes") : fd;
}

static int make(struct rs_landings *set, const struct rs_away *what, struct landing **ret, struct sc_err *err)
{
	struct landing *l = sc_zalloc(sizeof(*l));
	void *map = NULL;
	int rc = l ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	l->bytes = (struct rs_bytes){.ops = &rs_source_landing, .bytes = what->bytes};
	l->set = set;
	l->what = *what;
	l->refs = 1;
	l->nr = (uint32_t)((what->bytes + RS_CHUNK_BYTES - 1) / RS_CHUNK_BYTES);
	l->slots = sc_zalloc_array(l->nr + UINT64_C(1), sizeof(*l->slots));
	l->fd = rc = l->slots ? open_unnamed(set, err) : sc_nomem(err);
	if (rc >= 0 && sc_sys.ftruncate(l->fd, (off_t)what->bytes) < 0)
		rc = sc_fail_sys(err, errno, "store: no file of %" PRIu64 " bytes for blob %" PRIu64 " of node %u",
				 what->bytes, what->blob, what->node);
	if (rc >= 0 && what->bytes)
		map = sc_sys.mmap(NULL, what->bytes, PROT_READ, MAP_SHARED, l->fd, 0);
	if (map == MAP_FAILED)
		rc = sc_fail_sys(err, errno, "store: cannot map bytes of blob %" PRIu64 " of node %u", what->blob,
				 what->node);
	else
		l->bytes.map = map;
	if (rc < 0)
		landing_free(l);
	else
		*ret = l;
	return rc < 0 ? rc : 0;
}

static int landing_open(void *arg, uint64_t id, uint64_t bytes_expected, struct rs_bytes **ret, struct sc_err *err)
{
	const struct rs_away what = {(uint32_t)(id >> BLOB_BITS), id & (SC_BLOBS_MAX - 1), bytes_expected};
	struct landing *l, *mine = NULL, *useless = NULL;
	struct rs_landings *set = arg;
	int rc = 0;

	(void)pthread_mutex_lock(&set->lock);
	l = landing_find(set, what.node, what.blob);
	(void)pthread_mutex_unlock(&set->lock);
	if (!l) {
		rc = make(set, &what, &mine, err);
		if (rc < 0)
			return rc;
		(void)pthread_mutex_lock(&set->lock);
		l = landing_find(set, what.node, what.blob);
		if (!l) {
			l = sc_steal(&mine);
			l->next = *landing_bucket(set, what.node, what.blob);
			*landing_bucket(set, what.node, what.blob) = l;
		}
		(void)pthread_mutex_unlock(&set->lock);
		landing_free(mine);
	}
	if (l->bytes.bytes == bytes_expected) {
		*ret = &l->bytes;
		return 0;
	}
	rc = sc_fail(err, SC_E_DAMAGED, "blob %" PRIu64 " of node %u has %" PRIu64 " bytes, not %" PRIu64, what.blob,
		     what.node, l->bytes.bytes, bytes_expected);
	(void)pthread_mutex_lock(&set->lock);
	useless = landing_put(l);
	(void)pthread_mutex_unlock(&set->lock);
	landing_free(useless);
	return rc;
}

static void landing_close(void *arg, struct rs_bytes *b)
{
	struct rs_landings *set = arg;
	struct landing *useless;

	(void)pthread_mutex_lock(&set->lock);
	useless = landing_put((struct landing *)b);
	(void)pthread_mutex_unlock(&set->lock);
	landing_free(useless);
}

static int landing_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	const struct landing *l = (struct landing *)b;
	char path[40];

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", l->fd);
	*ret_fd = sc_sys.openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	return *ret_fd < 0 ? sc_fail_sys(err, errno, "store: cannot open bytes of blob %" PRIu64 " of node %u",
					 l->what.blob, l->what.node)
			   : 0;
}

const struct rs_source_ops rs_source_landing = {
	.name = "landing",
	.open = landing_open,
	.close = landing_close,
	.fd = landing_fd,
	.need = landing_need,
	.release = landing_release,
	.ahead = landing_ahead,
};

/* --- the set --- */

/* Checks that the store's file system can do what landings need. */
static int check_store(const struct rs_landings *set, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = open_unnamed(set, err);

	if (fd < 0)
		return fd;
	if (sc_sys.ftruncate(fd, 2 * RS_CHUNK_BYTES) < 0)
		return sc_fail_sys(err, errno, "store: cannot size a file for bytes of other nodes");
	if (punch(fd, 0, RS_CHUNK_BYTES) == 0)
		return 0;
	if (errno == EOPNOTSUPP)
		return sc_fail(err, SC_E_UNSUPPORTED, "the store's file system has no holes, which bytes of other "
			       "nodes need; use ext4, XFS, btrfs or tmpfs");
	return sc_fail_sys(err, errno, "store: cannot punch a hole into a file for bytes of other nodes");
}

int rs_landings_new(const struct rs_landing_config *config, struct rs_landings **ret, struct sc_err *err)
{
	struct rs_landings *set = sc_zalloc(sizeof(*set));
	int rc = set ? 0 : sc_nomem(err);

	if (rc < 0)
		return rc;
	set->config = *config;
	set->config.pulls_max = config->pulls_max ? config->pulls_max : 1;
	set->most = (uint32_t)sc_min_u64(config->bytes_max / RS_CHUNK_BYTES, UINT32_MAX);
	(void)pthread_mutex_init(&set->lock, NULL);
	(void)pthread_cond_init(&set->quiet, NULL);
	set->idle.idle_before = set->idle.idle_after = &set->idle;
	rc = sc_vec_push(&set->slots, (struct slot){0}) < 0 ? sc_nomem(err) : check_store(set, err);
	if (rc < 0)
		(void)rs_landings_free(set);
	else
		*ret = set;
	return rc;
}

struct rs_landings *rs_landings_free(struct rs_landings *set)
{
	if (!set)
		return NULL;
	while (set->nr_idle)
		landing_free(landing_drop(set->idle.idle_after));
	for (size_t i = 0; i < LANDING_BUCKETS; i++)
		assert(!set->buckets[i]);
	while (set->spare) {
		struct pull *p = set->spare;

		set->spare = p->after;
		sc_sys.release(p);
	}
	sc_vec_done(&set->slots);
	(void)pthread_cond_destroy(&set->quiet);
	(void)pthread_mutex_destroy(&set->lock);
	sc_sys.release(set);
	return NULL;
}

int rs_landing_place(struct rs_landings *set, const struct rs_away *what, uint64_t at, struct rs_place *ret,
		     struct sc_err *err)
{
	if (what->node >= NODES_MAX || what->blob >= SC_BLOBS_MAX || what->bytes > BYTES_MAX || at > what->bytes)
		return sc_fail(err, SC_E_LIMIT, "byte %" PRIu64 " of %" PRIu64 " of blob %" PRIu64 " of node %u: no "
			       "store has such a blob", at, what->bytes, what->blob, what->node);
	*ret = (struct rs_place){&rs_source_landing, set, (uint64_t)what->node << BLOB_BITS | what->blob, what->bytes,
				 at};
	return 0;
}

bool rs_landing_is(const struct rs_place *place, uint32_t *ret_node, uint64_t *ret_blob)
{
	*ret_node = (uint32_t)(place->id >> BLOB_BITS);
	*ret_blob = place->id & (SC_BLOBS_MAX - 1);
	return place->ops == &rs_source_landing;
}

void rs_landing_forget(struct rs_landings *set, uint32_t node, uint64_t blob, bool wrong)
{
	struct landing *l, *useless = NULL;

	(void)pthread_mutex_lock(&set->lock);
	l = landing_find(set, node, blob);
	if (l) {
		l->wrong |= wrong;
		landing_forget(l);
		useless = landing_put(l);
	}
	(void)pthread_mutex_unlock(&set->lock);
	landing_free(useless);
}
