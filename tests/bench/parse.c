/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses a file that is in memory REPS times: of torch.save(), or a .metadata of torch.distributed.  Prints the seconds of
 * each, and those of the processor, what was found, and the MiB that the process had at most beside the file, and has after
 * it, as JSON.
 *
 *     parse REPS FILE
 */
#include <err.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reshard/codec/dcp/dcp.h"
#include "reshard/codec/format/format.h"

static double now(clockid_t clock)
{
	struct timespec t;

	(void)clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* -> MiB of /proc/self/status. */
static double memory(const char *what)
{
	char line[256];
	FILE *f = fopen("/proc/self/status", "re");
	double kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, what, strlen(what)) == 0)
			kib = strtod(line + strlen(what), NULL);
	if (f)
		(void)fclose(f);
	return kib / 1024;
}

static char *whole(const char *path, size_t *bytes)
{
	FILE *f = fopen(path, "rbe");
	char *text;
	long size;

	if (!f || fseek(f, 0, SEEK_END) < 0 || (size = ftell(f)) < 0)
		err(1, "%s", path);
	rewind(f);
	text = malloc((size_t)size + 1);
	if (!text || fread(text, 1, (size_t)size, f) != (size_t)size)
		err(1, "%s", path);
	(void)fclose(f);
	*bytes = (size_t)size;
	return text;
}

/* -> tensors of a file, chunks of a .metadata. */
static size_t parse(const char *path, const char *text, size_t bytes)
{
	struct rs_file file = rs_file_in_memory(path, text, bytes);
	struct rs_found found = {0};
	struct rs_dcp dcp;
	struct sc_err e = {0};
	size_t nr = 0;

	if (!strstr(path, ".metadata")) {
		if (rs_format_parse(rs_format_find("torch"), &file, &found, &e) < 0)
			errx(1, "%s: %s", path, e.msg);
		nr = found.nr;
		rs_found_done(&found);
		return nr;
	}
	if (rs_dcp_read(text, bytes, &dcp, &e) <= 0)
		errx(1, "%s: %s", path, e.msg);
	for (size_t i = 0; i < dcp.tensors.nr; i++)
		nr += dcp.tensors.at[i].nr;
	rs_dcp_done(&dcp);
	return nr;
}

static void print(const char *name, const double *seconds, int nr)
{
	(void)printf("\"%s\": [", name);
	for (int i = 0; i < nr; i++)
		(void)printf("%s%.6f", i ? ", " : "", seconds[i]);
	(void)printf("], ");
}

int main(int argc, char **argv)
{
	int reps = argc == 3 ? atoi(argv[1]) : 0;
	double before, *seconds, *cpu;
	size_t bytes, nr = 0;
	char *text;

	if (reps < 1)
		errx(2, "usage: parse REPS FILE");
	/* as the daemon has it */
	(void)mallopt(M_TRIM_THRESHOLD, 2 << 20);
	(void)mallopt(M_MMAP_THRESHOLD, 512 << 10);
	text = whole(argv[2], &bytes);
	seconds = calloc((size_t)reps, sizeof(*seconds));
	cpu = calloc((size_t)reps, sizeof(*cpu));
	if (!seconds || !cpu)
		err(1, "calloc");
	before = memory("VmRSS:");
	for (int i = 0; i < reps; i++) {
		double began = now(CLOCK_MONOTONIC), ran = now(CLOCK_PROCESS_CPUTIME_ID);

		nr = parse(argv[2], text, bytes);
		seconds[i] = now(CLOCK_MONOTONIC) - began;
		cpu[i] = now(CLOCK_PROCESS_CPUTIME_ID) - ran;
	}
	(void)printf("{");
	print("seconds", seconds, reps);
	print("cpu", cpu, reps);
	(void)printf("\"found\": %zu, \"most\": %.1f, \"after\": %.1f}\n", nr, memory("VmHWM:") - before, memory("VmRSS:") - before);
	free(seconds);
	free(cpu);
	free(text);
	return 0;
}
