/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parsers, in libFuzzer's form: clang -fsanitize=fuzzer -DTARGET=safetensors builds one alone.
 */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meta/model/infer.h"
#include "meta/model/layout.h"
#include "meta/model/topology.h"
#include "meta/member/wire.h"
#include "reshard/codec/dcp/dcp.h"
#include "reshard/data/index.h"
#include "reshard/checkpoint/folders/folder_i.h"
#include "reshard/codec/format/format.h"
#include "reshard/checkpoint/export/shards.h"
#include "reshard/cluster/net/frame.h"
#include "tests/support/torch_text.h"

static int refused(int rc, const struct sc_err *err)
{
	if (rc < 0 && (!*err->msg || err->errnum <= 0))
		abort(); /* a refusal without a sentence */
	return rc;
}

/* Each object of a payload is a file by itself. */
static void write_objects(const struct rs_format_ops *format, const struct rs_found *found)
{
	struct rs_object *objects;
	struct sc_arena arena = {0};
	struct sc_err err = {0};
	size_t nr;
	int rc = rs_format_objects(format, found->payload, found->payload_bytes, &arena, &objects, &nr, &err);

	for (size_t i = 0; rc == 0 && i < nr; i++) {
		struct rs_file file = rs_file_in_memory("object.pt", objects[i].text, objects[i].bytes);
		struct rs_found again;

		if (!*objects[i].name || memcmp(objects[i].text, "PK", 2) != 0)
			abort();
		if (rs_format_parse(format, &file, &again, &err) == 0)
			rs_found_done(&again);
		else if (err.code != SC_E_UNSUPPORTED && err.code != SC_E_LIMIT && err.code != SC_E_FORMAT)
			abort();
	}
	if (rc < 0 && !*err.msg)
		abort(); /* a refusal without a sentence */
	sc_arena_done(&arena);
}

/* header and body of a frame; what is taken says the same again */
int fuzz_frame(const uint8_t *p, size_t n)
{
	static uint8_t again[RS_FRAME_HEADER + RS_FRAME_BODY_MAX], head[RS_FRAME_HEADER];
	static struct rs_net_frame f;
	struct sc_err err = {0};
	int rc;

	if (n < RS_FRAME_HEADER)
		return -1;
	memcpy(head, p, sizeof(head));
	rc = rs_frame_header(head, &f, &err);
	if (rc < 0)
		return refused(rc, &err);
	if (f.body_bytes > n - RS_FRAME_HEADER)
		return -1;
	rc = rs_frame_body(&f, p + RS_FRAME_HEADER, &err);
	if (rc < 0)
		return refused(rc, &err);
	if (rs_frame_format(&f, again, &err) != (int)(RS_FRAME_HEADER + f.body_bytes) ||
	    memcmp(again + RS_FRAME_HEADER, p + RS_FRAME_HEADER, f.body_bytes) != 0)
		abort();
	(void)(f.kind == RS_FRAME_PULL && rs_pull_fits(&f.pull, 1ull << 40));
	return 0;
}

/* an answer of etcd: of a transaction, a page, a watch, a lease */
int fuzz_etcd(const uint8_t *p, size_t n)
{
	struct meta_op get[2] = {{.what = META_GET, .key = {.kind = META_KEY_HEAD, .job = 7}}, {.what = META_LIST, .range = META_RANGE_NODES}};
	struct meta_txn txn = {.then = get, .nr_then = 2, .otherwise = get, .nr_else = 1};
	const char *next, *json = (const char *)p;
	struct sc_arena arena = {0};
	struct meta_watched w;
	struct meta_answer a;
	struct sc_err err = {0};
	uint64_t lease, ttl;
	char text[100];
	int taken = 0, code;

	taken += refused(meta_wire_txn_answer("c", &txn, json, n, &arena, &a, &err), &err) == 0;
	taken += refused(meta_wire_page_answer("c", json, n, &arena, &a, &next, &err), &err) == 0;
	taken += refused(meta_wire_watched("c", json, n, &arena, &w, &err), &err) == 0;
	taken += refused(meta_wire_lease_answer(json, n, &lease, &ttl, &err), &err) == 0;
	taken += meta_wire_error(json, n, &code, text, sizeof(text));
	sc_arena_done(&arena);
	return taken ? 0 : -1;
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
	    !again.payload != !found->payload || again.payload_bytes != found->payload_bytes ||
	    (again.payload && memcmp(again.payload, found->payload, found->payload_bytes) != 0))
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
	if (rc == 0) {
		lay_out_again(format, &found);
		write_objects(format, &found);
	}
	rs_found_done(&found);
	return refused(rc, &err);
}

int fuzz_safetensors(const uint8_t *p, size_t n)
{
	return fuzz_format(rs_format_find("safetensors"), p, n);
}

int fuzz_torch(const uint8_t *p, size_t n)
{
	struct rs_window w = window_in_memory(p, n);
	struct rs_torch torch;
	struct sc_err err = {0};
	int rc = rs_torch_read(&w, &torch, &err);

	for (size_t i = 0; rc == 0 && i < torch.tensors.nr; i++) {
		const struct rs_torch_tensor *t = &torch.tensors.at[i];

		if (t->at > n || torch_extent(t) > n - t->at)
			abort(); /* accepted, and leads outside */
	}
	if (rc == 0)
		rs_torch_done(&torch);
	(void)fuzz_format(rs_format_find("torch"), p, n);
	return refused(rc, &err);
}

/* The pieces that a folder would have, without its files. */
static struct rs_placed_tensor pieces(struct rs_folder_reading *r, const struct rs_dcp_tensor *t)
{
	struct rs_placed_tensor p = {.boxes = sc_arena_array(&r->to->arena, t->nr + 1, sizeof(*p.boxes))};

	for (uint64_t i = 0; p.boxes && i < t->nr; i++) {
		struct rs_placed_box x = {.box.nr = (uint8_t)t->dims, .file = t->chunks[i].file, .place = {.id = 1, .bytes = INT64_MAX}};
		uint64_t stride = 1;
		bool some = true;

		for (uint32_t k = t->dims; k-- > 0; stride *= t->chunks[i].ext[k]) {
			x.box.off[k] = t->chunks[i].off[k];
			x.box.ext[k] = t->chunks[i].ext[k];
			x.box.stride[k] = stride;
			some &= x.box.ext[k] > 0;
		}
		x.place.at = i << 32;
		if (some)
			p.boxes[p.nr++] = x;
	}
	return p;
}

/* Parameters that are found in buckets are whole (rs_folder_add() checks it), and their bytes are in the buckets. */
static void find_buckets(const struct rs_dcp *dcp)
{
	struct sc_err err = {0};
	struct rs_folder_reading r = {.budget = 1 << 16, .err = &err, .to = calloc(1, sizeof(*r.to))};
	struct rs_placed_tensor *flat = calloc(dcp->tensors.nr + 1, sizeof(*flat));
	int rc = 0;

	r.to->refs = 1;
	r.to->file = "f";
	for (size_t i = 0; rc == 0 && i < dcp->tensors.nr; i++) {
		const struct rs_dcp_tensor *t = &dcp->tensors.at[i];
		struct meta_shape shape = {.nr = (uint8_t)t->dims};

		if (t->dims)
			memcpy(shape.dim, t->shape, t->dims * sizeof(*t->shape));
		flat[i] = pieces(&r, t);
		if (!rs_folder_is_bucket(t->name))
			rc = rs_folder_add(&r, t->name, t->dtype, &shape, flat[i]);
	}
	if (rc == 0)
		rc = rs_folder_add_buckets(&r, dcp, flat);
	(void)refused(rc, &err);
	free(flat);
	sc_arena_done(&r.arena);
	rs_folder_unref(r.to);
}

int fuzz_dcp(const uint8_t *p, size_t n)
{
	struct rs_dcp dcp;
	struct sc_err err = {0};
	int rc = rs_dcp_read(p, n, &dcp, &err);

	for (size_t i = 0; rc > 0 && i < dcp.tensors.nr; i++)
		for (uint64_t k = 0; k < dcp.tensors.at[i].nr; k++)
			if (strncmp(dcp.tensors.at[i].chunks[k].file, "../", 3) == 0 ||
			    strstr(dcp.tensors.at[i].chunks[k].file, "/../") || dcp.tensors.at[i].chunks[k].file[0] == '/')
				abort(); /* accepted, and leads outside */
	if (rc > 0) {
		find_buckets(&dcp);
		rs_dcp_done(&dcp);
	}
	return rc < 0 ? refused(rc, &err) : rc == 0;
}

static int on_pickled(void *arg, struct rs_pickle_walk *walk, struct rs_pickled *n)
{
	struct sc_buf path = {0};

	rs_pickle_path(walk, &path);
	*(size_t *)arg += path.bytes + (n->kind == RS_PICKLED_TEXT ? n->bytes.nr : 0);
	sc_buf_done(&path);
	return 0;
}

/* What is written again, and read, is written as the same bytes. */
static int emit_again(struct rs_pickled *root, struct sc_err *err)
{
	struct sc_buf first = {0}, second = {0};
	struct rs_pickle again;
	int rc = rs_pickle_emit(root, NULL, NULL, &first, err);

	if (rc == 0) {
		if (rs_pickle_read(first.text, first.bytes, &again, err) < 0 ||
		    rs_pickle_emit(again.root, NULL, NULL, &second, err) < 0 || first.bytes != second.bytes ||
		    memcmp(first.text, second.text, first.bytes) != 0)
			abort();
		rs_pickle_done(&again);
	}
	sc_buf_done(&first);
	sc_buf_done(&second);
	return rc;
}

int fuzz_pickle(const uint8_t *p, size_t n)
{
	struct rs_pickle pickle;
	struct sc_err err = {0};
	size_t sum = 0;
	int rc = rs_pickle_read(p, n, &pickle, &err);

	if (rc == 0) {
		rc = rs_pickle_walk(&pickle, on_pickled, &sum, &err);
		if (rc == 0)
			rc = emit_again(pickle.root, &err);
		rs_pickle_done(&pickle);
	}
	__asm__ volatile("" ::"r"(sum));
	return refused(rc, &err);
}

static char *text_of(const uint8_t *p, size_t n)
{
	char *text = malloc(n + 1);

	memcpy(text, p, n);
	text[n] = 0;
	return text;
}

static void add_tensor(struct meta_state *state, const char *name, uint64_t a, uint64_t b)
{
	struct meta_shape shape = {.nr = b ? 2 : 1, .dim = {a, b}};

	if (meta_state_add(state, name, strlen(name), META_DTYPE_F32, &shape) < 0)
		abort();
}

/* Each box lies inside of its tensor and of what is stored. */
static void check_stored(const struct meta_state *state, const struct meta_stored *s)
{
	const struct meta_tensor *t = &state->tensors[s->entry->tensor];
	uint64_t all;

	if (!meta_shape_elements(&s->piece.shape, &all))
		abort();
	for (uint32_t k = 0; k < s->piece.nr_boxes; k++) {
		const struct meta_box *b = &s->piece.boxes[k];
		uint64_t last = b->at;

		for (int d = 0; d < b->nr; d++) {
			last += (b->ext[d] - 1) * b->stride[d];
			if (!b->ext[d] || b->off[d] + b->ext[d] > t->shape.dim[d])
				abort();
		}
		if (last >= all)
			abort();
	}
}

/* Places a small model, and infers it back. */
static void place_model(const struct meta_layout *layout)
{
	struct meta_state state = {0}, back = {0};
	struct meta_topology topo = {0};
	struct meta_view *view = NULL;
	struct sc_arena arena = {0};
	struct meta_written *w = calloc(4096, sizeof(*w));
	struct sc_err err = {0};
	char text[100];
	size_t nr = 0;
	int rc;

	for (int i = 0; i < 2; i++) {
		add_tensor(&state, i ? "o.st:o.m.w" : "m.st:w", 6, 4);
		add_tensor(&state, i ? "o.st:o.m.b" : "m.st:b", 5, 0);
		add_tensor(&state, i ? "o.st:o.m.l.1.q" : "m.st:l.0.q", 8, 3);
		add_tensor(&state, i ? "o.st:o.m.l.1.k" : "m.st:l.0.k", 4, 3);
		add_tensor(&state, i ? "m.st:l.0.s" : "m.st:l.1.s", 3, 8);
		add_tensor(&state, i ? "m.st:huge" : "m.st:empty", i ? UINT64_C(1) << 60 : 0, 2);
	}
	(void)snprintf(text, sizeof(text), "%s=2", layout->axes.name[layout->meshes[0].at[0].axis]);
	rc = meta_topology_parse(layout, text, &topo, &err);
	if (rc == 0 && topo.ranks <= 64)
		rc = meta_view_new(layout, &topo, &state, &view, &err);
	for (uint32_t rank = 0; view && rc == 0 && rank < topo.ranks; rank++) {
		struct meta_stored_list list = {0};

		rc = meta_view_rank(view, rank, NULL, &arena, &list, &err);
		for (size_t i = 0; rc == 0 && i < list.nr; i++) {
			check_stored(&state, &list.at[i]);
			if (list.at[i].part == 0 && nr < 4096)
				w[nr++] = (struct meta_written){rank, list.at[i].file, list.at[i].name, META_DTYPE_F32,
								list.at[i].piece.shape, 0};
		}
		sc_vec_done(&list);
	}
	(void)refused(rc, &err);
	if (view && rc == 0) {
		rc = meta_infer(layout, &topo, w, nr, &state, &back, &err);
		(void)refused(rc, &err);
	}
	meta_state_done(&back);
	meta_view_free(view);
	meta_topology_done(&topo);
	meta_state_done(&state);
	sc_arena_done(&arena);
	free(w);
}

int fuzz_layout(const uint8_t *p, size_t n)
{
	struct meta_layout *layout = NULL;
	struct sc_err err = {0};
	char *text = text_of(p, n);
	int rc = meta_layout_parse(text, NULL, NULL, &layout, &err);

	free(text);
	if (rc == 0)
		place_model(layout);
	meta_layout_free(layout);
	return refused(rc, &err);
}

struct mapped {
	struct sc_arena arena;
	struct {
		struct rs_sharded *at;
		size_t nr, room;
	} tensors;
};

static int on_sharded(void *arg, const struct rs_sharded *t)
{
	struct mapped *m = arg;
	struct rs_sharded copy = {sc_arena_copy(&m->arena, t->name, strlen(t->name)),
				  sc_arena_copy(&m->arena, t->file, strlen(t->file))};

	if (sc_vec_push(&m->tensors, copy) < 0)
		abort();
	return 0;
}

static void mapped_done(struct mapped *m)
{
	sc_vec_done(&m->tensors);
	sc_arena_done(&m->arena);
}

/* What was read of an index, written and read again, is the same, in the order of names. */
int fuzz_shards(const uint8_t *p, size_t n)
{
	struct mapped first = {0}, again = {0};
	struct sc_err err = {0};
	struct sc_buf text = {0};
	int rc = rs_shards_read((const char *)p, n, on_sharded, &first, &err);

	if (rc == 0) {
		if (rs_shards_index(first.tensors.at, first.tensors.nr, 7, &text, &err) < 0 ||
		    rs_shards_read(text.text, text.bytes, on_sharded, &again, &err) < 0 || again.tensors.nr != first.tensors.nr)
			abort();
		for (size_t i = 0; i < first.tensors.nr; i++) {
			size_t k = 0;

			while (k < again.tensors.nr && strcmp(again.tensors.at[k].name, first.tensors.at[i].name) != 0)
				k++;
			if (k == again.tensors.nr || strcmp(again.tensors.at[k].file, first.tensors.at[i].file) != 0)
				abort();
		}
	}
	sc_buf_done(&text);
	mapped_done(&first);
	mapped_done(&again);
	return refused(rc, &err);
}

int fuzz_topology(const uint8_t *p, size_t n)
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

int fuzz_spec(const uint8_t *p, size_t n)
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

int fuzz_lines(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_LINES, false);
}
int fuzz_records(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_RECORDS, false);
}
int fuzz_npy(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_NPY, false);
}
int fuzz_tar(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_TAR, false);
}
int fuzz_tfrecord(const uint8_t *p, size_t n)
{
	return fuzz_index(p, n, RS_DATA_TFRECORD, false);
}
int fuzz_megatron(const uint8_t *p, size_t n)
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
#endif
