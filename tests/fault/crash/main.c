/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon dies at every point where its files change: before a call, after it, and in the middle
 * of a write. Then it starts again, and
 *   - what ranks see is the old state or the new one, entirely, byte for byte;
 *   - fsck has no complaint: every blob's size and hash, every tensor's, no file too many;
 *   - the interrupted command, given again, leads to the new state.
 *
 *     crash [--every N] [--seed S] [SCENARIO...]     a line a scenario; --every N: each N-th point, and three of each kind at least
 *     crash prepare|perform|check SCENARIO STORE FILE   one part, for power.py: the states are kept in FILE;
 *                                                       FILE.acknowledged is made when the command has returned
 *
 * The service runs without a mount, in a child that ends by _exit(): what a SIGKILL leaves. All calls
 * that change files go through sc_sys and SQLite's table of system calls; both are counted.
 */
#include "tests/fault/crash/crash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "reshard/repair/repair.h"
#include "tests/support/interpose.h"

char root[100];
static char base[128], copy[128];

void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vprintf(fmt, ap);
	va_end(ap);
	(void)printf("\n");
	(void)fflush(stdout);
	_exit(1);
}

void must(int rc, const struct sc_err *err)
{
	if (rc < 0)
		die("refused: %s", err->msg);
}

static void check_store(struct rs_service *s)
{
	struct sc_buf report = {0};
	struct sc_err err = {0};
	uint64_t bad;

	must(rs_fsck(s, false, &bad, &report, &err), &err);
	if (bad)
		die("fsck:\n%s", report.text);
	sc_buf_done(&report);
}

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *fmt, ...)
{
	char text[1000];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (system(text) != 0)
		die("'%s' failed", text);
}

static void copy_file(int from_dir, int to_dir, const char *name)
{
	int from = openat(from_dir, name, O_RDONLY | O_CLOEXEC), to;
	struct stat st;

	if (from < 0 || fstat(from, &st) < 0)
		die("%s: %s", name, strerror(errno));
	to = openat(to_dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, st.st_mode & 07777);
	if (to < 0)
		die("copy of %s: %s", name, strerror(errno));
	for (off_t left_over = st.st_size; left_over > 0;) {
		ssize_t n = copy_file_range(from, NULL, to, NULL, (size_t)left_over, 0);

		if (n <= 0)
			die("copy of %s: %s", name, n ? strerror(errno) : "it became shorter");
		left_over -= n;
	}
	(void)close(from);
	(void)close(to);
}

/* The files of one folder, and of the folders in it, and no other ones.  Takes the descriptors. */
static void mirror(int from, int to)
{
	DIR *d = fdopendir(to), *e = fdopendir(from);
	struct dirent *x;

	while ((x = readdir(d)))
		if (x->d_type == DT_REG)
			(void)unlinkat(to, x->d_name, 0);
	while ((x = readdir(e))) {
		if (x->d_type == DT_REG) {
			copy_file(from, to, x->d_name);
		} else if (*x->d_name != '.') {
			(void)mkdirat(to, x->d_name, 0700);
			mirror(openat(from, x->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
			       openat(to, x->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		}
	}
	(void)closedir(d);
	(void)closedir(e);
}

static void fresh_copy(void)
{
	(void)mkdir(copy, 0700);
	mirror(open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC), open(copy, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

/* Runs the scenario on the copy in a child that dies at point n; false: it came to its end. */
static bool kill_at(const struct scenario *x, long n, enum how mode, bool nested)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct rs_service *s;

		if (nested)
			arm(n, mode); /* also while it starts */
		s = start(copy);
		if (!nested)
			arm(n, mode);
		if (!nested)
			x->what(s);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) ||
	    (WEXITSTATUS(status) != KILLED && WEXITSTATUS(status) != 0))
		die("%s: point %ld: the daemon ended with %x", x->name, n, status);
	return WEXITSTATUS(status) == KILLED;
}

static bool same(const struct seen *a, const struct seen *b, bool any_tree)
{
	return a->head == b->head && (any_tree || a->tree == b->tree);
}

/* In a child of its own; its messages are the driver's. */
#define IN_CHILD(call)                                                                             \
	do {                                                                                       \
		pid_t pid_;                                                                        \
		int status_;                                                                       \
		(void)fflush(stdout);                                                              \
		pid_ = fork();                                                                     \
		if (pid_ == 0) {                                                                   \
			call;                                                                      \
			(void)fflush(stdout);                                                      \
			_exit(0);                                                                  \
		}                                                                                  \
		if (pid_ < 0 || waitpid(pid_, &status_, 0) < 0 || status_ != 0)                    \
			die("%s: a check failed", x->name);                                        \
	} while (0)

static void check_copy(const struct scenario *x, long n, int mode)
{
	static const char *const modes[] = {"before", "after", "torn"};
	struct rs_service *s = start(copy);
	struct seen seen = look(s);
	bool is_old = same(&seen, &shared->before, x->any_tree), is_new = same(&seen, &shared->after, x->any_tree);

	if (shared->acknowledged && !same(&seen, &shared->after, false))
		die("%s: acknowledged, and lost", x->name);
	if (!is_old && !is_new && !x->steps)
		die("%s: killed %s point %ld: neither the old state nor the new one", x->name, modes[mode], n);
	if (!x->damaged)
		check_store(s);
	/* the working tree may have come half way: what is done again begins with it */
	if (!x->any_tree && (!is_new || x->damaged)) {
		x->what(s);
		s = start_again(s, copy);
		seen = look(s);
		if (!same(&seen, &shared->after, false))
			die("%s: killed %s point %ld, then done again: not the new state", x->name, modes[mode], n);
		check_store(s);
	}
	rs_service_free(s);
}

static void prepare(const struct scenario *x)
{
	struct rs_service *s = start(base);

	x->before(s);
	rs_service_free(s);
	fresh_copy();
	s = start(copy);
	shared->before = look(s);
	x->what(s);
	s = start_again(s, copy);
	shared->after = look(s);
	check_store(s);
	rs_service_free(s);
}

/* A scenario's own seed, so that its points do not depend on which ones went before. */
static unsigned seed_of(const struct scenario *x, unsigned seed)
{
	unsigned h = 2166136261u ^ seed * 0x9e3779b9u;

	for (const char *c = x->name; *c; c++)
		h = (h ^ (unsigned char)*c) * 16777619u;
	return h;
}

static long run(const struct scenario *x, long every, unsigned given)
{
	unsigned own = seed_of(x, given), *seed = &own;
	long kills = 0, points;

	shell("rm -rf %s %s && mkdir -p %s", base, copy, base);
	IN_CHILD(prepare(x));
	fresh_copy();
	shared->events = 0;
	(void)kill_at(x, -1, BEFORE, false);
	points = shared->events;
	/* it has returned, and the process has ended by itself: nothing was freed, and nothing is lost */
	shared->acknowledged = true;
	IN_CHILD(check_copy(x, points, AFTER));
	shared->acknowledged = false;
	if (every > points / 3) /* nine kills at least, so that one is killed again */
		every = points > 3 ? points / 3 : 1;
	for (int mode = BEFORE; mode <= TORN; mode++)
		for (long n = every > 1 ? (long)(rand_r(seed) % (unsigned)every) : 0; n < points; n += every) {
			fresh_copy();
			if (!kill_at(x, n, mode, false))
				continue; /* threads: this time it had fewer */
			kills++;
			/* and once more, while it starts again: at each call in turn, until that is not reached */
			if (kills % 8 == 0)
				for (long k = 0; kill_at(x, k, mode, true); k += 1 + rand_r(seed) % 3)
					kills++;
			IN_CHILD(check_copy(x, n, mode));
		}
	(void)printf("ok      %-12s %4ld points, %5ld kills, 0 bad states\n", x->name, points, kills);
	(void)fflush(stdout);
	return kills;
}

/* `prepare` makes the store as it is before, `perform` does it, `check` is after the power came back. */
static int part(const char *what, const char *name, const char *store, const char *file)
{
	const struct scenario *x = NULL;
	struct rs_service *s;
	char path[300];
	FILE *f;

	for (size_t i = 0; i < scenarios_nr; i++)
		if (strcmp(scenarios[i].name, name) == 0)
			x = &scenarios[i];
	if (!x)
		die("no scenario '%s'", name);
	(void)snprintf(copy, sizeof(copy), "%s", store);
	(void)snprintf(root, sizeof(root), "%.*s", (int)(strrchr(file, '/') - file), file);
	(void)snprintf(path, sizeof(path), "%s.acknowledged", file);
	if (strcmp(what, "prepare") != 0) {
		f = fopen(file, "r");
		if (!f || fread(shared, sizeof(*shared), 1, f) != 1)
			die("cannot read %s", file);
		(void)fclose(f);
	}
	if (strcmp(what, "check") == 0) {
		shared->acknowledged = access(path, F_OK) == 0;
		check_copy(x, 0, AFTER);
		return 0;
	}
	s = start(store);
	if (strcmp(what, "prepare") == 0) {
		x->before(s);
		shared->before = look(s);
	} else {
		x->what(s);
		f = fopen(path, "w");
		if (!f || fclose(f) != 0)
			die("cannot make %s", path);
		s = start_again(s, store);
		shared->after = look(s);
	}
	rs_service_free(s);
	f = fopen(file, "w");
	if (!f || fwrite(shared, sizeof(*shared), 1, f) != 1 || fclose(f) != 0)
		die("cannot write %s", file);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned seed = 1;
	long every = 1, kills = 0;
	int first = 1;

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	sc_log_level(SC_LOG_ERROR);
	if (argc == 5 && (strcmp(argv[1], "prepare") == 0 || strcmp(argv[1], "perform") == 0 || strcmp(argv[1], "check") == 0))
		return part(argv[1], argv[2], argv[3], argv[4]);
	while (first + 1 < argc && argv[first][0] == '-') {
		if (strcmp(argv[first], "--every") == 0)
			every = atol(argv[first + 1]);
		else if (strcmp(argv[first], "--seed") == 0)
			seed = (unsigned)atol(argv[first + 1]);
		first += 2;
	}
	(void)snprintf(root, sizeof(root), "%s/scalai-crash.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(root))
		die("mkdtemp: %s", strerror(errno));
	(void)snprintf(base, sizeof(base), "%s/base", root);
	(void)snprintf(copy, sizeof(copy), "%s/copy", root);
	shell("seq 20 > %s/lines.txt", root);
	for (size_t i = 0; i < scenarios_nr; i++) {
		bool wanted = first >= argc;

		for (int k = first; k < argc; k++)
			wanted |= strcmp(argv[k], scenarios[i].name) == 0;
		if (wanted)
			kills += run(&scenarios[i], every, seed);
	}
	(void)printf("%ld kills, 0 bad states (every %ld, seed %u)\n", kills, every, seed);
	shell("rm -rf %s", root);
	return kills ? 0 : 1;
}
