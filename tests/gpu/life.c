/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/life.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/log.h"

#define PROCESSES 4
#define WINDOW (270u << 10)	/* some rounds, whose reads are long enough for a descriptor */

/* --- a call --- */

struct rs_engine *engine;
char script[30] = "/tmp/scalai-helper.XXXXXX";
unsigned stop_at, devices = 1;
static unsigned ticks;
static uint64_t ticked;

static int on_tick(void *arg, uint64_t bytes)
{
	(void)arg;
	ticked += bytes;
	return bytes && ++ticks == stop_at;
}

int write_to(const int *fds, struct rs_written *written, struct sc_err *err)
{
	const struct rs_write_options how = {.tick = on_tick, .will_flush = true};
	struct rs_target targets[BY_HAND_IMAGES];

	for (unsigned i = 0; i < BY_HAND_IMAGES; i++)
		targets[i] = (struct rs_target){by_hand_image(i), fds[i]};
	ticks = 0;
	ticked = 0;
	return rs_engine_write(engine, targets, BY_HAND_IMAGES, &how, written, err);
}

/* Files that a call made are right. */
int call(struct sc_err *err)
{
	struct rs_written written;
	int fds[BY_HAND_IMAGES], rc;

	for (unsigned i = 0; i < BY_HAND_IMAGES; i++)
		fds[i] = memfd_create("target", MFD_CLOEXEC);
	rc = write_to(fds, &written, err);
	for (unsigned i = 0; i < BY_HAND_IMAGES; i++) {
		assert_true(rc < 0 || by_hand_is_right(i, fds[i]));
		(void)close(fds[i]);
	}
	if (rc == 0) {
		assert_int_equal(BY_HAND_IMAGES * BY_HAND_BYTES, written.copied + written.cloned);
		assert_int_equal(BY_HAND_IMAGES * BY_HAND_BYTES, ticked);
	}
	return rc;
}

struct rs_gpu_state state(void)
{
	struct rs_gpu_state s;

	rs_gpu_state(&s);
	return s;
}

struct rs_gpu_options options(void)
{
	struct rs_gpu_options o = rs_gpu_options_default();

	o.window_bytes = WINDOW;
	o.timeout_ms = 20000;
	o.nr_devices = devices;
	for (unsigned k = 0; k < devices; k++)
		o.devices[k] = (uint8_t)k;
	(void)snprintf(o.program, sizeof(o.program), "%s", script);
	return o;
}

/* The helper's pid is in a file beside the script.  SCALAI_TEST_HELPER is another helper, on a GPU, say. */
void write_script(const char *args)
{
	const char *other = getenv("SCALAI_TEST_HELPER");
	FILE *f = fopen(script, "w");

	assert_non_null(f);
	(void)fprintf(f, "#!/bin/sh\necho $$ > %s.pid\nexec %s %s\n", script, other ? other : HELPER, args);
	(void)fclose(f);
	(void)chmod(script, 0700);
}

void begin(const struct rs_gpu_options *o, const char *args)
{
	write_script(args);
	rs_gpu_configure(o);
}

/* --- what is left --- */

unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned nr = 0;

	while (readdir(d))
		nr++;
	(void)closedir(d);
	return nr;
}

static bool has_children(void)
{
	siginfo_t info;

	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void expect_no_children(void)
{
	for (unsigned i = 0; has_children(); i++) {
		assert_true(i < 30000);
		(void)usleep(1000);
	}
}

/* Whatever the helper does: a call that is right in time, by the GPU or the host, and another one after it. */
bool expect_right(const char *misdeed, unsigned n, unsigned timeout_ms)
{
	const unsigned before = open_files();
	struct rs_gpu_options o = options();
	struct sc_err err;
	char args[60];
	int64_t began;
	bool by_gpu;

	o.timeout_ms = timeout_ms;
	(void)snprintf(args, sizeof(args), "%u %u %s %u", n % 3, n, misdeed, n);
	begin(&o, args);
	began = sc_now_ns();
	if (call(&err) < 0)
		fail_msg("%s %u: %s", misdeed, n, err.msg);
	assert_true(sc_now_ns() - began < ((int64_t)timeout_ms + 20000) * 1000000);
	by_gpu = state().by_gpu == 1;
	assert_int_equal(1, state().by_gpu + state().by_host);
	assert_int_equal(by_gpu, state().why[0] == 0);
	write_script("");
	if (call(&err) < 0)
		fail_msg("after %s %u: %s", misdeed, n, err.msg);
	(void)rs_gpu_stop();
	expect_no_children();
	assert_int_equal(before, open_files());
	return by_gpu;
}

/* --- many at a time --- */

pid_t helper_pid(void)
{
	char path[sizeof(script) + 4];
	int pid = 0;

	(void)snprintf(path, sizeof(path), "%s.pid", script);
	for (unsigned i = 0; i < 5000 && !pid; i++) {
		FILE *f = fopen(path, "r");

		if (f && fscanf(f, "%d", &pid) != 1)
			pid = 0;
		if (f)
			(void)fclose(f);
		(void)usleep(1000);
	}
	forget_pid();
	return pid;
}

void forget_pid(void)
{
	char path[sizeof(script) + 4];

	(void)snprintf(path, sizeof(path), "%s.pid", script);
	(void)unlink(path);
}

int life_begin(void)
{
	const int fd = mkstemp(script);

	if (fd < 0)
		return -1;
	(void)close(fd);
	sc_log_level(SC_LOG_ERROR);
	by_hand_make();
	return 0;
}

int life_set_up(void **unused)
{
	struct sc_err err;

	(void)unused;
	return life_begin() < 0 ? -1 : rs_engine_open(&rs_engine_gpu, NULL, 0, &engine, &err);
}

int life_tear_down(void **unused)
{
	(void)unused;
	(void)rs_gpu_stop();
	rs_engine_close(engine);
	forget_pid();
	return unlink(script);
}

struct trials {
	unsigned next, nr;
	struct trial all[];
};

/* Takes trials until there are none, by an engine and a script of its own; what is not as expected aborts. */
static _Noreturn void take_trials(struct trials *t)
{
	static struct rs_engine *of_parent; /* it is not given back here */
	struct sc_err err;
	unsigned i;
	int fd;

	(void)setenv("CMOCKA_TEST_ABORT", "1", 1);
	of_parent = engine;
	memcpy(strrchr(script, '.'), ".XXXXXX", sizeof(".XXXXXX"));
	fd = mkstemp(script);
	assert_true(fd >= 0);
	(void)close(fd);
	assert_int_equal(0, rs_engine_open(of_parent->ops, NULL, 0, &engine, &err));
	while ((i = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED)) < t->nr)
		t->all[i].by_gpu = expect_right(t->all[i].misdeed, t->all[i].n, t->all[i].timeout_ms);
	rs_engine_close(engine);
	engine = of_parent;
	forget_pid();
	(void)unlink(script);
	exit(0); /* its leaks are looked for */
}

void expect_all_right(struct trial *trials, unsigned nr)
{
	const size_t bytes = sizeof(struct trials) + nr * sizeof(*trials);
	struct trials *t = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[PROCESSES];
	unsigned failed = 0;

	assert_true(t != MAP_FAILED);
	(void)rs_gpu_stop();
	expect_no_children();
	t->nr = nr;
	memcpy(t->all, trials, nr * sizeof(*trials));
	(void)fflush(NULL);
	for (unsigned i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0)
			take_trials(t);
	}
	for (unsigned i = 0; i < PROCESSES; i++) {
		int status;

		assert_int_equal(pids[i], waitpid(pids[i], &status, 0));
		failed += status != 0;
	}
	memcpy(trials, t->all, nr * sizeof(*trials));
	(void)munmap(t, bytes);
	assert_int_equal(0, failed);
}
