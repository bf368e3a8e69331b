/* SPDX-License-Identifier: Apache-2.0 */
/* What each parser takes, and what it should refuse. */
#include "tests/fuzz/fuzz.h"

#include "reshard/codec/dcp/dcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/data/index.h"
#include "reshard/cluster/net/frame.h"
#include "tests/support/torch_archive.h"

void add(struct bytes *b, const void *p, size_t n)
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

void seed_frame(struct bytes *b, unsigned which)
{
	static const uint8_t kinds[] = {RS_FRAME_HELLO, RS_FRAME_REFUSED, RS_FRAME_HIDDEN, RS_FRAME_PULL, RS_FRAME_DATA, RS_FRAME_CANCEL};
	static uint8_t bytes[RS_FRAME_HEADER + RS_FRAME_BODY_MAX];
	struct rs_net_frame f = {.protocol = 1, .kind = kinds[which % sizeof(kinds)], .id = which};
	struct sc_err err;
	int n;

	if (f.kind == RS_FRAME_HELLO)
		f.hello = (struct rs_hello){.step = 1, .node = 5};
	else if (f.kind == RS_FRAME_REFUSED)
		f.message = (struct rs_frame_message){.job = 7, .code = 16, .text = "4 files are uncommitted"};
	else if (f.kind == RS_FRAME_PULL)
		f.pull = (struct rs_pull){.job = 7, .file = "model.safetensors", .tensor = "h.0.w", .run = 64, .nr = 2, .extent = {3, 4},
					  .stride = {4096, 128}, .bytes = 768, .deadline_ms = 1000};
	if (f.kind == RS_FRAME_PULL && which / sizeof(kinds) % 2) {
		f.pull = (struct rs_pull){.file = "4711", .tensor = "of 3", .deadline_ms = 3000};
		rs_pull_of_file(&f.pull, 65536, 65536, 1 << 20);
	}
	n = rs_frame_format(&f, bytes, &err);
	add(b, bytes, n > 0 ? (size_t)n : 0);
}

void seed_etcd(struct bytes *b, unsigned which)
{
	static const char *const answers[] = {
		"{\"header\":{\"revision\":\"9\"},\"succeeded\":true,\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":"
		"\"L3NjYWxhaS9jL2FsbC9qb2JzLzAwMDAwMDAwMDAwMDAwMDcvc2hvd24=\",\"create_revision\":\"3\",\"mod_revision\":\"8\","
		"\"value\":\"bnIgMQo=\"}]}},{\"response_range\":{}}]}",
		"{\"header\":{\"revision\":\"9\"},\"kvs\":[{\"key\":\"L3NjYWxhaS9jL2FsbC90aWNr\",\"mod_revision\":\"4\"}],\"more\":true}",
		"{\"result\":{\"header\":{\"revision\":\"9\"},\"events\":[{\"type\":\"DELETE\",\"kv\":{\"key\":"
		"\"L3NjYWxhaS9jL2FsbC90aWNr\",\"mod_revision\":\"4\"}}]}}",
		"{\"result\":{\"ID\":\"7587\",\"TTL\":\"10\"}}",
		"{\"error\":\"etcdserver: requested lease not found\",\"code\":5}",
	};

	add_text(b, answers[which % 5]);
}

void seed_safetensors(struct bytes *b, unsigned which)
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

#define T(text) text, sizeof(text) - 1

static const struct {
	const char *at;
	size_t n;
} pickles[] = {
	{T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\0K\4\x85K\1\x85"))},
	{T(ARCHIVE_TENSOR(ARCHIVE_STORAGE("HalfStorage", "U\0010", "K\10"), "K\1(K\2K\3e]q\1(K\3K\1e"))},
	{T("\x80\4\x95\x10\0\0\0\0\0\0\0}\x94\x8c\1a\x94]\x94(K\1J\xff\xff\xff\xffG@\x09\x21\xfbTD\x2d\x18\x8a\2\x12\x34" "es.")},
	{T("\x80\2ccollections\nOrderedDict\n)Rq\0(X\1\0\0\0bh\0\x8fq\1(K\1\x90NU\1k\x88u}(K\1K\2ub.")},
};

void seed_pickle(struct bytes *b, unsigned which)
{
	add(b, pickles[which % 4].at, pickles[which % 4].n);
}

void seed_torch(struct bytes *b, unsigned which)
{
	static struct archive a;

	archive_make_of(&a, pickles[which % 4].at, pickles[which % 4].n);
	add(b, a.bytes, a.nr);
}

/* A tensor whose chunks are `nr` times offsets, then extents. */
static struct rs_dcp_tensor chunked(const char *name, uint32_t dims, const uint64_t *shape, uint64_t *numbers, uint64_t nr,
				    struct rs_dcp_chunk *chunks)
{
	for (uint64_t i = 0; i < nr; i++)
		chunks[i] = (struct rs_dcp_chunk){numbers + 2 * dims * i, numbers + 2 * dims * i + dims, "__0_0.distcp", 2048 * i, 2000};
	return (struct rs_dcp_tensor){name, META_DTYPE_F32, dims, shape, nr, chunks};
}

/* Two ranks of a small model, and the buckets of their optimizer, as Megatron writes them. */
static void seed_buckets(struct bytes *b)
{
	static uint64_t emb[] = {0, 0, 4, 4, 4, 0, 4, 4}, norm[] = {0, 4};
	static uint64_t fc2[] = {0, 0, 0, 1, 4, 3, 0, 0, 3, 1, 4, 3, 1, 0, 0, 1, 4, 3, 1, 0, 3, 1, 4, 3};
	static uint64_t flat[] = {0, 4, 4, 60, 64, 12, 76, 28, 104, 24, 128, 12, 140, 52, 192, 16};
	static const uint64_t shapes[][3] = {{8, 4}, {4}, {2, 4, 6}, {208}};
	struct rs_dcp_chunk chunks[5][8];
	struct rs_dcp dcp = {0};
	struct sc_buf text = {0};
	struct sc_err err;

	(void)sc_vec_push(&dcp.tensors, chunked("embedding.word_embeddings.weight", 2, shapes[0], emb, 2, chunks[0]));
	(void)sc_vec_push(&dcp.tensors, chunked("decoder.layers.mlp.linear_fc2.weight", 3, shapes[2], fc2, 4, chunks[1]));
	(void)sc_vec_push(&dcp.tensors, chunked("decoder.final_layernorm.weight", 1, shapes[1], norm, 1, chunks[2]));
	(void)sc_vec_push(&dcp.tensors, chunked("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(x, y).bucket_idx_0.exp_avg", 1,
						shapes[3], flat, 8, chunks[3]));
	(void)sc_vec_push(&dcp.tensors, chunked("optimizer.distributed.dp_group_idx_1.gbuf_idx_0.dtype_(x, y).bucket_idx_0.exp_avg", 1,
						shapes[3], flat, 8, chunks[4]));
	if (rs_dcp_emit(&dcp, &text, &err) < 0 || text.bytes > INPUT_MAX - b->n)
		abort();
	memcpy(b->at + b->n, text.text, text.bytes);
	b->n += text.bytes;
	sc_buf_done(&text);
	sc_vec_done(&dcp.tensors);
}

/* One that torch wrote, and one as Megatron does. */
void seed_dcp(struct bytes *b, unsigned which)
{
	FILE *f;

	if (which % 2) {
		seed_buckets(b);
		return;
	}
	f = fopen(SAMPLE "/.metadata", "re");
	b->n += f ? fread(b->at + b->n, 1, INPUT_MAX - b->n, f) : 0;
	if (!f || fclose(f) != 0)
		abort();
}

void seed_layout(struct bytes *b, unsigned which)
{
	static const char *const texts[] = {
		"use megatron-gpt vocab=300 tied=embedding.word_embeddings.weight\n",
		"mesh tp cp dp pp\nmesh etp=tp ep edp=* pp\n$n = 4\nopt.{K}.{P} like={P} flat dp=0 pad=lcm(4)\n"
		"emb stage=first tp=0 pad=128 size=$n\nl.{L}.qkv tp=0 sections=2:1:1\nl.{L}.x.{E}.up etp=0 sections=1:1\nl.{L}.norm* copy\n",
		"use replicated\nplain *adapter*\n*.bias copy\n# a comment\nhead stage=last tp=0 tied=emb\n",
		"mesh tp dp\no.{K}.{P} like={P}\nz.{B}.{K} join=!o.{K}.b,o.{K}.* order=reverse align=4 bucket=20 alone=*w dp=0 pad=lcm(8)\n"
		"f.{G} join=l.{G}.q,l.{G}.k order=listed over=0 strip\nl.{G}.q tp=0\nl.{G}.k tp=0 upto=2\nw tp=0 sections=2:1 upto=-:1\n"
		"s stack={G} name=l.{G}.s tp=-1\n* copy\n"};

	add_text(b, texts[which % 4]);
}

void seed_topology(struct bytes *b, unsigned which)
{
	static const char *const texts[] = {"tp=4 pp=2 dp=2", "tp=2,pp=4,vp=2,stages=3+3+2+1+1+1+1+1", "ep=4 etp=1 dp=8 order=tp-cp-ep-dp-pp", "cp=2"};

	add_text(b, texts[which % 4]);
}

void seed_shards(struct bytes *b, unsigned which)
{
	static const char *const texts[] = {
		"{\"metadata\": {\"total_size\": 48}, \"weight_map\": {\"lm_head.weight\": \"model-00002-of-00002.safetensors\", "
		"\"model.layers.0.mlp.down_proj.weight\": \"model-00001-of-00002.safetensors\"}}\n",
		"{\"weight_map\": {}}", "{\"weight_map\": {\"\\u00e9\": \"a\", \"\": \"\"}, \"more\": [1, [2.5e3, null], true]}"};

	add_text(b, texts[which % 3]);
}

void seed_spec(struct bytes *b, unsigned which)
{
	static const char *const texts[] = {
		"format=records seed=5 shuffle=block=16 global_batch=8 drop_last=no share=strided uneven=pad record=4 head=2 start=3 axes=dp,ep "
		"suffix=bin copy=yes",
		"format=megatron seed=0 shuffle=global global_batch=512 drop_last=yes share=contiguous uneven=refuse unit=sequence start=0 axes=dp "
		"suffix=bin copy=no"};

	add_text(b, texts[which % 2]);
}

void seed_lines(struct bytes *b, unsigned which)
{
	add_text(b, which % 2 ? "{\"a\": 1}\n\n{\"b\": 2}\nlast" : "one\ntwo\n");
}

void seed_records(struct bytes *b, unsigned which)
{
	add(b, "abcdefghijklmnopqrstuvwxyz0123456789", 3 + 7 * (which % 5));
}

void seed_npy(struct bytes *b, unsigned which)
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

/* Right ones, and each kind of wrong one: a header that was changed has a wrong sum, and goes no further. */
void seed_tar(struct bytes *b, unsigned which)
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

void seed_tfrecord(struct bytes *b, unsigned which)
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

void seed_megatron(struct bytes *b, unsigned which)
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
