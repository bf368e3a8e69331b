/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds over random jobs, whose files lie in memory: executed with memcpy they write the bytes that the host engine
 * writes, and each of them holds to what rounds.h says:
 *   - extents fit their windows, apart from each other, at the byte of 16 at which they are in their files;
 *   - boxes are inside of extents and parts, and no two have a byte of a target; a byte that is in none is made 0;
 *   - what a peer sends is what the other one receives;
 *   - each byte of a file is written once; each byte of a source is read at most once, and if all ranks are written,
 *     what is read is what is needed, and padding between that.
 * Prints the seed and the job when one fails; SEED=n repeats it, ROUNDS=n makes as many.
 */
#include "tests/prop/jobs.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/every.h"
#include "tests/support/kinds/rounds.h"

#ifndef JOBS
#define JOBS 5000
#endif
#ifndef PEERS_MAX
#define PEERS_MAX 5
#endif
#define FILES_MAX 512
#define RANKS_MAX 24

static unsigned long seed = 1, job;
static struct {
	uint64_t rounds, boxes, sent, zeros, exact, bytes, rest, needed, read;
} seen;

#define broken(fmt, ...) fail_msg("seed %lu job %lu: " fmt, seed, job, ##__VA_ARGS__)
#define must_be(what)                                                                              \
	do {                                                                                       \
		if (!(what))                                                                       \
			broken("line %d: %s", __LINE__, #what);                                    \
	} while (0)
#define good(rc, err)                                                                              \
	do {                                                                                       \
		if ((rc) < 0)                                                                      \
			broken("%s: %s", #rc, (err).msg);                                          \
	} while (0)

/* --- a job in memory: files of ranks with tensors at any byte, and what counts their bytes --- */

struct memory_file {
	struct rs_bytes bytes;
	uint32_t rank;
	char name[20];
	uint8_t *held, *needed, *read;	/* of each byte: it is no padding; a copy reads it; how often it was read */
};

static struct {
	struct meta_layout *layout;
	struct meta_state state;
	struct meta_topology from_topo, to_topo;
	struct meta_view *from, *to;
	struct memory_file files[FILES_MAX];
	size_t nr_files;
	struct sc_arena arena;
	struct sc_map places;		/* "rank file name" -> struct rs_place */
	const struct rs_image *images[FILES_MAX];
	uint8_t *written[FILES_MAX];	/* of each byte of an image: how often */
	size_t nr_images;
	bool all;			/* all ranks are written */
} w;

static int memory_open(void *arg, uint64_t id, uint64_t bytes, struct rs_bytes **ret, struct sc_err *err)
{
	(void)arg;
	(void)err;
	must_be(id < w.nr_files && w.files[id].bytes.bytes == bytes);
	*ret = &w.files[id].bytes;
	return 0;
}

static void memory_close(void *arg, struct rs_bytes *b)
{
	(void)arg;
	(void)b;
}

/* No run is so long that the host engine reads it by a descriptor. */
static int memory_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	(void)b;
	(void)ret_fd;
	return sc_fail(err, SC_E_SYSTEM, "a file in memory has no descriptor");
}

static const struct rs_source_ops memory = {.name = "memory", .open = memory_open, .close = memory_close, .fd = memory_fd};

static const char *key_of(struct sc_arena *arena, uint32_t rank, const char *file, const char *name)
{
	return sc_arena_printf(arena, "%u %s %s", rank, file, name);
}

static struct memory_file *file_of(uint32_t rank, const char *name)
{
	struct memory_file *f = w.files;

	while (f < w.files + w.nr_files && (f->rank != rank || strcmp(f->name, name) != 0))
		f++;
	if (f == w.files + w.nr_files) {
		must_be(w.nr_files++ < FILES_MAX);
		*f = (struct memory_file){.bytes.ops = &memory, .rank = rank};
		(void)snprintf(f->name, sizeof(f->name), "%s", name);
		f->bytes.bytes = pick(100);
	}
	return f;
}

static void mark_bytes(const struct rs_copy *c, int k, uint8_t *at, const uint64_t *stride)
{
	if (k == c->nr)
		memset(at, 1, c->run);
	for (uint64_t i = 0; k < c->nr && i < c->ext[k]; i++)
		mark_bytes(c, k + 1, at + i * stride[k], stride);
}

/* Tensors begin at multiples of a power of 2: often aligned, often not. */
static struct rs_place *place(uint32_t rank, const struct meta_stored *s)
{
	struct memory_file *f = file_of(rank, s->file);
	struct rs_place *p = sc_arena_alloc(&w.arena, sizeof(*p));
	const uint64_t align = 1u << pick(6);
	const char *key = key_of(&w.arena, rank, s->file, s->name);
	uint64_t bytes;

	must_be(meta_tensor_bytes(w.state.tensors[s->entry->tensor].dtype, &s->piece.shape, &bytes));
	f->bytes.bytes = (f->bytes.bytes + align - 1) / align * align;
	*p = (struct rs_place){&memory, NULL, (uint64_t)(f - w.files), 0, f->bytes.bytes};
	f->bytes.bytes += bytes;
	must_be(sc_map_put(&w.places, key, strlen(key), p) == 0);
	return p;
}

/* Marks what boxes have of a stored tensor, but rows of padding: its copy from itself says where they are. */
static void hold(const struct meta_stored *s, const struct rs_place *p)
{
	const unsigned bits = meta_dtype_bits(w.state.tensors[s->entry->tensor].dtype);
	struct rs_gather g = {0};

	for (uint32_t k = 0; k < s->piece.nr_boxes && bits % 8 == 0 && !s->entry->behind; k++)
		must_be(rs_gather_add(&g, 0, &s->piece.boxes[k], &s->piece.boxes[k], bits / 8) == 0);
	for (uint32_t k = 0; k < g.nr; k++)
		mark_bytes(&g.copies[k], 0, w.files[p->id].held + p->at + g.copies[k].from, g.copies[k].from_stride);
	rs_gather_done(&g);
}

static void make_files(void)
{
	struct meta_stored_list lists[RANKS_MAX] = {0};
	const struct rs_place **places = sc_arena_array(&w.arena, 100000, sizeof(*places));
	struct sc_err err;
	size_t nr = 0;

	for (uint32_t r = 0; r < w.from_topo.ranks; r++) {
		good(meta_view_rank(w.from, r, NULL, &w.arena, &lists[r], &err), err);
		for (size_t i = 0; i < lists[r].nr; i++)
			places[nr++] = place(r, &lists[r].at[i]);
	}
	for (size_t i = 0; i < w.nr_files; i++) {
		struct memory_file *f = &w.files[i];
		unsigned char *bytes = malloc(f->bytes.bytes + 1);

		for (uint64_t k = 0; k < f->bytes.bytes; k++)
			bytes[k] = (unsigned char)pick(256);
		f->bytes.map = bytes;
		f->held = calloc(f->bytes.bytes + 1, 1);
		f->needed = calloc(f->bytes.bytes + 1, 1);
		f->read = calloc(f->bytes.bytes + 1, 1);
	}
	nr = 0;
	for (uint32_t r = 0; r < w.from_topo.ranks; r++) {
		for (size_t i = 0; i < lists[r].nr; i++)
			hold(&lists[r].at[i], places[nr++]);
		sc_vec_done(&lists[r]);
	}
}

/* --- what images ask --- */

static const struct meta_view *view_of(void *arg, const struct meta_tensor *t)
{
	(void)arg;
	(void)t;
	return w.from;
}

static const struct rs_format_ops *format_of(void *arg, const struct meta_view *stored)
{
	(void)arg;
	(void)stored;
	return rs_format_find("safetensors");
}

static uint64_t no_payload_of(void *arg, const struct meta_view *v, uint32_t rank, const char *file, const struct meta_tensor *like)
{
	(void)arg, (void)v, (void)rank, (void)file, (void)like;
	return 0;
}

static int no_payload(const struct rs_origins *o, uint64_t nr, const struct meta_tensor *like, struct sc_arena *arena,
		      const char **ret, size_t *ret_bytes, struct sc_err *err)
{
	(void)o, (void)nr, (void)like, (void)arena, (void)err;
	*ret = NULL;
	*ret_bytes = 0;
	return 0;
}

static uint32_t skew_of(void *arg, const struct meta_tensor *t)
{
	(void)arg;
	return (uint32_t)(t - w.state.tensors) % 8;
}

static int place_sources(void *arg, struct rs_gather *gathers, uint32_t nr, struct rs_sources *sources, struct sc_err *err)
{
	struct sc_arena arena = {0};

	(void)arg;
	(void)gathers;
	(void)nr;
	(void)err;
	for (size_t i = 0; i < sources->nr; i++) {
		struct rs_source *s = &sources->at[i];
		const char *key = key_of(&arena, s->rank, s->file, s->name);
		const struct rs_place *p = sc_map_get(&w.places, key, strlen(key));

		must_be(p != NULL);
		s->place = *p;
		s->place.bytes = w.files[p->id].bytes.bytes;
	}
	sc_arena_done(&arena);
	return 0;
}

static const struct rs_origins origins = {
	.view_of = view_of, .format_of = format_of, .payload_of = no_payload_of, .payload = no_payload, .skew_of = skew_of,
	.place = place_sources,
};

/* --- images, and what they need --- */

static int add_image(void *arg, const char *file, const char *logical)
{
	struct rs_image *im;
	struct sc_err err;

	(void)logical;
	if (!w.all && pick(3) == 0)
		return 0;
	good(rs_image_new(w.to, *(uint32_t *)arg, file, true, &origins, &im, &err), err);
	good(rs_image_open(im, &origins, &err), err);
	for (uint32_t i = 0; i < im->nr; i++)
		for (uint32_t k = 0; k < im->gathers[i].nr; k++) {
			const struct rs_copy *c = &im->gathers[i].copies[k];
			const struct rs_place *p = &im->sources.at[c->source].place;

			must_be(c->rows > 0);
			mark_bytes(c, 0, w.files[p->id].needed + p->at + c->from, c->from_stride);
		}
	must_be(w.nr_images < FILES_MAX);
	w.written[w.nr_images] = calloc(im->bytes + 1, 1);
	w.images[w.nr_images++] = im;
	return 0;
}

/* A topology that this layout takes, and its view. */
static bool show(struct meta_topology *topo, struct meta_view **ret)
{
	struct sc_err err;
	char text[100];

	for (int tries = 0; tries < 30; tries++) {
		random_topology(text, sizeof(text));
		if (meta_topology_parse(w.layout, text, topo, &err) < 0)
			continue;
		if (topo->ranks <= RANKS_MAX && meta_view_new(w.layout, topo, &w.state, ret, &err) == 0)
			return true;
		meta_topology_done(topo);
	}
	return false;
}

static bool make_job(void)
{
	static const enum meta_dtype dtypes[] = {META_DTYPE_U8, META_DTYPE_BF16, META_DTYPE_F32, META_DTYPE_F64, META_DTYPE_F4};
	struct sc_err err;
	char text[2000];

	memset(&w, 0, sizeof(w));
	random_layout(text, sizeof(text));
	good(meta_layout_parse(text, NULL, NULL, &w.layout, &err), err);
	random_tensors(&w.state, dtypes[pick(16) ? pick(4) : 4], 1 + pick(2) * 2 * pick(8));
	if (!show(&w.from_topo, &w.from) || !show(&w.to_topo, &w.to))
		return false;
	make_files();
	w.all = pick(2);
	for (uint32_t r = 0; r < w.to_topo.ranks; r++)
		(void)meta_view_files(w.to, r, add_image, &r);
	return w.nr_images > 0;
}

static void end_job(void)
{
	for (size_t i = 0; i < w.nr_images; i++) {
		rs_image_free((struct rs_image *)w.images[i]);
		free(w.written[i]);
	}
	for (size_t i = 0; i < w.nr_files; i++) {
		free((void *)w.files[i].bytes.map);
		free(w.files[i].held);
		free(w.files[i].needed);
		free(w.files[i].read);
	}
	meta_view_free(w.from);
	meta_view_free(w.to);
	if (w.from)
		meta_topology_done(&w.from_topo);
	if (w.to)
		meta_topology_done(&w.to_topo);
	meta_state_done(&w.state);
	meta_layout_free(w.layout);
	sc_map_done(&w.places);
	sc_arena_done(&w.arena);
}

/* --- each round holds to what it promises --- */

/* Counts the bytes of a range; all of it is below `end`. */
static void mark(uint8_t *of, uint64_t end, uint64_t at, uint64_t bytes)
{
	must_be(bytes > 0 && at <= end && bytes <= end - at);
	for (uint64_t i = 0; i < bytes; i++)
		of[at + i]++;
}

static void mark_box(uint8_t *of, uint64_t end, const struct rs_copy *c, int k, uint64_t at, const uint64_t *stride)
{
	if (k == c->nr)
		mark(of, end, at, c->run);
	for (uint64_t i = 0; k < c->nr && i < c->ext[k]; i++)
		mark_box(of, end, c, k + 1, at + i * stride[k], stride);
}

static void expect_there(const uint8_t *from, uint64_t end, const struct rs_copy *c, int k, uint64_t at)
{
	if (k == c->nr)
		must_be(at <= end && c->run <= end - at && !memchr(from + at, 0, c->run));
	for (uint64_t i = 0; k < c->nr && i < c->ext[k]; i++)
		expect_there(from, end, c, k + 1, at + i * c->from_stride[k]);
}

/* Boxes read only what is there, and no byte of a target is written twice. */
static void expect_boxes(const struct rs_copy *boxes, uint32_t nr, const uint8_t *from, uint64_t from_end, uint8_t *to, uint64_t to_end)
{
	for (uint32_t i = 0; i < nr; i++) {
		expect_there(from, from_end, &boxes[i], 0, boxes[i].from);
		mark_box(to, to_end, &boxes[i], 0, boxes[i].to, boxes[i].to_stride);
	}
	for (uint64_t k = 0; k < to_end; k++)
		must_be(to[k] <= 1);
	seen.boxes += nr;
}

static const struct rs_rounds_file *files;	/* as the rounds number them */

static struct memory_file *source(uint32_t file)
{
	return &w.files[files[file].place->id];
}

/* Where extents are in a window: 1.  Counts their bytes in files, too. */
static uint8_t *expect_extents(const struct rs_extent *e, uint32_t nr, uint64_t window_bytes, bool out)
{
	uint8_t *window = calloc(window_bytes + 1, 1);

	must_be(window_bytes <= rounds_options.window_bytes);
	for (uint32_t i = 0; i < nr; i++) {
		must_be(e[i].at % 16 == e[i].window % 16);
		must_be(!i || e[i - 1].file < e[i].file || (e[i - 1].file == e[i].file && e[i - 1].at + e[i - 1].bytes < e[i].at));
		mark(window, window_bytes, e[i].window, e[i].bytes);
		if (out)
			mark(w.written[e[i].file], w.images[e[i].file]->bytes, e[i].at, e[i].bytes);
		else
			mark(source(e[i].file)->read, source(e[i].file)->bytes.bytes, e[i].at, e[i].bytes);
	}
	for (uint64_t k = 0; k < window_bytes; k++)
		must_be(window[k] <= 1);
	return window;
}

/* Parts are apart, in the window, and as long as the other side says. */
static uint8_t *expect_parts(const struct rs_round *round, uint32_t p, bool sends)
{
	const struct rs_share *s = &round->shares[p];
	const struct rs_part *parts = sends ? s->sends : s->recvs;
	const uint64_t bytes = sends ? s->send_bytes : s->recv_bytes;
	uint8_t *window = calloc(bytes + 1, 1);

	must_be(bytes <= rounds_options.window_bytes && parts[p].bytes == 0);
	for (uint32_t q = 0; q < round->nr; q++) {
		const struct rs_share *other = &round->shares[q];

		must_be(parts[q].bytes == (sends ? other->recvs : other->sends)[p].bytes && parts[q].at % 16 == 0);
		if (parts[q].bytes)
			mark(window, bytes, parts[q].at, parts[q].bytes);
		seen.sent += sends ? parts[q].bytes : 0;
	}
	for (uint64_t k = 0; k < bytes; k++)
		must_be(window[k] <= 1);
	return window;
}

/* Each byte of an extent is in one box; a byte of an extent that is zeroed may be in none, and one is. */
static void expect_covered(const struct rs_share *s, const uint8_t *out)
{
	for (uint32_t i = 0; i < s->nr_out; i++) {
		uint64_t held = 0;

		for (uint64_t k = 0; k < s->out[i].bytes; k++)
			held += out[s->out[i].window + k];
		must_be(s->out[i].zero == (held < s->out[i].bytes));
		seen.zeros += s->out[i].zero;
	}
}

static void expect_share(const struct rs_round *round, uint32_t p)
{
	const struct rs_share *s = &round->shares[p];
	uint8_t *in = expect_extents(s->in, s->nr_in, s->in_bytes, false);
	uint8_t *out_extents = expect_extents(s->out, s->nr_out, s->out_bytes, true);
	uint8_t *send_parts = expect_parts(round, p, true), *recv_parts = expect_parts(round, p, false);
	uint8_t *out = calloc(s->out_bytes + 1, 1), *send = calloc(s->send_bytes + 1, 1);

	must_be(s->nr_copies <= rounds_options.boxes_max && s->nr_packs <= rounds_options.boxes_max &&
		s->nr_unpacks <= rounds_options.boxes_max);
	expect_boxes(s->copies, s->nr_copies, in, s->in_bytes, out, s->out_bytes);
	expect_boxes(s->packs, s->nr_packs, in, s->in_bytes, send, s->send_bytes);
	expect_boxes(s->unpacks, s->nr_unpacks, recv_parts, s->recv_bytes, out, s->out_bytes);
	for (uint64_t k = 0; k < s->out_bytes; k++)
		must_be(out[k] <= out_extents[k]);
	for (uint64_t k = 0; k < s->send_bytes; k++)
		must_be(send[k] <= send_parts[k]);
	expect_covered(s, out);
	free(in);
	free(out_extents);
	free(send_parts);
	free(recv_parts);
	free(out);
	free(send);
}

/* How many bytes of a range of an image are in copies. */
static uint64_t held(const struct rs_image *im, uint64_t at, uint64_t bytes)
{
	uint64_t nr = 0;

	for (uint64_t end = at + bytes, n; at < end; at += n) {
		const unsigned char *data;
		uint32_t source = UINT32_MAX;

		n = rs_image_run(im, at, end - at, &data, &source);
		nr += source == UINT32_MAX ? 0 : n;
		n = n ? n : 1;
	}
	return nr;
}

/* Of a source: each byte was read once at most.  `all`: those that copies need, and padding. */
static void expect_reads(const struct memory_file *f, bool all)
{
	for (uint64_t k = 0; k < f->bytes.bytes; k++) {
		must_be(f->read[k] <= 1);
		if (!all)
			continue;
		must_be(!f->held[k] || f->read[k] == f->needed[k]);
		seen.needed += f->needed[k];
		seen.read += f->read[k];
	}
}

static void expect_all(const struct rs_extent *rest, uint32_t nr)
{
	uint64_t left = 0;

	for (uint32_t i = 0; i < nr; i++) {
		mark(w.written[rest[i].file], w.images[rest[i].file]->bytes, rest[i].at, rest[i].bytes);
		left += held(w.images[rest[i].file], rest[i].at, rest[i].bytes);
	}
	for (size_t i = 0; i < w.nr_images; i++) {
		for (uint64_t k = 0; k < w.images[i]->bytes; k++)
			must_be(w.written[i][k] == 1);
		seen.bytes += w.images[i]->bytes;
	}
	seen.rest += left;
	seen.exact += w.all && !left;
	for (size_t i = 0; i < w.nr_files; i++)
		expect_reads(&w.files[i], w.all && !left);
}

static void on_round(struct rs_rounds *r, const struct rs_round *round, const struct rs_extent *rest, uint32_t nr_rest)
{
	uint32_t nr;

	files = rs_rounds_files(r, &nr);
	for (uint32_t i = 0; i < nr; i++)
		must_be(files[i].bytes == &source(i)->bytes);
	if (!round) {
		expect_all(rest, nr_rest);
		return;
	}
	seen.rounds++;
	must_be(round->nr == rounds_options.peers);
	for (uint32_t p = 0; p < round->nr; p++)
		expect_share(round, p);
}

/* --- both engines --- */

static void write_all(struct rs_engine *e, const int *fds)
{
	const struct rs_write_options how = {0};
	struct rs_target targets[FILES_MAX];
	struct rs_written written;
	struct sc_err err;

	for (size_t i = 0; i < w.nr_images; i++)
		targets[i] = (struct rs_target){w.images[i], fds[i]};
	for (size_t i = 0; i < w.nr_images; i += e->ops->targets)
		good(rs_engine_write(e, targets + i, sc_min_u64(e->ops->targets, w.nr_images - i), &how, &written, &err), err);
}

static void expect_same(const int *a, const int *b)
{
	for (size_t i = 0; i < w.nr_images; i++) {
		const uint64_t bytes = w.images[i]->bytes;
		unsigned char *x = malloc(bytes + 1), *y = malloc(bytes + 1);

		must_be(pread(a[i], x, bytes + 1, 0) == (ssize_t)bytes && pread(b[i], y, bytes + 1, 0) == (ssize_t)bytes);
		if (memcmp(x, y, bytes) != 0)
			broken("image %zu of %zu has other bytes", i, w.nr_images);
		free(x);
		free(y);
		(void)close(a[i]);
		(void)close(b[i]);
	}
}

static void rounds_write_what_the_host_writes(void **unused)
{
	const unsigned all = JOBS >= 1000 ? JOBS / (unsigned)every_at_most(JOBS > 1000 ? 27 : 9) : some_of(JOBS);
	unsigned long jobs = getenv("ROUNDS") ? strtoul(getenv("ROUNDS"), NULL, 10) : all, done = 0;
	struct rs_engine *host, *rounds;
	struct sc_err err;

	(void)unused;
	good(rs_engine_open(rs_engines[0], NULL, 0, &host, &err), err);
	good(rs_engine_open(&rounds_engine, NULL, 0, &rounds, &err), err);
	rounds_look = on_round;
	for (job = 0; done < jobs; job++) {
		int a[FILES_MAX], b[FILES_MAX];

		random_state = seed * 1000003u + job;
		rounds_options.window_bytes = 64 + pick(pick(2) ? 1000 : 20000);
		rounds_options.boxes_max = 1 + pick(pick(2) ? 8 : 200);
		rounds_options.run_bytes = pick(2) ? 0 : 1 + pick(400);
		rounds_options.peers = pick(2) ? 1 : 1 + pick(PEERS_MAX);
		if (make_job()) {
			for (size_t i = 0; i < w.nr_images; i++) {
				a[i] = memfd_create("host", MFD_CLOEXEC);
				b[i] = memfd_create("rounds", MFD_CLOEXEC);
			}
			write_all(host, a);
			write_all(rounds, b);
			expect_same(a, b);
			done++;
		}
		end_job();
	}
	rs_engine_close(host);
	rs_engine_close(rounds);
	printf("# seed %lu: %lu jobs, %.1f MB of files, %.1f of them copied by the host; %lu rounds, %lu boxes, %.1f MB sent, %lu extents "
	       "with zeros; %lu jobs of all ranks read what they need, and %.1f%% of that in padding\n", seed, done, (double)seen.bytes / 1e6, (double)seen.rest / 1e6,
	       seen.rounds, seen.boxes, (double)seen.sent / 1e6, seen.zeros, seen.exact,
	       100.0 * (double)(seen.read - seen.needed) / (double)seen.needed);
	assert_true(job < 2 * jobs && seen.exact && (seen.sent || PEERS_MAX == 1) && seen.zeros);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(rounds_write_what_the_host_writes)};
	seed = getenv("SEED") ? strtoul(getenv("SEED"), NULL, 10) : seed;
	return cmocka_run_group_tests_name("rounds", tests, NULL, NULL);
}
