/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile input for every parser: seeds that are right are changed at random, and the parser must
 * answer without a crash, a sanitizer's complaint, a leak, or more than a second.
 *
 *     fuzz [--shares N|--seconds N] [--seed S] [TARGET...]    a line a target: executions, how many were accepted
 *     fuzz --replay TARGET FILE                               one input
 *     fuzz --list                                             the targets' names
 *
 * --shares: each target gets N times its share of executions (fuzz.h): the same inputs on each machine.  --seconds: as many as fit.
 * A target's inputs depend on S and its name alone, not on what ran before it.  An input that took a crash, or that does not
 * end, is in ./crash-TARGET.
 */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const struct target {
	const char *name;
	int (*run)(const uint8_t *p, size_t n);
	void (*seed)(struct bytes *b, unsigned which);
	long share;
} targets[] = {
#define TARGET_ROW(name, share) {#name, fuzz_##name, seed_##name, share},
	FUZZ_PARSERS(TARGET_ROW)
#undef TARGET_ROW
};
#define TARGETS (sizeof(targets) / sizeof(*targets))

/* an execution that takes longer is an attack: the first is measured when it has ended, the second ends it */
#define SECONDS_MAX 2
#define SECONDS_HUNG 10

/* --- changing them --- */

static uint64_t state;

/* The first state of a target's random numbers: FNV-1a of its name, from the seed on. */
static uint64_t state_of(const char *name, uint64_t seed)
{
	uint64_t h = 14695981039346656037u ^ seed * 0x9e3779b97f4a7c15u;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 1099511628211u;
	return h;
}

unsigned pick(size_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return n ? (unsigned)((state >> 33) % n) : 0;
}

static void insert(struct bytes *b, size_t at, const void *p, size_t n)
{
	if (b->n + n > INPUT_MAX - 4096)
		return;
	memmove(b->at + at + n, b->at + at, b->n - at);
	memcpy(b->at + at, p, n);
	b->n += n;
}

static void change(struct bytes *b, const struct target *t)
{
	static const uint64_t odd[] = {0, 1, 7, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, UINT64_MAX, 100000000, 1ull << 40};
	static const char *const words[] = {"{", "}", "[", "]", "\"", ",", ":", "=", "*", "{L}", "{E}", "$", "use ", "tp", "like={P}", "-1", "1e9",
					    "99999999999999999999", " ", "\n", "..", "/", "%n", "\xff", "shape", "data_offsets", "sections=1:1"};
	static struct bytes other;
	size_t at = pick(b->n + 1), n;
	const char *word;

	switch (pick(9)) {
	case 0: /* a bit */
		if (at < b->n)
			b->at[at] ^= (uint8_t)(1 << pick(8));
		break;
	case 1: /* a byte */
		if (at < b->n)
			b->at[at] = (uint8_t)pick(256);
		break;
	case 2: /* a number */
		n = 1u << pick(4);
		if (at + n <= b->n)
			memcpy(b->at + at, &odd[pick(sizeof(odd) / sizeof(*odd))], n);
		break;
	case 3: /* something out */
		n = 1 + pick(pick(2) ? 8 : 512);
		if (at + n <= b->n) {
			memmove(b->at + at, b->at + at + n, b->n - at - n);
			b->n -= n;
		}
		break;
	case 4: /* something twice */
		n = 1 + pick(64);
		if (at + n <= b->n) {
			uint8_t piece[64];

			memcpy(piece, b->at + at, n);
			for (unsigned k = pick(pick(8) ? 3 : 300) + 1; k; k--)
				insert(b, at, piece, n);
		}
		break;
	case 5: /* a word */
		word = words[pick(sizeof(words) / sizeof(*words))];
		insert(b, at, word, strlen(word));
		break;
	case 6: /* an end */
		b->n = at;
		break;
	case 7: /* another seed's end */
		other.n = 0;
		t->seed(&other, pick(8));
		n = pick(other.n);
		if (at + other.n - n < INPUT_MAX - 4096) {
			b->n = at;
			add(b, other.at + n, other.n - n);
		}
		break;
	default: /* a digit */
		for (size_t i = 0; i < b->n; i++)
			if (b->at[(at + i) % b->n] >= '0' && b->at[(at + i) % b->n] <= '9') {
				b->at[(at + i) % b->n] = (uint8_t)('0' + pick(10));
				break;
			}
		break;
	}
}

static struct bytes input;
static const struct target *running;

static void on_death(int nr)
{
	char name[100];
	int fd;

	(void)snprintf(name, sizeof(name), "crash-%s", running ? running->name : "?");
	(void)fprintf(stderr, "fuzz: %s: %s, input kept in ./%s\n", running ? running->name : "?",
		      nr == SIGPROF ? "an execution does not end" : "aborted", name);
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || write(fd, input.at, input.n) != (ssize_t)input.n)
		_exit(1);
	(void)signal(nr, SIG_DFL);
	(void)raise(nr);
}

static double now(clockid_t clock)
{
	struct timespec t;

	(void)clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Ends the process, and keeps the input, when an execution does not end. */
static void set_alarm(time_t seconds)
{
	const struct itimerval t = {.it_value = {.tv_sec = seconds}};

	(void)setitimer(ITIMER_PROF, &t, NULL); /* of the processor's time, as below */
}

/* `shares` of its executions, or if that is 0 as many as fit into `seconds`. */
static void run(const struct target *t, uint64_t seed, long shares, double seconds)
{
	double began = now(CLOCK_MONOTONIC), slowest = 0;
	long executions = 0, accepted = 0;

	running = t;
	state = state_of(t->name, seed);
	while (shares ? executions < shares * t->share : now(CLOCK_MONOTONIC) - began < seconds) {
		double one = now(CLOCK_PROCESS_CPUTIME_ID); /* others may want the processor, too */

		set_alarm(SECONDS_HUNG);
		input.n = 0;
		t->seed(&input, pick(8));
		for (unsigned k = pick(executions ? 6 : 1); k; k--)
			change(&input, t);
		if (input.n == 0 && pick(50))
			continue;
		accepted += t->run(input.at, input.n) >= 0;
		executions++;
		one = now(CLOCK_PROCESS_CPUTIME_ID) - one;
		if (one > slowest)
			slowest = one;
		if (one > SECONDS_MAX)
			abort();
	}
	set_alarm(0);
	(void)printf("ok      %-12s %9ld executions, %8ld accepted, the slowest %.1f ms, %.1f s\n", t->name, executions, accepted, slowest * 1e3,
		     now(CLOCK_MONOTONIC) - began);
	(void)fflush(stdout);
	if (!accepted || (accepted == executions && t->run != fuzz_lines)) /* any text is lines */
		abort(); /* it says nothing about the parser */
}

static const struct target *target_of(const char *name)
{
	for (size_t i = 0; i < TARGETS; i++)
		if (strcmp(targets[i].name, name) == 0)
			return &targets[i];
	(void)fprintf(stderr, "fuzz: there is no target '%s': see fuzz --list\n", name);
	exit(2);
}

static int replay(const char *name, const char *path)
{
	FILE *f = fopen(path, "r");

	running = target_of(name);
	if (!f) {
		perror(path);
		return 2;
	}
	input.n = fread(input.at, 1, INPUT_MAX, f);
	(void)fclose(f);
	(void)printf("%d\n", running->run(input.at, input.n));
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t seed = 1;
	double seconds = 5;
	long shares = 0;
	int first = 1;

	(void)signal(SIGABRT, on_death);
	(void)signal(SIGPROF, on_death);
	if (argc == 4 && strcmp(argv[1], "--replay") == 0)
		return replay(argv[2], argv[3]);
	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (size_t i = 0; i < TARGETS; i++)
			(void)printf("%s\n", targets[i].name);
		return 0;
	}
	for (; first + 1 < argc && argv[first][0] == '-'; first += 2) {
		if (strcmp(argv[first], "--seconds") == 0)
			seconds = atof(argv[first + 1]);
		else if (strcmp(argv[first], "--shares") == 0)
			shares = atol(argv[first + 1]);
		else if (strcmp(argv[first], "--seed") == 0)
			seed = strtoull(argv[first + 1], NULL, 10);
	}
	(void)printf("seed %llu\n", (unsigned long long)seed);
	for (int k = first; k < argc; k++)
		run(target_of(argv[k]), seed, shares, seconds);
	for (size_t i = 0; first >= argc && i < TARGETS; i++)
		run(&targets[i], seed, shares, seconds);
	return 0;
}
