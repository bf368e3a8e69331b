/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines: every kind writes the bytes of the image and says what it did; an error names its file and leaves none;
 * which kind is chosen, and why not another.  With a second kind linked (support/kinds), it is tested, too.
 */
#include "reshard/service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "meta/base/log.h"
#include "reshard/engine/io/engine.h"
#include "tests/prop/pick.h"
#include "tests/support/kinds/null_engine.h"
#include "tests/support/paths.h"

#define FILES 5			/* of each rank: 'a.safetensors' and on */
#define ROWS 96u
#define COLUMNS_STEP 48u	/* so that they divide by each topology */

static char dir[64];
static struct rs_service *s;
static struct rs_job *job;

/* --- a job on two ranks: of each file a tensor cut by rows, and one cut by columns --- */

static void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		fail_msg("%s", err->msg);
}

static void put_file(uint32_t rank, char name, uint32_t columns)
{
	struct rs_owner owner = {geteuid(), getegid(), 0644};
	uint64_t rows_bytes = (uint64_t)ROWS / 2 * columns, cols_bytes = (uint64_t)ROWS * (columns / 2), bytes;
	char header[300], file[30];
	unsigned char *data;
	struct sc_err err;
	uint64_t blob;
	int fd;

	(void)snprintf(file, sizeof(file), "%c.safetensors", name);
	(void)snprintf(header, sizeof(header), "{\"cols\":{\"dtype\":\"U8\",\"shape\":[%u,%u],\"data_offsets\":[0,%lu]},"
		       "\"rows\":{\"dtype\":\"U8\",\"shape\":[%u,%u],\"data_offsets\":[%lu,%lu]}}", ROWS, columns / 2, cols_bytes,
		       ROWS / 2, columns, cols_bytes, cols_bytes + rows_bytes);
	bytes = strlen(header);
	data = malloc(cols_bytes + rows_bytes);
	for (uint64_t i = 0; i < cols_bytes + rows_bytes; i++)
		data[i] = (unsigned char)pick(256);
	must(work_create(s, job, rank, file, &owner, &blob, &fd, &err), &err);
	assert_int_equal(8, write(fd, &bytes, 8));
	assert_int_equal(bytes, write(fd, header, bytes));
	assert_int_equal(0, sc_pwrite_all(fd, data, cols_bytes + rows_bytes, 8 + bytes));
	(void)close(fd);
	free(data);
}

static void begin(void)
{
	struct rs_options options = {.store = dir, .quiet_worker = true};
	struct sc_err err;

	sc_log_level(SC_LOG_ERROR);
	/* where TMPDIR reflinks, that is tested, too */
	(void)snprintf(dir, sizeof(dir), "%s/scalai-engine.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(dir));
	must(rs_service_new(&options, &s, &err), &err);
	must(rs_job_make(s, "j", 0755, geteuid(), getegid(), &job, &err), &err);
	must(rs_job_layout(RS_CALLER(s), job, "mesh tp\ncols tp=1\nrows tp=0", &err), &err);
	must(rs_job_topology(RS_CALLER(s), job, "tp=2", &err), &err);
	for (char name = 'a'; name < 'a' + FILES; name++) {
		/* one whose runs are long, one of many buffers, others of any size */
		uint32_t columns = name == 'a' ? 834 * COLUMNS_STEP : name == 'b' ? 9 * 4096 : COLUMNS_STEP * (1 + pick(100));

		for (uint32_t rank = 0; rank < 2; rank++)
			put_file(rank, name, columns);
	}
	must(rs_job_commit(RS_CALLER(s), job, "", &err), &err);
	must(rs_service_work(s, &err), &err);
}

static void end(void)
{
	char clean[100];

	rs_service_free(s);
	(void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
	assert_int_equal(0, system(clean));
}

static struct rs_image *image_of(const char *topology, char name)
{
	char file[] = "?.safetensors";
	struct rs_image *im;
	struct rs_view *view;
	struct sc_err err;

	file[0] = name;
	must(rs_view_as(s, job, topology, &rs_form_ranks, &view, &err), &err);
	must(rs_view_image(s, view, 0, file, true, true, &im, &err), &err);
	rs_view_unref(s, view);
	return im;
}

static int empty_file(void)
{
	int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static void expect_bytes(const struct rs_image *im, int fd)
{
	unsigned char *want = malloc(im->bytes), *got = malloc(im->bytes + 1);
	struct sc_err err;

	must(rs_image_fetch(im, 0, im->bytes, want, &err), &err);
	assert_int_equal(im->bytes, lseek(fd, 0, SEEK_END));
	assert_int_equal(0, sc_pread_all(fd, got, im->bytes, 0));
	assert_memory_equal(want, got, im->bytes);
	free(want);
	free(got);
}

/* --- writing --- */

struct ticks {
	uint64_t bytes;		/* atomic */
	unsigned left;		/* calls with bytes until it says stop; those without may come while a helper starts */
};

static int on_bytes(void *arg, uint64_t bytes)
{
	struct ticks *t = arg;

	(void)__atomic_add_fetch(&t->bytes, bytes, __ATOMIC_RELAXED);
	return t->left && bytes && --t->left == 0;
}

/* All files of a topology, as many a call as the kind takes. */
static void write_all(struct rs_engine *e, const char *topology, bool has_bytes)
{
	struct rs_target *targets = calloc(e->ops->targets, sizeof(*targets));
	size_t nr = 0;

	for (char name = 'a'; name < 'a' + FILES; name++) {
		struct ticks ticks = {0};
		const struct rs_write_options how = {.will_flush = pick(2), .tick = on_bytes, .arg = &ticks};
		struct rs_written written;
		uint64_t bytes = 0;
		struct sc_err err;

		targets[nr++] = (struct rs_target){image_of(topology, name), empty_file()};
		if (nr < e->ops->targets && name + 1 < 'a' + FILES)
			continue;
		must(rs_engine_write(e, targets, nr, &how, &written, &err), &err);
		while (nr) {
			const struct rs_target *t = &targets[--nr];

			bytes += t->image->bytes;
			if (has_bytes)
				expect_bytes(t->image, t->fd);
			(void)close(t->fd);
			rs_image_unref(s, (struct rs_image *)t->image);
		}
		assert_int_equal(bytes, written.cloned + written.copied);
		assert_int_equal(bytes, ticks.bytes);
	}
	free(targets);
}

/* Stopped after some bytes, it answers so; the same engine then writes another file right. */
static void stop_and_go_on(struct rs_engine *e)
{
	for (unsigned i = 1; i < 4; i++) {
		struct rs_target target = {image_of("tp=1", 'a'), empty_file()};
		struct ticks ticks = {.left = i};
		const struct rs_write_options how = {.tick = on_bytes, .arg = &ticks};
		struct rs_written written;
		struct sc_err err;

		assert_int_equal(SC_E_CANCELLED, rs_engine_write(e, &target, 1, &how, &written, &err));
		assert_int_equal(0, written.failed);
		(void)close(target.fd);
		rs_image_unref(s, (struct rs_image *)target.image);
	}
}

static void try_kind(const struct rs_engine_ops *kind, bool has_bytes)
{
	struct rs_engine *e = NULL;
	struct sc_err err;

	for (uint64_t budget = 0; budget <= 16u << 20; budget += 16u << 20) {
		must(rs_engine_open(kind, rs_service_store(s), budget, &e, &err), &err);
		write_all(e, "tp=1", has_bytes);
		write_all(e, "tp=4", has_bytes);
		stop_and_go_on(e);
		write_all(e, "tp=8", has_bytes);
		e = rs_engine_close(e);
		assert_null(e);
	}
}

static int no_ring(struct io_uring *ring, unsigned entries)
{
	(void)ring;
	(void)entries;
	return -ENOSYS;
}

static void each_kind_writes_the_bytes_of_the_image(void **unused)
{
	struct sc_sys real = sc_sys;

	(void)unused;
	begin();
	for (size_t i = 0; rs_engines[i]; i++)
		try_kind(rs_engines[i], true);
	if (rs_engine_extra)
		try_kind(rs_engine_extra, true);
	try_kind(&null_engine, false);
	sc_sys.ring_init = no_ring;
	try_kind(rs_engines[0], true);
	sc_sys = real;
	end();
}

static void clones_only_copies_nothing_large(void **unused)
{
	const struct rs_write_options how = {.clones_only = true};
	struct rs_engine *e = NULL;
	struct rs_written written;
	struct sc_err err;
	int rc;

	(void)unused;
	begin();
	must(rs_engine_open(rs_engines[0], rs_service_store(s), 0, &e, &err), &err);
	/* both blobs hold all rows at once: two clones and what is beside them, if the file system clones */
	struct rs_target target = {image_of("tp=1", 'b'), empty_file()};

	rc = rs_engine_write(e, &target, 1, &how, &written, &err);
	assert_true(rc == 0 || rc == SC_E_UNSUPPORTED);
	if (rc == 0)
		expect_bytes(target.image, target.fd);
	else
		assert_int_equal(0, written.failed);
	(void)close(target.fd);
	rs_image_unref(s, (struct rs_image *)target.image);
	rs_engine_close(e);
	end();
}

/* --- a kind that fails, in materialization --- */

static int bad_file;		/* of a call; -1: none in particular */
static unsigned bad_calls;

static int bad_open(const struct meta_store *store, uint64_t budget, struct rs_engine **ret, struct sc_err *err)
{
	(void)store;
	(void)budget;
	*ret = sc_zalloc(sizeof(**ret));
	return *ret ? 0 : sc_nomem(err);
}

static void bad_close(struct rs_engine *e)
{
	sc_sys.release(e);
}

static int bad_write(struct rs_engine *e, const struct rs_target *targets, size_t nr, const struct rs_write_options *how,
		     struct rs_written *ret, struct sc_err *err)
{
	(void)e;
	(void)how;
	bad_calls++;
	assert_int_equal(3, nr);
	for (size_t i = 0; i < nr; i++)
		assert_int_equal(4, pwrite(targets[i].fd, "some", 4, 0));
	ret->failed = bad_file < 0 ? nr : (size_t)bad_file;
	return sc_fail(err, SC_E_NO_SPACE, "no room for more");
}

static const struct rs_engine_ops bad = {
	.name = "bad", .threads = 1, .targets = 3, .open = bad_open, .close = bad_close, .write = bad_write,
};

static unsigned files_in_store(void)
{
	char find[100];
	unsigned nr = 0;
	FILE *found;
	int c;

	(void)snprintf(find, sizeof(find), "find %s/blobs -type f", dir);
	found = popen(find, "r");
	while ((c = getc(found)) != EOF)
		nr += c == '\n';
	(void)pclose(found);
	return nr;
}

static void expect_failure(const char *text)
{
	unsigned before = files_in_store();
	struct sc_err err = {0};

	bad_calls = 0;
	assert_int_equal(SC_E_NO_SPACE, rs_service_work(s, &err));
	assert_true(bad_calls > 0);
	if (!strstr(err.msg, text))
		fail_msg("no '%s' in: %s", text, err.msg);
	assert_int_equal(before, files_in_store());
}

static void an_error_names_its_file_and_leaves_none(void **unused)
{
	const struct rs_engine_ops *other = rs_engine_extra;
	struct sc_err err;
	struct rs_look look;

	(void)unused;
	begin();
	/* its files are one after another in one call: the logical file of each rank */
	must(rs_job_topology(RS_CALLER(s), job, "tp=3", &err), &err);
	rs_engine_extra = &bad;
	bad_file = 1;
	expect_failure("materializing rank 1 'a.safetensors': no room for more");
	bad_file = 2;
	expect_failure("materializing rank 2 'a.safetensors': no room for more");
	bad_file = -1;
	expect_failure("materializing 'a.safetensors': no room for more");
	rs_engine_extra = other;
	must(rs_service_work(s, &err), &err);
	must(rs_look(s, job, NULL, 2, "e.safetensors", &look, &err), &err);
	assert_int_equal(RS_BLOB, look.kind);
	end();
}

/* --- choosing --- */

static int cannot_run(struct sc_err *err)
{
	return sc_fail(err, SC_E_UNSUPPORTED, "no such device");
}

static void the_kind_that_can_run_is_chosen(void **unused)
{
	const struct rs_engine_ops *other = rs_engine_extra, *host = rs_engines[0];
	struct rs_engine_ops lame = bad;
	const char *why;

	(void)unused;
	rs_engine_extra = NULL;
	assert_string_equal("host", host->name);
	assert_ptr_equal(host, rs_engine_choose(NULL, &why));
	assert_null(why);
	assert_ptr_equal(host, rs_engine_choose("host", &why));
	assert_null(why);
	assert_ptr_equal(host, rs_engine_choose("null", &why));
	assert_string_equal("this program has no engine 'null'", why);
	rs_engine_extra = &bad;
	assert_ptr_equal(&bad, rs_engine_choose(NULL, &why));
	assert_null(why);
	assert_ptr_equal(&bad, rs_engine_choose("bad", &why));
	assert_null(why);
	assert_ptr_equal(host, rs_engine_choose("host", &why));
	assert_null(why);
	lame.name = "lame";
	lame.probe = cannot_run;
	rs_engine_extra = &lame;
	assert_ptr_equal(host, rs_engine_choose("lame", &why));
	assert_string_equal("no such device", why);
	assert_ptr_equal(host, rs_engine_choose(NULL, &why));
	assert_string_equal("no such device", why);
	rs_engine_extra = other;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_kind_writes_the_bytes_of_the_image),
		cmocka_unit_test(clones_only_copies_nothing_large),
		cmocka_unit_test(an_error_names_its_file_and_leaves_none),
		cmocka_unit_test(the_kind_that_can_run_is_chosen),
	};

	return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
