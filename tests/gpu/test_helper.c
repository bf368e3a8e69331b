/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a helper, which is on the stand-in for CUDA (fake_helper.c): whatever it does at any message, whatever of
 * CUDA or of the daemon's own calls fails, the files are right, in time, and nothing is left.
 */
#include "reshard/engine/gpu/remote.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants four of the above first */
#include <cmocka.h>

#include "reshard/engine/gpu/helper.h"
#include "tests/gpu/life.h"
#include "tests/support/every.h"

#define TIMEOUT_MS 700
#define MESSAGES_MIN 15
#define MESSAGES_MAX 40

/* --- tests --- */

static unsigned messages;	/* that a helper sends in a call */

static void a_helper_writes_the_right_bytes(void **unused)
{
	struct rs_gpu_options o = options();
	struct sc_err err;

	(void)unused;
	for (unsigned seed = 0; seed < 6; seed++) {
		char args[30];

		(void)snprintf(args, sizeof(args), "%u %u", seed % 3, seed);
		begin(&o, args);
		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(0, call(&err));
		assert_int_equal(4, state().by_gpu);
		assert_string_equal("", state().why);
		assert_string_equal("GPU 0 at 0000:00:1e.0, sm_90", state().device);
		assert_true(rs_gpu_stop());
	}
	expect_no_children();
}

static void several_gpus_write_the_right_bytes(void **unused)
{
	struct sc_err err;

	(void)unused;
	for (unsigned seed = 0; seed < 9; seed++) {
		struct rs_gpu_options o;
		char args[30];

		devices = 2 + seed / 3;
		o = options();
		(void)snprintf(args, sizeof(args), "%u %u", seed % 3, seed);
		begin(&o, args);
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(0, call(&err));
		assert_string_equal("", state().why);
		assert_int_equal(3, state().by_gpu);
		assert_true(rs_gpu_stop());
		if (devices == 2)
			assert_string_equal("GPU 0 at 0000:00:1e.0, sm_90, GPU 1 at 0000:00:1f.0, sm_90, NCCL 2.22.3", state().device);
	}
	devices = 1;
	expect_no_children();
}

static void a_helper_takes_no_more_memory_than_it_may(void **unused)
{
	struct sc_err err;

	(void)unused;
	for (unsigned mib = 13; mib <= 105; mib += 16) { /* with less there is no room for windows */
		struct rs_gpu_options o = rs_gpu_options_default();
		char args[40];

		if (mib > 60) {
			o.nr_devices = 2;
			o.devices[1] = 1;
			o.device_bytes = o.pinned_bytes = (uint64_t)mib << 20;
		}
		(void)snprintf(o.program, sizeof(o.program), "%s", script);
		*(mib % 32 == 13 ? &o.device_bytes : &o.pinned_bytes) = (uint64_t)mib << 20;
		(void)snprintf(args, sizeof(args), "1 1 at-most %u", mib);
		begin(&o, args);
		assert_int_equal(0, call(&err));
		assert_int_equal(1, state().by_gpu);
		assert_true(rs_gpu_stop());
	}
}

static struct trial trials[400];
static unsigned nr_trials;

/* In the gate one in five: each misdeed has its turn, and each message meets one. */
static void plan(const char *misdeed, unsigned n, unsigned timeout_ms)
{
	static unsigned asked;

	if (asked++ % (unsigned)every_at_most(5))
		return;
	assert_true(nr_trials < sizeof(trials) / sizeof(*trials));
	trials[nr_trials++] = (struct trial){misdeed, n, timeout_ms, false};
}

/* Does what was planned, and plans nothing more. */
static unsigned try_all(void)
{
	const unsigned nr = nr_trials;

	nr_trials = 0;
	expect_all_right(trials, nr);
	return nr;
}

/* How many there are of a misdeed. */
static unsigned planned(const char *misdeed, unsigned nr)
{
	unsigned of_it = 0;

	for (unsigned i = 0; i < nr; i++)
		of_it += strcmp(trials[i].misdeed, misdeed) == 0;
	return of_it;
}

/* Of those of a misdeed, or of all (NULL), how many the host has done. */
static unsigned by_host(const char *misdeed, unsigned nr)
{
	unsigned host = 0;

	for (unsigned i = 0; i < nr; i++)
		host += !trials[i].by_gpu && (!misdeed || strcmp(trials[i].misdeed, misdeed) == 0);
	return host;
}

static void a_helper_is_killed_at_each_message(void **unused)
{
	unsigned nr, more = MESSAGES_MAX;

	(void)unused;
	for (messages = MESSAGES_MIN; messages + 1 < more;) { /* it meets those that it sends */
		const unsigned n = (messages + more) / 2;

		*(expect_right("kill", n, 20000) ? &more : &messages) = n;
	}
	assert_false(expect_right("kill", messages, 20000));
	assert_true(expect_right("kill", more, 20000));
	for (unsigned n = 1; n <= messages; n++) {
		plan("kill", n, 20000);
		plan("exit", n, 20000);
		if (n < messages)
			plan("after-kill", n, 20000);
	}
	nr = try_all();
	assert_int_equal(nr, by_host(NULL, nr));
	/* of the last one the daemon hears, and finds out later */
	assert_true(expect_right("after-kill", messages, 20000));
}

static void a_helper_is_stopped_at_each_message(void **unused)
{
	unsigned nr;

	(void)unused;
	for (unsigned n = 1; n <= messages; n++)
		plan(n % 2 ? "stop" : "silent", n, TIMEOUT_MS);
	nr = try_all();
	assert_int_equal(nr, by_host(NULL, nr));
}

static void a_helper_says_nonsense_at_each_message(void **unused)
{
	static const char *const always[] = {"noise", "short", "text"}, *const others[] = {"kind", "number", "twice"};
	unsigned nr;

	(void)unused;
	for (unsigned n = 1; n <= messages; n++)
		for (unsigned k = 0; k < 3; k++) {
			plan(always[k], n, 20000);
			plan(others[k], n, 20000);
		}
	nr = try_all();
	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(planned(always[k], nr), by_host(always[k], nr));
	/* BEGUN, FINISHED and READY have no number; what is said after FINISHED is heard by the next call */
	assert_true(nr >= 6 * messages / (unsigned)every_at_most(5) && by_host(NULL, nr) >= nr - 6);
}

static void cuda_fails(void **unused)
{
	unsigned nr;

	(void)unused;
	for (unsigned n = 1; n < 60; n += n < 12 ? 1 : 7)
		plan("call", n, 20000);
	for (unsigned n = 1; n <= 20; n += 3) {
		plan("run", n, 20000);
		plan("hang", n, TIMEOUT_MS);
	}
	nr = try_all();
	assert_true(by_host("call", nr) > 15u / (unsigned)every_at_most(5));
	assert_true(planned("run", nr) && planned("hang", nr));
	assert_int_equal(planned("run", nr), by_host("run", nr));
	assert_int_equal(planned("hang", nr), by_host("hang", nr));
}

/* Whatever becomes of the last of several, and of NCCL. */
static void exchanges_fail(void **unused)
{
	unsigned nr;

	(void)unused;
	for (devices = 2; devices <= 3; devices++) { /* of three files: each has one */
		for (unsigned i = devices % 2; i < 12; i += 2) {
			plan(i % 4 == 0 ? "peer-never" : i % 4 == 1 ? "peer-is-heard" : "peer-dies", 1 + i / 4, TIMEOUT_MS);
			plan("peer-late", 1 + i, 20000);
		}
		nr = try_all();
		assert_true(planned("peer-late", nr) && planned("peer-late", nr) < nr);
		assert_int_equal(nr - planned("peer-late", nr), by_host(NULL, nr));
		assert_int_equal(0, by_host("peer-late", nr));
	}
	devices = 3;
	for (unsigned n = 1; n <= 40; n += 6) {
		plan("run", n, 20000);
		plan("hang", n, TIMEOUT_MS);
	}
	for (unsigned n = 1; n <= messages; n += 4)
		plan(n % 8 == 1 ? "kill" : "silent", n, TIMEOUT_MS);
	for (unsigned n = 1; n < 260; n += 37)
		plan("call", n, 20000);
	nr = try_all();
	assert_int_equal(nr - planned("call", nr), by_host(NULL, nr) - by_host("call", nr));
	devices = 1;
}

static void machines_that_cannot_are_named(void **unused)
{
	static const struct {
		const char *what, *why;
	} machines[] = {
		{"no-driver", "there is no NVIDIA driver"},
		{"old-driver", "the NVIDIA driver is of CUDA 11.8, which is too old: version 525 or later is needed"},
		{"no-device", "there is no GPU 0: CUDA finds 0"},
		{"old-device", "GPU 0 (0000:00:1e.0) has compute capability 7.0; 8.0 (A100) or later is needed"},
		{"prohibited", "GPU 0 (0000:00:1e.0) is set to take no work (compute mode prohibited)"},
		{"no-nccl", "several GPUs need NCCL 2.22 or later: libnccl.so.2: it is not here"},
		{"old-nccl", "several GPUs need NCCL 2.22 or later: libnccl.so.2 is of version 21805"},
	};
	struct rs_gpu_options o = options();
	struct sc_err err;
	const char *why;
	char args[40];

	(void)unused;
	for (size_t i = 0; i < sizeof(machines) / sizeof(*machines); i++) {
		o.nr_devices = strstr(machines[i].what, "nccl") ? 2 : 1;
		o.devices[1] = 3;
		(void)snprintf(args, sizeof(args), "0 0 %s 1", machines[i].what);
		begin(&o, args);
		for (unsigned k = 1; k <= RS_GPU_FAILURES_MAX; k++) {
			assert_ptr_equal(&rs_engine_gpu, rs_engine_choose("gpu", &why));
			assert_int_equal(0, call(&err));
			assert_string_equal(machines[i].why, state().why);
		}
		/* then no more, until somebody asks for it */
		assert_ptr_equal(rs_engines[0], rs_engine_choose("gpu", &why));
		assert_string_equal(machines[i].why, why);
		rs_gpu_forgive();
		assert_ptr_equal(&rs_engine_gpu, rs_engine_choose("gpu", &why));
	}
}

static void programs_that_are_none_are_named(void **unused)
{
	struct rs_gpu_options o = options();
	struct sc_err err;
	const char *why;

	(void)unused;
	(void)snprintf(o.program, sizeof(o.program), "/nowhere/scalai-gpu");
	rs_gpu_configure(&o);
	assert_ptr_equal(rs_engines[0], rs_engine_choose("gpu", &why));
	assert_string_equal("there is no program '/nowhere/scalai-gpu' (No such file or directory)", why);
	assert_int_equal(0, call(&err));
	(void)snprintf(o.program, sizeof(o.program), "/bin/false");
	rs_gpu_configure(&o);
	assert_int_equal(0, call(&err));
	assert_string_equal("scalai-gpu ended with status 1", state().why);
#ifdef REAL_HELPER
	if (access("/dev/nvidiactl", F_OK) < 0) {
		(void)snprintf(o.program, sizeof(o.program), REAL_HELPER);
		rs_gpu_configure(&o);
		assert_int_equal(0, call(&err));
		assert_string_equal("there is no NVIDIA driver", state().why);
	}
#endif
	o.off = true;
	rs_gpu_configure(&o);
	assert_ptr_equal(rs_engines[0], rs_engine_choose("gpu", &why));
	assert_string_equal("the mount has gpu=off", why);
	o = options();
	o.pinned_bytes = 4 << 20;
	begin(&o, "");
	assert_int_equal(0, call(&err));
	assert_string_equal("gpu_memory=512M or gpu_pinned=4M is too small for the buffers through which "
			    "tensors go; give more", state().why);
	expect_no_children();
}

static void an_idle_helper_goes_and_another_comes(void **unused)
{
	struct rs_gpu_options o = options();
	unsigned calls = 0;
	struct sc_err err;

	(void)unused;
	o.idle_ms = 50;
	begin(&o, "");
	assert_int_equal(0, call(&err));
	expect_no_children();
	assert_int_equal(0, call(&err));
	o.idle_ms = 1; /* BYE and BEGIN cross */
	begin(&o, "1 1");
	for (unsigned i = 0; i < 40; i += (unsigned)every_at_most(4)) {
		assert_int_equal(0, call(&err));
		(void)usleep(i * 100 % 2500);
		calls++;
	}
	assert_int_equal(calls, state().by_gpu);
	assert_int_equal(0, state().by_host);
	(void)rs_gpu_stop();
	expect_no_children();
}

static void a_call_is_stopped(void **unused)
{
	const struct rs_gpu_options o = options();
	struct sc_err err;
	int rc = SC_E_CANCELLED;

	(void)unused;
	begin(&o, "2 7");
	for (stop_at = 1; rc < 0; stop_at++) {
		rc = call(&err);
		assert_true(rc == 0 || rc == SC_E_CANCELLED);
		assert_true(stop_at < 100);
	}
	assert_true(stop_at > 10);
	stop_at = 0;
	assert_int_equal(1, state().by_gpu);
	assert_int_equal(0, state().by_host); /* that is no fault of a GPU */
	assert_true(rs_gpu_stop());
	expect_no_children();
}

static void files_that_fail_are_errors(void **unused)
{
	const struct rs_gpu_options o = options();
	struct rs_written written;
	struct sc_err err;
	int fds[BY_HAND_IMAGES];

	(void)unused;
	begin(&o, "");
	by_hand_no_descriptors = true;
	assert_int_equal(SC_E_DAMAGED, call(&err));
	by_hand_no_descriptors = false;
	for (unsigned i = 0; i < BY_HAND_IMAGES; i++)
		fds[i] = i == 1 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : memfd_create("target", MFD_CLOEXEC);
	assert_int_equal(SC_E_SYSTEM, write_to(fds, &written, &err));
	assert_int_equal(1, written.failed);
	for (unsigned i = 0; i < BY_HAND_IMAGES; i++)
		(void)close(fds[i]);
	assert_int_equal(0, state().by_gpu + state().by_host);
	assert_int_equal(0, call(&err));
	assert_int_equal(1, state().by_gpu);
	assert_true(rs_gpu_stop());
}

/* --- the daemon's own calls --- */

static unsigned left;	/* calls that succeed */

#define FAILING(name, result, failure, params, args)                                                \
	static result (*real_##name) params;                                                       \
	static result failing_##name params                                                        \
	{                                                                                          \
		if (left-- == 0) {                                                                 \
			errno = EMFILE;                                                            \
			return failure;                                                            \
		}                                                                                  \
		return real_##name args;                                                           \
	}

FAILING(alloc, void *, NULL, (size_t bytes), (bytes))
FAILING(memfd, int, -1, (const char *name, unsigned flags), (name, flags))
FAILING(socket_pair, int, -1, (int fds[2]), (fds))
FAILING(sendmsg, ssize_t, -1, (int fd, const struct msghdr *msg, int flags), (fd, msg, flags))
FAILING(recvmsg, ssize_t, -1, (int fd, struct msghdr *msg, int flags), (fd, msg, flags))
FAILING(poll, int, -1, (struct pollfd *fds, int timeout_ms), (fds, timeout_ms))
FAILING(mmap, void *, MAP_FAILED, (void *at, size_t bytes, int prot, int flags, int fd, off_t off), (at, bytes, prot, flags, fd, off))

#define EACH_FAILS(name, step) each_fails(#name, step, (void **)&sc_sys.name, (void **)&real_##name, (void *)failing_##name)

/* How many there are, to the next step. */
static unsigned each_fails(const char *name, unsigned step, void **entry, void **real, void *failing)
{
	const struct rs_gpu_options o = options();
	unsigned n = 0;
	bool by_gpu = false;

	*real = *entry;
	for (; !by_gpu; n += step) {
		const unsigned before = open_files();
		struct sc_err err;
		int rc;

		begin(&o, "1 3");
		left = n;
		*entry = failing;
		rc = call(&err);
		*entry = *real;
		if (rc < 0 && rc != SC_E_NO_MEMORY)
			fail_msg("%s %u: %s", name, n, err.msg);
		by_gpu = rc == 0 && state().by_gpu;
		(void)rs_gpu_stop();
		expect_no_children();
		assert_int_equal(before, open_files());
		assert_true(n < 400);
	}
	return n - step;
}

static void each_call_of_the_daemon_fails_once(void **unused)
{
	const unsigned step = (unsigned)every_at_most(4);

	(void)unused;
	assert_int_equal(1, EACH_FAILS(memfd, 1));
	assert_int_equal(1, EACH_FAILS(socket_pair, 1));
	assert_int_equal(1, EACH_FAILS(mmap, 1));
	assert_true(EACH_FAILS(sendmsg, step) > 10);
	assert_true(EACH_FAILS(recvmsg, step) > 15);
	assert_true(EACH_FAILS(poll, step) > 15);
	assert_true(EACH_FAILS(alloc, step) > 10);
}

/* --- the daemon dies --- */

static bool is_alive(pid_t pid)
{
	char path[40], line[200] = "";
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (!f)
		return false;
	(void)!fgets(line, sizeof(line), f);
	(void)fclose(f);
	return strstr(line, ") Z ") == NULL;
}

static void a_helper_ends_with_its_daemon(void **unused)
{
	static const char *const misdeeds[] = {"0 0 hang 3", "1 1 hang 9", "0 0"};

	(void)unused;
	for (size_t i = 0; i < sizeof(misdeeds) / sizeof(*misdeeds); i++) {
		const struct rs_gpu_options o = options();
		pid_t daemon, helper;
		int status;

		forget_pid(); /* of before */
		write_script(misdeeds[i]);
		daemon = fork();
		if (daemon == 0) {
			struct sc_err err;

			rs_gpu_configure(&o);
			(void)call(&err);
			(void)pause();
		}
		helper = helper_pid();
		assert_true(helper > 0);
		(void)usleep(200000); /* it is in the midst of the call, or idle */
		assert_true(is_alive(helper));
		(void)kill(daemon, SIGKILL);
		(void)waitpid(daemon, &status, 0);
		for (unsigned k = 0; is_alive(helper); k++) {
			assert_true(k < 30000);
			(void)usleep(1000);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_helper_writes_the_right_bytes),
		cmocka_unit_test(several_gpus_write_the_right_bytes),
		cmocka_unit_test(a_helper_takes_no_more_memory_than_it_may),
		cmocka_unit_test(a_helper_is_killed_at_each_message),
		cmocka_unit_test(a_helper_is_stopped_at_each_message),
		cmocka_unit_test(a_helper_says_nonsense_at_each_message),
		cmocka_unit_test(cuda_fails),
		cmocka_unit_test(exchanges_fail),
		cmocka_unit_test(machines_that_cannot_are_named),
		cmocka_unit_test(programs_that_are_none_are_named),
		cmocka_unit_test(an_idle_helper_goes_and_another_comes),
		cmocka_unit_test(a_call_is_stopped),
		cmocka_unit_test(files_that_fail_are_errors),
		cmocka_unit_test(each_call_of_the_daemon_fails_once),
		cmocka_unit_test(a_helper_ends_with_its_daemon),
	};

	return cmocka_run_group_tests_name("helper", tests, life_set_up, life_tear_down);
}
