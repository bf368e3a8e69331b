/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile input for every parser: seeds that are right are changed at random, and the parser must
 * answer without a crash, a sanitizer's complaint, a leak, or more than a second.
 *
 *     fuzz [--seconds N] [--seed S] [TARGET...]    a line a target: executions, how many were accepted
 *     fuzz --replay TARGET FILE                    one input
 *
 * The targets have libFuzzer's form: clang -fsanitize=fuzzer -DTARGET=safetensors builds one alone.
 * An input that took a crash is in ./crash-TARGET.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "meta/model/layout.h"
#include "meta/model/topology.h"
#include "reshard/data/index.h"
#include "reshard/format/format.h"

#define INPUT_MAX (64u << 10)

/* --- targets: 0 accepted, else refused; a refusal has a sentence --- */

static int refused(int rc, const struct sc_err *err)
{
	if (rc < 0 && (!*err->msg || err->errnum <= 0))
		abort(); /* a refusal without a sentence */
	return rc;
}

/* What was found, laid out again and read back, is the same. */
static void lay_out_again(const struct rs_format_ops *format, const struct rs_found *found)
{
	struct rs_wanted *wanted = calloc(found->nr + 1, sizeof(*wanted));
	struct rs_frame frame;
	struct rs_found again;
	struct rs_file file;
	struct sc_err err;
	uint8_t *bytes;

	for (uint32_t i = 0; i < found->nr; i++) {
		const struct rs_found_tensor *t = &found->tensors[i];

		wanted[i] = (struct rs_wanted){t->name, t->dtype, t->shape, (uint32_t)(t->at % SC_DATA_ALIGN)};
	}
	if (rs_format_describe(format, wanted, found->nr, found->payload, found->payload_bytes, &frame, &err) < 0)
		abort();
	bytes = calloc(1, frame.bytes + 1);
	for (uint32_t i = 0; i < frame.nr; i++)
		if (frame.pieces[i].kind == RS_PIECE_TEXT)
			memcpy(bytes + frame.pieces[i].at, frame.pieces[i].text,
			       rs_piece_end(&frame, &frame.pieces[i]) - frame.pieces[i].at);
	file = rs_file_in_memory("again", bytes, frame.bytes);
	if (rs_format_parse(format, &file, &again, &err) < 0 || again.nr != found->nr ||
	    !again.payload != !found->payload || (again.payload && strcmp(again.payload, found->payload) != 0))
		abort();
	for (uint32_t i = 0; i < found->nr; i++) {
		const struct rs_found_tensor *t = rs_found_tensor(&again, wanted[i].name);

		if (!t || t->dtype != wanted[i].dtype || !meta_shape_equal(&t->shape, &wanted[i].shape))
			abort();
	}
	rs_found_done(&again);
	rs_frame_done(&frame);
	free(bytes);
	free(wanted);
}

static int fuzz_format(const struct rs_format_ops *format, const uint8_t *p, size_t n)
{
	struct rs_file file = rs_file_in_memory("fuzz", p, n);
	struct rs_found found = {0};
	struct sc_err err = {0};
	int rc = rs_format_parse(format, &file, &found, &err);
	uint64_t sum = 0;

	for (uint32_t i = 0; rc == 0 && i < found.nr; i++) {
		const struct rs_found_tensor *t = &found.tensors[i];

		if (t->at > n || rs_found_bytes(t) > n - t->at)
			abort(); /* accepted, and leads outside */
		for (uint64_t k = 0; k < rs_found_bytes(t); k++)
			sum += p[t->at + k];
	}
	__asm__ volatile("" ::"r"(sum));
	if (rc == 0)
		lay_out_again(format, &found);
	rs_found_done(&found);
	return refused(rc, &err);
}

static int fuzz_safetensors(const uint8_t *p, size_t n)
{
	return fuzz_format(rs_format_find("safetensors"), p, n);
}

static char *text_of(const uint8_t *p, size_t n)
{
	char *text = malloc(n + 1);

	memcpy(text, p, n);
	text[n] = 0;
	return text;
}

static int fuzz_layout(const uint8_t *p, size_t n)
{
	struct meta_layout *layout = NULL;
	struct sc_err err = {0};
	char *text = text_of(p, n);
	int rc = meta_layout_parse(text, NULL, NULL, &layout, &err);

	free(text);
	meta_layout_free(layout);
	return refused(rc, &err);
}

static int fuzz_topology(const uint8_t *p, size_t n)
{
	static struct meta_layout *layout;
	struct meta_topology topo = {0};
	struct sc_err err = {0};
	char *text = text_of(p, n);
	int rc = layout ? 0 : meta_layout_parse("use megatron-gpt vocab=300", NULL, NULL, &layout, &err);

	if (rc == 0)
		rc = meta_topology_parse(layout, text, &topo, &err);
	free(text);
	if (rc == 0)
		meta_topology_done(&topo);
	return refused(rc, &err);
}

static int fuzz_spec(const uint8_t *p, size_t n)
{
	struct rs_data_spec spec;
	struct sc_err err = {0};
	struct sc_buf buf = {0};
	char *text = text_of(p, n);
	int rc = rs_data_spec_parse("name", text, &spec, &err);

	free(text);
	if (rc == 0 && rs_data_spec_finish(&spec, "x.bin", &err) == 0) {
		struct rs_data_spec again;

		rs_data_spec_text(&spec, &buf);
		if (rs_data_spec_parse("name", buf.text, &again, &err) < 0)
			abort(); /* what it writes it can't read */
		sc_buf_done(&buf);
	}
	return refused(rc, &err);
}

static int file_of(const uint8_t *p, size_t n)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0 || write(fd, p, n) != (ssize_t)n)
		abort();
	return fd;
}

/* A source of some format; of Megatron's the first half is the .idx. */
static int fuzz_index(const uint8_t *p, size_t n, enum rs_data_format format, bool sequences)
{
	static struct rs_table *table;
	struct rs_data_spec spec = {.format = format, .record = 7, .head = 3, .sequences = sequences};
	struct rs_data_source_info info = {0};
	struct rs_keys keys = {0};
	struct rs_index x = {.spec = &spec, .path = "fuzz", .info = &info, .keys = &keys};
	struct sc_err err = {0};
	uint8_t *copy = malloc(n ? n : 1); /* of exactly its size: the sanitizer sees its end */
	uint64_t last = 0;
	int rc;

	memcpy(copy, p, n);
	if (!table)
		table = malloc(sizeof(*table));
	table->bytes = table->nr = 0;
	table->fd = memfd_create("table", MFD_CLOEXEC);
	x.table = table;
	x.map = copy;
	x.bytes = n;
	if (format == RS_DATA_MEGATRON) {
		x.idx = copy;
		x.idx_bytes = n / 2;
		x.map = copy + n / 2;
		x.bytes = n - n / 2;
	}
	x.fd = file_of(x.map, x.bytes);
	rc = rs_index_source(&x, &err);
	for (uint64_t at = 0; rc == 0 && format != RS_DATA_MEGATRON && at < table->bytes; at += 8) {
		uint64_t border;

		if (pread(table->fd, &border, 8, (off_t)at) != 8 || border < last || border > x.bytes)
			abort(); /* accepted, and leads outside */
		last = border;
	}
	if (rc == 0 && !x.has_table && info.first + info.samples * 1 > x.bytes + 1)
		abort();
	(void)close(x.fd);
	(void)close(table->fd);
	sc_buf_done(&x.form);
	sc_vec_done(&keys);
	free(copy);
	return refused(rc, &err);
}

static int fuzz_lines(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_LINES, false);
}
static int fuzz_records(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_RECORDS, false);
}
static int fuzz_npy(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_NPY, false);
}
static int fuzz_tar(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_TAR, false);
}
static int fuzz_tfrecord(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_TFRECORD, false);
}
static int fuzz_megatron(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_MEGATRON, n & 1);
}

#ifdef TARGET
#define NAME2(x) fuzz_##x
#define NAME(x) NAME2(x)
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	return NAME(TARGET)(p, n) < 0 ? -1 : 0;
}
#else

/* --- seeds --- */

struct bytes {
	size_t n;
	uint8_t at[INPUT_MAX];
};

static void add(struct bytes *b, const void *p, size_t n)
{
	memcpy(b->at + b->n, p, n);
	b->n += n;
}

static void add_text(struct bytes *b, const char *text)
{
	add(b, text, strlen(text));
}

static void add_u64(struct bytes *b, uint64_t v)
{
	add(b, &v, 8);
}

static void seed_safetensors(struct bytes *b, unsigned which)
{
	static const char *const headers[] = {
		"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
		"\"b.c\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}}",
		"{\"x\":{\"dtype\":\"I64\",\"shape\":[0,9],\"data_offsets\":[0,0]},\"y\":{\"dtype\":\"U8\",\"shape\":[3],"
		"\"data_offsets\":[0,3]}}   ",
		"{}"};
	static const size_t data[] = {26, 3, 0};

	which %= 3;
	add_u64(b, strlen(headers[which]));
	add_text(b, headers[which]);
	add(b, "abcdefghijklmnopqrstuvwxyz", data[which]);
}

static void seed_layout(struct bytes *b, unsigned which)
{
	static const char *const texts[] = {
		"use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight\n",
		"mesh tp cp dp pp\nmesh etp=tp ep edp=* pp\n$n = 4\nopt.{K}.{P} like={P} flat dp=0 pad=lcm(4)\n"
		"emb stage=first tp=0 pad=128 size=$n\nl.{L}.qkv tp=0 sections=2:1:1\nl.{L}.x.{E}.up etp=0 sections=1:1\nl.{L}.norm* copy\n",
		"use replicated\n*.bias copy\n# a comment\nhead stage=last tp=0 tied=emb\n"};

	add_text(b, texts[which % 3]);
}

static void seed_topology(struct bytes *b, unsigned which)
{
	static const char *const texts[] = {"tp=4 pp=2 dp=2", "tp=2,pp=4,vp=2,stages=3+3+2+1+1+1+1+1", "ep=4 etp=1 dp=8 order=tp-cp-ep-dp-pp", "cp=2"};

	add_text(b, texts[which % 4]);
}

static void seed_spec(struct bytes *b, unsigned which)
{
	static const char *const texts[] = {
		"format=records seed=5 shuffle=block=16 global_batch=8 drop_last=no share=strided uneven=pad record=4 head=2 start=3 axes=dp,ep "
		"suffix=bin copy=yes",
		"format=megatron seed=0 shuffle=global global_batch=512 drop_last=yes share=contiguous uneven=refuse unit=sequence start=0 axes=dp "
		"suffix=bin copy=no"};

	add_text(b, texts[which % 2]);
}

static void seed_lines(struct bytes *b, unsigned which)
{
	add_text(b, which % 2 ? "{\"a\": 1}\n\n{\"b\": 2}\nlast" : "one\ntwo\n");
}

static void seed_records(struct bytes *b, unsigned which)
{
	add(b, "abcdefghijklmnopqrstuvwxyz0123456789", 3 + 7 * (which % 5));
}

static void seed_npy(struct bytes *b, unsigned which)
{
	struct sc_buf head = {0};

	rs_npy_head(which % 2 ? "<i4 (3, 2) 24" : "|u1 () 1", 2, &head);
	add(b, head.text, head.bytes);
	add(b, "012345678901234567890123456789012345678901234567", which % 2 ? 48 : 2);
	sc_buf_done(&head);
}

static void tar_entry(struct bytes *b, char type, const char *name, const char *text, size_t bytes)
{
	uint8_t *h = b->at + b->n;
	unsigned sum = 0;

	memset(h, 0, 1024);
	(void)snprintf((char *)h, 100, "%s", name);
	(void)snprintf((char *)h + 100, 8, "%07o", 0644);
	(void)snprintf((char *)h + 108, 8, "%07o", 0);
	(void)snprintf((char *)h + 116, 8, "%07o", 0);
	(void)snprintf((char *)h + 124, 12, "%011zo", bytes);
	(void)snprintf((char *)h + 136, 12, "%011o", 0);
	memset(h + 148, ' ', 8);
	h[156] = (uint8_t)type;
	if (type == '1' || type == '2')
		(void)snprintf((char *)h + 157, 100, "a/001.txt");
	memcpy(h + 257, "ustar\00000", 8);
	for (int i = 0; i < 512; i++)
		sum += h[i];
	(void)snprintf((char *)h + 148, 8, "%06o", sum);
	memcpy(h + 512, text, strlen(text));
	b->n += *text ? 1024 : 512;
}

static void tar_member(struct bytes *b, const char *name, const char *text)
{
	tar_entry(b, '0', name, text, strlen(text));
}

static unsigned pick(size_t n);

/* Right ones, and each kind of wrong one: a header that was changed has a wrong sum, and goes no further. */
static void seed_tar(struct bytes *b, unsigned which)
{
	static char long_name[] = "a/0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000.txt";

	if (which == 3)
		tar_entry(b, 'g', "pax_global_header", "18 comment=nothing\n", 19);
	if (which == 4)
		tar_entry(b, '5', "a/", "", 0);
	if (which != 5) {
		tar_member(b, "a/001.txt", "caption");
		tar_member(b, "a/001.json", "{}");
	}
	if (which == 1)
		tar_member(b, "a/002.txt", "another");
	if (which == 0 && pick(2))
		tar_member(b, "a/001.TXT", "twice");
	if (which == 2)
		tar_entry(b, pick(2) ? '2' : '1', "a/003.txt", "", 0);
	if (which == 6)
		tar_member(b, pick(2) ? "a/nosuffix" : long_name, "text");
	if (which == 7)
		tar_entry(b, '0', "a/009.txt", "cut", 100000);
	memset(b->at + b->n, 0, 1024);
	b->n += 1024;
}

static uint32_t crc(const uint8_t *p, size_t n)
{
	uint32_t c = 0xffffffff;

	for (size_t i = 0; i < n; i++) {
		c ^= p[i];
		for (int k = 0; k < 8; k++)
			c = c >> 1 ^ (c & 1 ? 0x82f63b78 : 0);
	}
	c = ~c;
	return (c >> 15 | c << 17) + 0xa282ead8;
}

static void seed_tfrecord(struct bytes *b, unsigned which)
{
	for (uint64_t i = 0; i < 1 + which % 3; i++) {
		uint64_t n = i * 5;
		uint32_t c = crc((uint8_t *)&n, 8), d;

		add_u64(b, n);
		add(b, &c, 4);
		add(b, "some bytes of data", n);
		d = crc(b->at + b->n - n, n);
		add(b, &d, 4);
	}
}

static void seed_megatron(struct bytes *b, unsigned which)
{
	uint32_t lengths[] = {2, 0, 3};
	uint64_t pointers[] = {0, 4, 4}, documents[] = {0, 2, 3};
	size_t half;

	add(b, "MMIDIDX\0", 9);
	add_u64(b, 1);
	add(b, "\x08", 1);
	add_u64(b, 3);
	add_u64(b, 3);
	add(b, lengths, sizeof(lengths));
	add(b, pointers, sizeof(pointers));
	add(b, documents, sizeof(documents));
	half = b->n;
	memset(b->at + half, 'x', half + which % 2);
	b->n += half + which % 2;
}

static const struct target {
	const char *name;
	int (*run)(const uint8_t *p, size_t n);
	void (*seed)(struct bytes *b, unsigned which);
} targets[] = {
	{"safetensors", fuzz_safetensors, seed_safetensors}, {"layout", fuzz_layout, seed_layout},
	{"topology", fuzz_topology, seed_topology},	     {"spec", fuzz_spec, seed_spec},
	{"lines", fuzz_lines, seed_lines},		     {"records", fuzz_records, seed_records},
	{"npy", fuzz_npy, seed_npy},			     {"tar", fuzz_tar, seed_tar},
	{"tfrecord", fuzz_tfrecord, seed_tfrecord},	     {"megatron", fuzz_megatron, seed_megatron},
};
#define TARGETS (sizeof(targets) / sizeof(*targets))

/* --- changing them --- */

static uint64_t state;

static unsigned pick(size_t n)
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
#endif
