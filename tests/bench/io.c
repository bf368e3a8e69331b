/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times one way of reading or writing on several files, in turns: A B, B A, A B…
 *
 *     io MODE REPS FILE…        one JSON line: {"bytes": B, "seconds": [[rep 1, rep 2, …] of each FILE]}
 *
 *     read      1 MiB read() into one buffer that is used again
 *     mmap      every byte of a shared mapping is summed up
 *     random    100,000 ($IO_CALLS) preads of 4 KiB at random places, the same for each file
 *               $IO_CPU binds the process to a core
 *     write     a new file of $IO_BYTES, 1 MiB write(); removed after each rep
 *     first     open, fstat and one byte
 *     all       every FILE once a rep, $IO_THREADS readers that take the next one; one list in the answer
 *
 * A FILE written as cold:FILE has its pages dropped from the cache of its own file system (of the
 * mount, for a view) before each rep; others are read once before the first.  $IO_OFFSET bytes at
 * the start (a header) are left out by `read`, so that what is timed is data.  In mode `read`, a FILE
 * written as by:LIST:FILE is read by one pread for each extent in LIST (pairs of u64: offset, bytes).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK (1u << 20)

static unsigned char *buffer;
static volatile uint64_t sink;
static uint64_t skip;
static uint32_t calls = 100000;

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
	(void)fprintf(stderr, "io: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t read_all(int fd, unsigned char *to, uint64_t from)
{
	uint64_t at = from;
	ssize_t n;

	while ((n = pread(fd, to, BLOCK, (off_t)at)) > 0)
		at += (uint64_t)n;
	if (n < 0)
		die("read");
	return at - from;
}

struct extents {
	uint64_t nr, (*at)[2];
};

static struct extents load_extents(const char *path)
{
	static struct extents x;
	struct stat st;
	int fd;

	if (x.at)
		return x; /* one list a run */
	fd = open(path, O_RDONLY);
	if (fd < 0 || fstat(fd, &st) < 0)
		die(path);
	x.nr = (uint64_t)st.st_size / 16;
	x.at = malloc((size_t)st.st_size);
	for (ssize_t n, done = 0; done < st.st_size; done += n) {
		n = pread(fd, (char *)x.at + done, (size_t)(st.st_size - done), done);
		if (n <= 0)
			die(path);
	}
	(void)close(fd);
	return x;
}

/* Into one buffer, as a loader that fills batches does. */
static uint64_t read_extents(int fd, struct extents x)
{
	uint64_t used = 0, total = 0;

	for (uint64_t i = 0; i < x.nr; i++) {
		if (used + x.at[i][1] > BLOCK)
			used = 0;
		if (pread(fd, buffer + used, x.at[i][1], (off_t)x.at[i][0]) != (ssize_t)x.at[i][1])
			die("pread");
		used += x.at[i][1];
		total += x.at[i][1];
	}
	return total;
}

static uint64_t sum_mapping(int fd, uint64_t bytes)
{
	const uint64_t *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t sum = 0;

	if (p == MAP_FAILED)
		die("mmap");
	for (uint64_t i = 0; i < bytes / 8; i++)
		sum += p[i];
	sink += sum;
	(void)munmap((void *)p, bytes);
	return bytes;
}

static uint64_t read_random(int fd, uint64_t bytes)
{
	uint64_t x = 88172645463325252u;

	for (uint32_t i = 0; i < calls; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		if (pread(fd, buffer, 4096, (off_t)(x % (bytes / 4096) * 4096)) != 4096)
			die("pread");
	}
	return calls * 4096ull;
}

static double write_new(const char *path, uint64_t bytes)
{
	double began;
	int fd;

	(void)unlink(path);
	began = now();
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
	if (fd < 0)
		die(path);
	for (uint64_t at = 0; at < bytes; at += BLOCK)
		if (write(fd, buffer, BLOCK) != BLOCK)
			die("write");
	if (close(fd) < 0)
		die("close");
	began = now() - began;
	(void)unlink(path); /* its pages are the next one's, on whichever side */
	return began;
}

static double first_byte(const char *path)
{
	double began = now();
	struct stat st;
	int fd = open(path, O_RDONLY);

	if (fd < 0 || fstat(fd, &st) < 0 || pread(fd, buffer, 1, 0) != 1)
		die(path);
	began = now() - began;
	(void)close(fd);
	return began;
}

static double one(const char *mode, const char *file, uint64_t *ret_bytes)
{
	bool cold = strncmp(file, "cold:", 5) == 0;
	bool by = strncmp(file, "by:", 3) == 0;
	const char *path = cold ? file + 5 : by ? strchr(file + 3, ':') + 1 : file;
	struct extents extents = {0};
	struct stat st;
	double began;
	int fd;

	if (strcmp(mode, "write") == 0) {
		*ret_bytes = strtoull(getenv("IO_BYTES"), NULL, 10);
		return write_new(path, *ret_bytes);
	}
	if (strcmp(mode, "first") == 0) {
		*ret_bytes = 1;
		return first_byte(path);
	}
	fd = open(path, O_RDONLY);
	if (fd < 0 || fstat(fd, &st) < 0)
		die(path);
	if (by) {
		char list[4096];

		(void)snprintf(list, sizeof(list), "%.*s", (int)(path - 1 - (file + 3)), file + 3);
		extents = load_extents(list);
	}
	if (cold)
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	began = now();
	if (by)
		*ret_bytes = read_extents(fd, extents);
	else if (strcmp(mode, "read") == 0)
		*ret_bytes = read_all(fd, buffer, skip);
	else if (strcmp(mode, "mmap") == 0)
		*ret_bytes = sum_mapping(fd, (uint64_t)st.st_size);
	else if (strcmp(mode, "random") == 0)
		*ret_bytes = read_random(fd, (uint64_t)st.st_size);
	else
		exit(2);
	began = now() - began;
	(void)close(fd);
	return began;
}

struct job {
	char **files;
	int nr, next;
	uint64_t bytes;
};

static void *reader(void *arg)
{
	struct job *j = arg;
	unsigned char *mine = aligned_alloc(4096, BLOCK);

	memset(mine, 1, BLOCK);
	for (;;) {
		int i = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED), fd;

		if (i >= j->nr)
			break;
		fd = open(j->files[i], O_RDONLY);
		if (fd < 0)
			die(j->files[i]);
		(void)__atomic_add_fetch(&j->bytes, read_all(fd, mine, 0), __ATOMIC_RELAXED);
		(void)close(fd);
	}
	free(mine);
	return NULL;
}

static double all(char **files, int nr, uint64_t *ret_bytes)
{
	const char *text = getenv("IO_THREADS");
	int threads = text ? atoi(text) : 2;
	struct job j = {files, nr, 0, 0};
	double began = now();
	pthread_t at[64];

	for (int i = 0; i < threads; i++)
		if (pthread_create(&at[i], NULL, reader, &j) != 0)
			die("thread");
	for (int i = 0; i < threads; i++)
		(void)pthread_join(at[i], NULL);
	*ret_bytes = j.bytes;
	return now() - began;
}

int main(int argc, char **argv)
{
	bool is_all = argc > 1 && strcmp(argv[1], "all") == 0;
	int reps = argc > 2 ? atoi(argv[2]) : 0, nr = is_all ? 1 : argc - 3;
	uint64_t bytes = 0;
	double *seconds;

	if (argc < 4 || reps < 1)
		return 2;
	if (getenv("IO_CPU")) {
		cpu_set_t cpus;

		CPU_ZERO(&cpus);
		CPU_SET(atoi(getenv("IO_CPU")), &cpus);
		(void)sched_setaffinity(0, sizeof(cpus), &cpus);
	}
	calls = getenv("IO_CALLS") ? (uint32_t)strtoul(getenv("IO_CALLS"), NULL, 10) : calls;
	skip = getenv("IO_OFFSET") ? strtoull(getenv("IO_OFFSET"), NULL, 10) : 0;
	buffer = aligned_alloc(4096, BLOCK);
	seconds = calloc((size_t)reps * (size_t)nr, sizeof(*seconds));
	if (!buffer || !seconds)
		return 1;
	memset(buffer, 1, BLOCK);
	for (int k = 0; !is_all && k < nr && strcmp(argv[1], "write") != 0 && strcmp(argv[1], "first") != 0; k++)
		if (strncmp(argv[k + 3], "cold:", 5) != 0)
			(void)one("read", argv[k + 3], &bytes);
	for (int i = 0; i < reps; i++)
		for (int turn = 0; turn < nr; turn++) {
			int k = i % 2 ? nr - 1 - turn : turn; /* nobody is always first */
			uint64_t n;

			seconds[k * reps + i] = is_all ? all(argv + 3, argc - 3, &n) : one(argv[1], argv[k + 3], &n);
			if ((i || turn) && n != bytes) {
				(void)fprintf(stderr, "io: %s has %" PRIu64 " bytes, the first %" PRIu64 "\n",
					      argv[k + 3], n, bytes);
				return 3;
			}
			bytes = n;
		}
	(void)printf("{\"bytes\": %" PRIu64 ", \"seconds\": [", bytes);
	for (int k = 0; k < nr; k++) {
		(void)printf("%s[", k ? ", " : "");
		for (int i = 0; i < reps; i++)
			(void)printf("%s%.9f", i ? ", " : "", seconds[k * reps + i]);
		(void)printf("]");
	}
	(void)printf("]}\n");
	return 0;
}
