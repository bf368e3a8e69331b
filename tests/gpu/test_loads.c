/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files in the memory of GPUs, by helpers on the stand-in (fake_helper.c): another process finds the right bytes by the handle,
 * whatever a helper does at any message there are these or an error in time, and nothing is left.
 */
#include "reshard/engine/loads/loads.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/text.h"
#include "reshard/engine/gpu/crew.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/gpu/life.h"
#include "tests/support/every.h"

#define TIMEOUT_MS 700
#define MESSAGES_MAX 40
#define LOADS 80
#define LONG_BYTES ((19u << 20) + 123)
#define IMAGES (BY_HAND_WIDE + 1)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;

struct opened {
	struct rs_load *load;
	bool done;
	struct sc_err err;	/* code 0: there is none */
	unsigned image;
};

static void on_done(void *arg, struct rs_load *load, const struct sc_err *err)
{
	struct opened *o = arg;

	(void)pthread_mutex_lock(&lock);
	assert_true(o->load == load || !o->load);
	o->err = err ? *err : (struct sc_err){0};
	o->done = true;
	(void)pthread_cond_broadcast(&news);
	(void)pthread_mutex_unlock(&lock);
}

static void start(struct opened *o, unsigned image, uint32_t rank)
{
	const struct rs_load_file f = {.image = by_hand_image(image), .fd = -1, .bytes = by_hand_bytes(image)};

	*o = (struct opened){.image = image};
	if (rs_load_start(&f, rank, on_done, o, &o->load, &o->err) < 0)
		o->done = true;
}

static int wait_for(struct opened *o)
{
	(void)pthread_mutex_lock(&lock);
	while (!o->done)
		(void)pthread_cond_wait(&news, &lock);
	(void)pthread_mutex_unlock(&lock);
	if (o->err.code)
		assert_true(o->err.msg[0]);
	return o->err.code;
}

static bool dies;	/* the helper has been told to */

/* Where a file of so many bytes is, by the text: 1, or 0: the text is an error. */
static int find_handle(const struct opened *o, uint64_t bytes, struct fake_handle *ret)
{
	struct sc_buf text = {0};
	struct sc_err err;
	const char *hex;
	char expected[60];

	if (rs_load_text(o->load, &text, &err) < 0) {
		assert_non_null(strstr(err.msg, "open the file again"));
		assert_int_equal(SC_E_SYSTEM, err.code);
		sc_buf_done(&text);
		return 0;
	}
	hex = strstr(text.text, "\"handle\": \"") + 11;
	for (size_t i = 0; i < sizeof(*ret); i++)
		assert_int_equal(1, sscanf(hex + 2 * i, "%2hhx", (unsigned char *)ret + i));
	(void)snprintf(expected, sizeof(expected), "\"bytes\": %" PRIu64 "}\n", bytes);
	assert_non_null(strstr(text.text, expected));
	sc_buf_done(&text);
	assert_int_equal(FAKE_HANDLE_MAGIC, ret->magic);
	return 1;
}

/* What another process finds by the text: 1, or 0: the text is an error. */
static int is_there(struct opened *o)
{
	sc_cleanup(sc_closep) int fd = memfd_create("found", MFD_CLOEXEC);
	static unsigned char found[BY_HAND_BYTES_MAX];
	const uint32_t bytes = by_hand_bytes(o->image);
	struct fake_handle h;
	ssize_t n;

	if (!find_handle(o, bytes, &h))
		return 0;
	n = process_vm_readv((pid_t)h.pid, &(struct iovec){found, bytes}, 1,
			     &(struct iovec){(void *)(uintptr_t)h.at, bytes}, 1, 0);
	if (n < 0 && dies) /* just now */
		return 0;
	assert_int_equal(bytes, n);
	assert_int_equal(bytes, write(fd, found, bytes));
	assert_true(by_hand_is_right(o->image, fd));
	return 1;
}

static void expect_loaded(struct opened *o)
{
	if (wait_for(o) < 0)
		fail_msg("%s", o->err.msg);
	assert_int_equal(1, is_there(o));
}

/* Nothing is open any more. */
static void expect_nothing_left(unsigned files)
{
	rs_loads_stop();
	expect_no_children();
	assert_int_equal(files, open_files());
}

/* --- tests --- */

static void another_process_finds_the_bytes(void **unused)
{
	struct opened o[6];

	(void)unused;
	for (unsigned seed = 0; seed < 6; seed++) {
		const unsigned files = open_files();
		struct rs_gpu_options with = options();
		char args[30];

		with.nr_devices = 1 + seed % 2;
		with.devices[1] = 3;
		(void)snprintf(args, sizeof(args), "%u %u", seed % 3, seed);
		begin(&with, args);
		for (unsigned i = 0; i < 6; i++)
			start(&o[i], i % IMAGES, i);
		for (unsigned i = 0; i < 6; i++)
			expect_loaded(&o[i]);
		for (unsigned i = 0; i < 6; i += 2)
			rs_load_end(o[i].load);
		start(&o[0], 1, 0); /* behind those that end */
		expect_loaded(&o[0]);
		rs_load_end(o[0].load);
		for (unsigned i = 1; i < 6; i += 2) {
			assert_int_equal(1, is_there(&o[i]));
			rs_load_end(o[i].load);
		}
		expect_nothing_left(files);
	}
}

static void a_file_that_is_a_blob_is_read(void **unused)
{
	const unsigned files = open_files();
	const struct rs_gpu_options with = options();
	struct opened blob = {.image = 2}, image;
	struct rs_load_file f = {.fd = memfd_create("blob", MFD_CLOEXEC), .bytes = BY_HAND_BYTES};
	static unsigned char bytes[BY_HAND_BYTES];
	struct sc_err err;

	(void)unused;
	assert_int_equal(0, rs_image_read(by_hand_image(2), 0, BY_HAND_BYTES, bytes, &err));
	assert_int_equal(BY_HAND_BYTES, write(f.fd, bytes, BY_HAND_BYTES));
	begin(&with, "2 5");
	assert_int_equal(0, rs_load_start(&f, 0, on_done, &blob, &blob.load, &err));
	expect_loaded(&blob);
	rs_load_end(blob.load);
	/* it ends before: that ends the helper, in the midst of its pass, and no more */
	f.bytes++;
	blob = (struct opened){0};
	assert_int_equal(0, rs_load_start(&f, 0, on_done, &blob, &blob.load, &err));
	assert_true(wait_for(&blob) < 0);
	rs_load_end(blob.load);
	start(&image, 0, 0);
	expect_loaded(&image);
	rs_load_end(image.load);
	(void)close(f.fd);
	expect_nothing_left(files);
}

/* Several threads read it; that it ends before is an error of some of them. */
static void a_long_file_is_read_by_several_threads(void **unused)
{
	const unsigned files = open_files();
	struct rs_gpu_options with = options();
	struct rs_load_file f = {.fd = memfd_create("long", MFD_CLOEXEC), .bytes = LONG_BYTES};
	unsigned char *bytes = malloc(LONG_BYTES), *found = malloc(LONG_BYTES);
	struct opened o = {0};
	struct fake_handle h;

	(void)unused;
	with.window_bytes = 0; /* those of a mount */
	with.device_bytes = with.pinned_bytes = 512u << 20;
	for (size_t i = 0; i < LONG_BYTES; i++)
		bytes[i] = (unsigned char)(i * 2654435761u >> 13);
	assert_int_equal(LONG_BYTES, write(f.fd, bytes, LONG_BYTES));
	begin(&with, "2 5");
	assert_int_equal(0, rs_load_start(&f, 0, on_done, &o, &o.load, &o.err));
	if (wait_for(&o) < 0)
		fail_msg("%s", o.err.msg);
	assert_int_equal(1, find_handle(&o, LONG_BYTES, &h));
	assert_int_equal(LONG_BYTES, process_vm_readv((pid_t)h.pid, &(struct iovec){found, LONG_BYTES}, 1,
						      &(struct iovec){(void *)(uintptr_t)h.at, LONG_BYTES}, 1, 0));
	assert_memory_equal(bytes, found, LONG_BYTES);
	rs_load_end(o.load);
	for (unsigned i = 0; i < 6; i++) {
		f.bytes = LONG_BYTES + i * (RS_CREW_PART_BYTES / 2) + 1;
		o = (struct opened){0};
		assert_int_equal(0, rs_load_start(&f, 0, on_done, &o, &o.load, &o.err));
		if (i == 5)
			rs_load_cancel(o.load);
		assert_true(wait_for(&o) < 0);
		rs_load_end(o.load);
	}
	(void)close(f.fd);
	free(bytes);
	free(found);
	expect_nothing_left(files);
}

/* Whatever the helper does: an error in time, or the right bytes; then another load, by another helper if it must be. */
static bool expect_right_or_error(const char *misdeed, unsigned n, unsigned timeout_ms)
{
	const unsigned files = open_files();
	struct rs_gpu_options with = options();
	struct opened o, again;
	char args[60];
	int64_t began;
	bool loaded;

	with.timeout_ms = timeout_ms;
	(void)snprintf(args, sizeof(args), "%u %u %s %u", n % 3, n, misdeed, n);
	begin(&with, args);
	began = sc_now_ns();
	start(&o, BY_HAND_WIDE, 0); /* by rounds, and its text by what no round writes */
	loaded = wait_for(&o) == 0;
	assert_true(sc_now_ns() - began < ((int64_t)timeout_ms + 20000) * 1000000);
	dies = true;
	if (loaded)
		(void)is_there(&o);
	else
		assert_true(o.err.code == SC_E_SYSTEM || o.err.code == SC_E_UNSUPPORTED || o.err.code == SC_E_STATE ||
			    o.err.code == SC_E_NO_MEMORY);
	dies = false;
	rs_load_end(o.load);
	write_script("");
	for (unsigned i = 0; i < 3; i++) { /* one may meet what was said after the pass */
		start(&again, 0, 0);
		if (wait_for(&again) == 0)
			break;
		rs_load_end(again.load);
	}
	expect_loaded(&again);
	rs_load_end(again.load);
	expect_nothing_left(files);
	return loaded;
}

static void a_helper_fails_at_each_message(void **unused)
{
	static const char *const misdeeds[] = {"noise", "short", "text", "kind", "number", "twice", "exit", "after-kill"};
	const unsigned step = (unsigned)every_at_most(5), nr = sizeof(misdeeds) / sizeof(*misdeeds);
	unsigned messages = 0, failed = 0, tried = 0;

	(void)unused;
	for (unsigned n = 1; !messages; n++) {
		if (expect_right_or_error("kill", n, 20000))
			messages = n - 1;
		assert_true(n < MESSAGES_MAX);
	}
	assert_true(messages >= 8);
	for (unsigned i = 0; i < nr * messages; i += step, tried++)
		failed += !expect_right_or_error(misdeeds[i % nr], 1 + i / nr, 20000);
	for (unsigned n = 1; n <= messages; n += (unsigned)every_at_most(3))
		assert_false(expect_right_or_error(n % 2 ? "stop" : "silent", n, TIMEOUT_MS));
	assert_true(failed > (step == 1 ? 6 * messages : tried / 2));
	/* FREED, when the file has been closed */
	for (unsigned k = 0; k < nr; k += step)
		assert_true(expect_right_or_error(misdeeds[k], messages + 1, 20000));
	assert_true(expect_right_or_error("stop", messages + 1, TIMEOUT_MS));
	assert_true(expect_right_or_error("silent", messages + 1, TIMEOUT_MS));
}

static void cuda_fails(void **unused)
{
	unsigned failed = 0;

	(void)unused;
	for (unsigned n = 1; n < 80; n += n < 12 ? 3 : 7)
		failed += !expect_right_or_error("call", n, 20000);
	assert_true(failed > 8);
	for (unsigned n = 1; n <= 9; n += 4) {
		assert_false(expect_right_or_error("run", n, 20000));
		assert_false(expect_right_or_error("hang", n, TIMEOUT_MS));
	}
}

static void a_file_that_fails_is_an_error(void **unused)
{
	const unsigned files = open_files();
	const struct rs_gpu_options with = options();
	struct opened a, b;

	(void)unused;
	begin(&with, "2 3");
	start(&a, 0, 0);
	expect_loaded(&a);
	by_hand_no_descriptors = true;
	start(&b, BY_HAND_WIDE, 0);
	assert_int_equal(SC_E_DAMAGED, wait_for(&b));
	by_hand_no_descriptors = false;
	rs_load_end(b.load);
	assert_int_equal(0, is_there(&a)); /* the helper was in the midst of the pass */
	rs_load_end(a.load);
	start(&a, 2, 0);
	expect_loaded(&a);
	rs_load_end(a.load);
	expect_nothing_left(files);
}

static void memory_is_exhausted(void **unused)
{
	const unsigned files = open_files();
	struct rs_gpu_options with = options();
	static struct opened o[LOADS];
	struct rs_load *again;
	unsigned nr = 0;
	char why[100];

	(void)unused;
	with.device_bytes = 420 << 20;
	begin(&with, "1 1 at-most 420");
	do
		start(&o[nr], nr % IMAGES, 0);
	while (wait_for(&o[nr++]) == 0);
	assert_true(nr > 3 && nr < 20);
	assert_int_equal(ENOMEM, o[nr - 1].err.errnum);
	(void)snprintf(why, sizeof(why), "gpu_memory=420M of GPU 0 has no room for a file of %u bytes",
		       by_hand_bytes(o[nr - 1].image));
	assert_non_null(strstr(o[nr - 1].err.msg, why));
	rs_load_end(o[nr - 1].load);
	again = o[1].load; /* its end comes after the load that needs the room, as the kernel's may */
	start(&o[1], 1, 0);
	(void)usleep(50000);
	rs_load_end(again);
	for (unsigned i = 0; i < nr - 1; i++) {
		expect_loaded(&o[i]);
		rs_load_end(o[i].load);
	}
	expect_nothing_left(files);

	with.device_bytes = 900 << 20;
	begin(&with, "1 1");
	for (nr = 0; nr <= RS_POOL_LOADS_MAX; nr++)
		start(&o[nr], 0, 0);
	assert_int_equal(SC_E_NO_MEMORY, wait_for(&o[nr - 1]));
	assert_string_equal("GPU 0 has 64 open files of .gpu, which is as many as it may have; close some", o[nr - 1].err.msg);
	for (unsigned i = 0; i < nr; i++)
		rs_load_end(o[i].load);
	with.pinned_bytes = 50 << 20;
	with.window_bytes = 0;
	rs_gpu_configure(&with);
	start(&o[0], 0, 0);
	assert_int_equal(SC_E_NO_MEMORY, wait_for(&o[0]));
	assert_non_null(strstr(o[0].err.msg, "gpu_pinned=50M has no room for the windows of loads"));
	rs_load_end(o[0].load);
	expect_nothing_left(files);
}

static void a_helper_dies_with_its_files(void **unused)
{
	const unsigned files = open_files();
	const struct rs_gpu_options with = options();
	struct opened a, b, c, d;

	(void)unused;
	begin(&with, "");
	start(&a, 0, 0);
	start(&b, 1, 0);
	expect_loaded(&a);
	expect_loaded(&b);
	(void)kill(helper_pid(), SIGKILL);
	expect_no_children();
	assert_int_equal(0, is_there(&a));
	start(&c, 2, 0);
	expect_loaded(&c);
	assert_int_equal(0, is_there(&b)); /* of another life */
	rs_load_end(a.load);
	rs_load_end(b.load);
	start(&d, 0, 0); /* when they have been ended */
	expect_loaded(&d);
	assert_int_equal(1, is_there(&c));
	rs_load_end(c.load);
	rs_load_end(d.load);
	expect_nothing_left(files);
}

static void loads_are_given_up(void **unused)
{
	const unsigned files = open_files();
	const struct rs_gpu_options with = options();
	struct opened kept, o[8];
	unsigned given_up = 0;

	(void)unused;
	begin(&with, "");
	start(&kept, 0, 0);
	expect_loaded(&kept);
	for (unsigned n = 0; n < 20; n++) {
		for (unsigned i = 0; i < 8; i++)
			start(&o[i], i % IMAGES, 0);
		for (unsigned i = 0; i < 8; i++) {
			(void)usleep(n * 100);
			rs_load_cancel(o[i].load);
		}
		for (unsigned i = 0; i < 8; i++) {
			const int rc = wait_for(&o[i]);

			assert_true(rc == 0 || rc == SC_E_CANCELLED);
			given_up += rc < 0;
			rs_load_end(o[i].load);
		}
	}
	assert_true(given_up > 60);
	assert_int_equal(1, is_there(&kept));
	rs_load_end(kept.load);
	expect_nothing_left(files);
}

static void an_idle_helper_ends(void **unused)
{
	const unsigned files = open_files();
	struct rs_gpu_options with = options();
	struct opened o;

	(void)unused;
	with.idle_ms = 20;
	begin(&with, "");
	start(&o, 0, 0);
	expect_loaded(&o);
	(void)usleep(200000);
	assert_int_equal(1, is_there(&o)); /* it has a file */
	rs_load_end(o.load);
	expect_no_children();
	start(&o, 1, 0);
	expect_loaded(&o);
	rs_load_end(o.load);
	expect_nothing_left(files);
}

static void without_a_gpu_there_is_a_sentence(void **unused)
{
	const unsigned files = open_files();
	struct rs_gpu_options with = options();
	struct opened o;

	(void)unused;
	begin(&with, "0 0 no-driver 1");
	start(&o, 0, 0);
	assert_int_equal(SC_E_UNSUPPORTED, wait_for(&o));
	assert_string_equal("there is no NVIDIA driver", o.err.msg);
	rs_load_end(o.load);
	with.off = true;
	rs_gpu_configure(&with);
	start(&o, 0, 0);
	assert_int_equal(SC_E_UNSUPPORTED, wait_for(&o));
	assert_string_equal("the mount has gpu=off", o.err.msg);
	assert_null(o.load);
	with.off = false;
	(void)snprintf(with.program, sizeof(with.program), "/nowhere/scalai-gpu");
	rs_gpu_configure(&with);
	start(&o, 0, 0);
	assert_int_equal(SC_E_UNSUPPORTED, wait_for(&o));
	assert_non_null(strstr(o.err.msg, "there is no program '/nowhere/scalai-gpu'"));
	expect_nothing_left(files);
}

static int set_up(void **unused)
{
	(void)unused;
	return life_begin();
}

static int tear_down(void **unused)
{
	(void)unused;
	forget_pid();
	return unlink(script);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(another_process_finds_the_bytes),
		cmocka_unit_test(a_file_that_is_a_blob_is_read),
		cmocka_unit_test(a_long_file_is_read_by_several_threads),
		cmocka_unit_test(a_helper_fails_at_each_message),
		cmocka_unit_test(cuda_fails),
		cmocka_unit_test(a_file_that_fails_is_an_error),
		cmocka_unit_test(memory_is_exhausted),
		cmocka_unit_test(a_helper_dies_with_its_files),
		cmocka_unit_test(loads_are_given_up),
		cmocka_unit_test(an_idle_helper_ends),
		cmocka_unit_test(without_a_gpu_there_is_a_sentence),
	};

	return cmocka_run_group_tests_name("loads", tests, set_up, tear_down);
}
