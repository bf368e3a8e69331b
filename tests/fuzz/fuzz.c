/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile input for every parser: seeds that are right are changed at random, and the parser must
 * answer without a crash, a sanitizer's complaint, a leak, or more than a second.
 *
 *     fuzz [--seconds N] [--seed S] [TARGET...]    a line a target: executions, how many were accepted
 *     fuzz --replay TARGET FILE                    one input
 *
 * An input that took a crash is in ./crash-TARGET.
 */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const struct target {
	const char *name;
	int (*run)(const uint8_t *p, size_t n);
	void (*seed)(struct bytes *b, unsigned which);
} targets[] = {
#define TARGET_ROW(name) {#name, fuzz_##name, seed_##name},
	FUZZ_PARSERS(TARGET_ROW)
#undef TARGET_ROW
};
#define TARGETS (sizeof(targets) / sizeof(*targets))

/* --- changing them --- */

static uint64_t state;

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

static void run(const struct target *t, double seconds)
{
	double began = now(CLOCK_MONOTONIC), slowest = 0;
	long executions = 0, accepted = 0;

	running = t;
	while (now(CLOCK_MONOTONIC) - began < seconds) {
		double one = now(CLOCK_PROCESS_CPUTIME_ID); /* others may want the processor, too */

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
		if (one > 2)
			abort(); /* an input that takes that long is an attack */
	}
	(void)printf("ok      %-12s %9ld executions, %8ld accepted, the slowest %.1f ms\n", t->name, executions, accepted, slowest * 1e3);
	(void)fflush(stdout);
	if (!accepted || (accepted == executions && t->run != fuzz_lines)) /* any text is lines */
		abort(); /* it says nothing about the parser */
}

int main(int argc, char **argv)
{
	double seconds = 5;
	int first = 1;

	state = 1;
	(void)signal(SIGABRT, on_death);
	if (argc == 4 && strcmp(argv[1], "--replay") == 0) {
		FILE *f = fopen(argv[3], "r");

		input.n = f ? fread(input.at, 1, INPUT_MAX, f) : 0;
		for (size_t i = 0; i < TARGETS; i++)
			if (strcmp(targets[i].name, argv[2]) == 0)
				(void)printf("%d\n", targets[i].run(input.at, input.n));
		return 0;
	}
	while (first + 1 < argc && argv[first][0] == '-') {
		if (strcmp(argv[first], "--seconds") == 0)
			seconds = atof(argv[first + 1]);
		else if (strcmp(argv[first], "--seed") == 0)
			state = strtoull(argv[first + 1], NULL, 10);
		first += 2;
	}
	for (size_t i = 0; i < TARGETS; i++) {
		bool wanted = first >= argc;

		for (int k = first; k < argc; k++)
			wanted |= strcmp(argv[k], targets[i].name) == 0;
		if (wanted)
			run(&targets[i], seconds);
	}
	return 0;
}
