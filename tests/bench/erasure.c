/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What erasure coding by ISA-L would cost beside copies (docs/decisions.md, "Copies, and no erasure codes"): how fast
 * bytes are coded, and made again of what is left, by processor time, so that it holds beside others.  One stripe is K
 * parts of PART bytes; the data is larger than any cache, as files are.
 *
 *     erasure [MIB]		of data, 512 if it does not say; medians of five rounds
 */
#include <isa-l/erasure_code.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PART (256u << 10)
#define ROUNDS 5
#define PARTS_MAX 16

static size_t data_bytes;
static unsigned char *data, *other;

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double rate(double took[ROUNDS])
{
	qsort(took, ROUNDS, sizeof(*took), by_value);
	return (double)data_bytes / took[ROUNDS / 2] / 1e9;
}

/* Makes all coding parts of the data, stripe by stripe, behind one another in `other`. */
static void encode(int k, int m, unsigned char *tables)
{
	unsigned char *parts[PARTS_MAX], *coded[PARTS_MAX], *to = other;

	for (size_t at = 0; at + (size_t)k * PART <= data_bytes; at += (size_t)k * PART) {
		for (int i = 0; i < k; i++)
			parts[i] = data + at + (size_t)i * PART;
		for (int i = 0; i < m; i++, to += PART)
			coded[i] = to;
		ec_encode_data(PART, k, m, tables, parts, coded);
	}
}

/* Makes the first `lost` parts of each stripe again, of the others and the coding parts, and compares them with what
 * they were: the number of stripes that differ. */
static int decode(int k, int m, int lost, const unsigned char *matrix, double *ret_took)
{
	unsigned char left[PARTS_MAX * PARTS_MAX], inverse[PARTS_MAX * PARTS_MAX], tables[PARTS_MAX * PARTS_MAX * 32];
	unsigned char *from[PARTS_MAX], *made[PARTS_MAX], *coded = other;
	unsigned char *again = malloc((size_t)lost * PART);
	int wrong = 0;

	for (int i = 0; i < k; i++) /* rows of the parts that are left: the others, then coding parts */
		memcpy(left + i * k, matrix + (i + lost) * k, (size_t)k);
	if (!again || gf_invert_matrix(left, inverse, k) < 0)
		exit(1);
	ec_init_tables(k, lost, inverse, tables);
	for (int i = 0; i < lost; i++)
		made[i] = again + (size_t)i * PART;
	*ret_took = 0;
	for (size_t at = 0; at + (size_t)k * PART <= data_bytes; at += (size_t)k * PART, coded += (size_t)m * PART) {
		double began;

		for (int i = 0; i < k; i++)
			from[i] = i + lost < k ? data + at + (size_t)(i + lost) * PART
					       : coded + (size_t)(i + lost - k) * PART;
		began = now();
		ec_encode_data(PART, k, lost, tables, from, made);
		*ret_took += now() - began;
		wrong += memcmp(again, data + at, (size_t)lost * PART) != 0;
	}
	free(again);
	return wrong;
}

static void measure(int k, int m)
{
	unsigned char matrix[PARTS_MAX * PARTS_MAX], tables[PARTS_MAX * PARTS_MAX * 32];
	double encoded[ROUNDS], decoded[ROUNDS];

	gf_gen_cauchy1_matrix(matrix, k + m, k);
	ec_init_tables(k, m, matrix + k * k, tables);
	for (int r = 0; r < ROUNDS; r++) {
		double began = now();

		encode(k, m, tables);
		encoded[r] = now() - began;
	}
	printf("%d+%d: encodes %.1f GB/s of data", k, m, rate(encoded));
	for (int lost = 1; lost <= m; lost++) {
		for (int r = 0; r < ROUNDS; r++)
			if (decode(k, m, lost, matrix, &decoded[r])) {
				printf("; WRONG BYTES with %d lost\n", lost);
				exit(1);
			}
		printf("; with %d lost, stripes are made whole at %.1f", lost, rate(decoded));
	}
	printf("\n");
}

int main(int argc, char **argv)
{
	double copied[ROUNDS];

	data_bytes = (argc > 1 ? strtoul(argv[1], NULL, 0) : 512) << 20;
	data = malloc(data_bytes);
	other = malloc(data_bytes);
	if (!data || !other)
		return 1;
	for (size_t i = 0; i < data_bytes / 8; i++)
		((unsigned long long *)(void *)data)[i] = i * 0x9e3779b97f4a7c15u;
	memset(other, 1, data_bytes);
	for (int r = 0; r < ROUNDS; r++) {
		double began = now();

		memcpy(other, data, data_bytes);
		copied[r] = now() - began;
	}
	printf("memcpy: %.1f GB/s\n", rate(copied));
	measure(4, 1);
	measure(8, 2);
	free(data);
	free(other);
	return 0;
}
