/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save(): those that torch 2.13 wrote (tests/sample/torch; expected.txt says what torch finds in them),
 * each refusal once, and files with changed bytes, whose tensors lie inside of them or which are refused with a sentence.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

#include "tests/prop/pick.h"
#include "tests/support/sample_file.h"
#include "tests/support/torch_archive.h"
#include "tests/support/torch_text.h"

static const char *const samples[] = {"buffer", "bytes", "deep", "dtensor", "empty", "nested", "nocrc", "protocol4",
				      "training", "types", "views"};

#define SAMPLES (sizeof(samples) / sizeof(*samples))

/* Reads the i-th sample; returns its bytes, which the caller frees after it. */
static char *read_sample(size_t i, char name[64], struct rs_torch *ret)
{
	struct rs_window w;
	struct sc_err err;
	char *bytes;
	size_t n;

	(void)snprintf(name, 64, "%s.pt", samples[i]);
	bytes = load_sample(name, &n);
	w = window_in_memory(bytes, n);
	if (rs_torch_read(&w, ret, &err) < 0)
		fail_msg("%s: %s", name, err.msg);
	return bytes;
}

/* Compares with a file of samples, and releases the text. */
static void equals(struct sc_buf *text, const char *name)
{
	size_t nr;
	char *expected = load_sample(name, &nr);

	assert_string_equal(text->text, expected);
	free(expected);
	sc_buf_done(text);
}

static void test_samples(void **state)
{
	struct sc_buf text = {0};

	(void)state;
	for (size_t i = 0; i < SAMPLES; i++) {
		struct rs_torch torch;
		char name[64], *bytes = read_sample(i, name, &torch);

		sc_buf_printf(&text, "== %s\n", name);
		torch_text(&torch, &text);
		rs_torch_done(&torch);
		free(bytes);
	}
	equals(&text, "expected.txt");
}

/* Pickles written again: emitted.txt has the bytes and FNV-1a hashes of another program's. */
static void test_emitted(void **state)
{
	struct sc_buf text = {0};

	(void)state;
	for (size_t i = 0; i < SAMPLES; i++) {
		struct sc_buf first = {0}, second = {0};
		uint64_t hash = UINT64_C(0xcbf29ce484222325);
		struct rs_torch torch;
		char name[64], *bytes = read_sample(i, name, &torch);
		struct rs_pickle again;
		struct sc_err err;

		assert_int_equal(rs_pickle_emit(torch.pickle.root, NULL, NULL, &first, &err), 0);
		assert_int_equal(rs_pickle_read(first.text, first.bytes, &again, &err), 0);
		assert_int_equal(again.used, first.bytes);
		assert_int_equal(rs_pickle_emit(again.root, NULL, NULL, &second, &err), 0);
		assert_int_equal(first.bytes, second.bytes);
		assert_memory_equal(first.text, second.text, first.bytes);
		for (size_t k = 0; k < first.bytes; k++)
			hash = (hash ^ (unsigned char)first.text[k]) * UINT64_C(0x100000001b3);
		sc_buf_printf(&text, "%s %zu %016llx\n", name, first.bytes, (unsigned long long)hash);
		rs_pickle_done(&again);
		rs_torch_done(&torch);
		sc_buf_done(&first);
		sc_buf_done(&second);
		free(bytes);
	}
	equals(&text, "emitted.txt");
}

/* --- archives made here --- */

static void refused(const struct archive *a, const char *what, const char *why)
{
	struct rs_window w = window_in_memory(a->bytes, a->nr);
	struct rs_torch torch;
	struct sc_err err = {0};
	int rc = rs_torch_read(&w, &torch, &err);

	if (rc >= 0)
		fail_msg("%s: was read", what);
	if (!strstr(err.msg, why))
		fail_msg("%s: '%s', not '%s'", what, err.msg, why);
}

#define T(text) text, sizeof(text) - 1
static const struct {
	const char *name, *pickle;
	size_t bytes;
	const char *why;
} pickles[] = {
	{"a longer storage", T(ARCHIVE_TENSOR(ARCHIVE_STORAGE("FloatStorage", "U\0010", "K\5"), "K\0K\4\x85K\1\x85")), "has 20 bytes, its record 16"},
	{"no such storage", T(ARCHIVE_TENSOR(ARCHIVE_STORAGE("FloatStorage", "U\0019", "K\4"), "K\0K\4\x85K\1\x85")), "has no record"},
	{"a class of no storage", T(ARCHIVE_TENSOR(ARCHIVE_STORAGE("EvilStorage", "U\0010", "K\4"), "K\0K\4\x85K\1\x85")), "type that is not known"},
	{"a long tensor", T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\0K\5\x85K\1\x85")), "runs past its storage"},
	{"an offset", T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\1K\4\x85K\1\x85")), "runs past its storage"},
	{"strides", T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\0K\2K\2\x86K\3K\1\x86")), "runs past its storage"},
	{"a product of dimensions", T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\0\x8a\6\0\0\0\0\0\1\x8a\6\0\0\0\0\0\1\x86K\0K\0\x86")), "its size overflows"},
	{"a negative size", T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\0J\xff\xff\xff\xff\x85K\1\x85")), "a shape is no size"},
	{"a negative stride", T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\0K\4\x85J\xff\xff\xff\xff\x85")), "strides is no size"},
	{"fewer strides", T(ARCHIVE_TENSOR(ARCHIVE_GOOD, "K\0K\4\x85)")), "of 1 dimensions and 0 strides"},
	{"no storage", T("\x80\2ctorch._utils\n_rebuild_tensor_v2\n(K\0K\0K\4\x85K\1\x85\x89}tR."), "of what is no storage"},
	{"a list that holds itself", T("\x80\2]q\0h\0a."), "holds itself"},
	{"a text of 4 GiB", T("\x80\2X\xff\xff\xff\xff" "abc."), "4294967295 bytes are announced, 4 are there"},
	{"bytes of 2^63", T("\x80\4\x8e\0\0\0\0\0\0\0\x80" "abc."), "bytes are announced"},
	{"an integer of 2 GiB", T("\x80\2\x8b\xff\xff\xff\x7f" "abc."), "at most 1024"},
	{"a memo that was not set", T("\x80\2h\5."), "memo 5 was never set"},
	{"an empty stack", T("\x80\2R."), "the stack is empty"},
	{"a mark", T("\x80\2(R."), "the stack is empty"},
	{"no mark", T("\x80\2t."), "no mark"},
	{"no STOP", T("\x80\2]"), "without STOP"},
	{"two objects", T("\x80\2]]."), "left on the stack"},
	{"an unknown opcode", T("\x80\2\xfe."), "opcode 0xfe is not taken"},
	{"text opcodes", T("\x80\2I5\n."), "opcode 0x49 is not taken"},
	{"the extension registry", T("\x80\2\x82\1."), "opcode 0x82 is not taken"},
	{"protocol 1", T("\x80\1N."), "protocol 1"},
	{"a key without a value", T("\x80\2}(K\1u."), "a key without a value"},
	{"items of a number", T("\x80\2K\1K\2K\3s."), "items of what is no dict"},
	{"append to a dict", T("\x80\2}K\1a."), "append to what is no list"},
	{"arguments that are a list", T("\x80\2cos\nsystem\n]R."), "arguments are no tuple"},
	{"state twice", T("\x80\2ca\nb\n)RNbNb."), "state of what is no object"},
	{"a name without an end", T("\x80\2cos"), "a name without an end"},
	{"text that is none", T("\x80\2X\1\0\0\0\xff."), "not UTF-8"},
	{"a class whose name is a number", T("\x80\4K\1K\2\x93."), "name is no text"},
};

static void test_pickles(void **state)
{
	static struct archive a;
	char bomb[1024], *deep = malloc(200010);
	size_t n = 5;

	(void)state;
	for (size_t i = 0; i < sizeof(pickles) / sizeof(*pickles); i++) {
		archive_make_of(&a, pickles[i].pickle, pickles[i].bytes);
		refused(&a, pickles[i].name, pickles[i].why);
	}
	/* lists of two lists, sixty levels: 2^60 paths */
	memcpy(bomb, "\x80\2]q\0", n);
	for (int i = 0; i < 60; i++, n += 10)
		memcpy(bomb + n, (char[]){'0', ']', '(', 'h', (char)i, 'h', (char)i, 'e', 'q', (char)(i + 1)}, 10);
	bomb[n++] = '.';
	archive_make_of(&a, bomb, n);
	refused(&a, "2^60 paths", "too many paths");
	memcpy(deep, "\x80\2", 2);
	memset(deep + 2, ']', 100000);
	memset(deep + 100002, 'a', 99999);
	deep[200001] = '.';
	archive_make_of(&a, deep, 200002);
	refused(&a, "100,000 levels", "too deep");
	free(deep);
}

/* What would run a program is an object of no meaning. */
static void test_calls(void **state)
{
	static struct archive a;
	struct rs_torch torch;
	struct rs_window w;
	struct sc_err err;

	(void)state;
	archive_make_of(&a, T("\x80\2}(X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" ARCHIVE_GOOD "K\0K\4\x85K\1\x85\x89}tR"
		      "X\1\0\0\0xcos\nsystem\nX\4\0\0\0true\x85Ru."));
	w = window_in_memory(a.bytes, a.nr);
	if (rs_torch_read(&w, &torch, &err) < 0)
		fail_msg("%s", err.msg);
	assert_int_equal(torch.tensors.nr, 1);
	assert_string_equal(torch.tensors.at[0].path, "w");
	rs_torch_done(&torch);
}

static void test_archives(void **state)
{
	static const char zeros[16];
	static struct archive a;
	const struct archive_record twice[] = {{"a/data.pkl", "\x80\2N.", 4}, {"a/data.pkl", "\x80\2N.", 4}},
			    elsewhere[] = {{"a/data.pkl", "\x80\2N.", 4}, {"b/version", "3", 1}},
			    script[] = {{"a/data.pkl", "\x80\2N.", 4}, {"a/constants.pkl", "\x80\2N.", 4}},
			    big[] = {{"a/data.pkl", "\x80\2N.", 4}, {"a/byteorder", "big", 3}},
			    none[] = {{"a/version", "3", 1}}, late[] = {{"a/data.pkl", "\x80\2N.", 4}, {"a/version", "11", 2}};
	const struct {
		const char *name;
		size_t entry, at;	/* byte of an entry of the directory; entry 9: of the end record */
		uint64_t value;
		unsigned bytes;
		const char *why;
	} changes[] = {
		{"number of entries", 9, 10, 0xfffe, 2, "does not fit"}, {"size of the directory", 9, 12, 0x7fffffff, 4, "at most"},
		{"place of the directory", 9, 16, 0x7fffffff, 4, "does not fit"}, {"volumes", 9, 4, 1, 2, "several volumes"},
		{"compressed", 2, 10, 8, 2, "compressed"}, {"encrypted", 2, 8, 1, 2, "encrypted"}, {"two sizes", 2, 20, 15, 4, "two sizes"},
		{"another's header", 2, 42, 0, 4, "another name"}, {"outside", 2, 42, 1 << 20, 4, "outside of the file"},
		{"a long name", 0, 28, 60000, 2, "damaged"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
		size_t end;

		archive_make_of(&a, T("\x80\2N."));
		end = a.nr;
		a.nr = (changes[i].entry == 9 ? a.end : a.entries[changes[i].entry]) + changes[i].at;
		archive_put(&a, changes[i].value, changes[i].bytes);
		a.nr = end;
		refused(&a, changes[i].name, changes[i].why);
	}
	archive_make_of(&a, T("\x80\2N."));
	a.nr = a.entries[2] + 20;
	archive_put(&a, 20, 4), archive_put(&a, 20, 4); /* both sizes: it runs into the directory */
	a.nr = a.end + 22;
	refused(&a, "a long record", "runs into the directory");
	a.nr -= 5;
	refused(&a, "cut short", "no end of a directory");
	a.nr = 0;
	refused(&a, "empty", "no archive of torch.save()");
	archive_put_text(&a, zeros, 16);
	refused(&a, "zeros", "no archive of torch.save()");
	a.nr = 0;
	archive_put_text(&a, T("\x80\2\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\2M\xe9\3."));
	refused(&a, "before 1.6", "before torch 1.6");
	a.nr = 0;
	archive_put_text(&a, T("\x80\2N............................"));
	refused(&a, "a bare pickle", "a bare pickle");
	archive_make(&a, twice, 2), refused(&a, "a name twice", "is there twice");
	archive_make(&a, elsewhere, 2), refused(&a, "two folders", "not in the archive's folder");
	archive_make(&a, script, 2), refused(&a, "TorchScript", "holds a program");
	archive_make(&a, big, 2), refused(&a, "big-endian", "byte order 'big'");
	archive_make(&a, none, 1), refused(&a, "no pickle", "no data.pkl");
	archive_make(&a, late, 2), refused(&a, "a later version", "version '11'");
}

static void check_inside(const struct rs_torch *torch, size_t bytes)
{
	for (size_t i = 0; i < torch->tensors.nr; i++) {
		const struct rs_torch_tensor *t = &torch->tensors.at[i];

		assert_true(t->at <= bytes && torch_extent(t) <= bytes - t->at);
	}
}

static void test_changed(void **state)
{
	static const char *const seeds[] = {"nested.pt", "training.pt", "dtensor.pt", "views.pt"};
	uint64_t read = 0;

	(void)state;
	for (int round = 0; round < 20000; round++) {
		static char *bytes[4];
		static size_t nr[4];
		size_t which = pick(4), n;
		struct rs_torch torch;
		struct rs_window w;
		struct sc_err err = {0};
		char *file;

		if (!bytes[which])
			bytes[which] = load_sample(seeds[which], &nr[which]);
		n = nr[which];
		file = malloc(n); /* of that size: reads beyond it are seen */
		memcpy(file, bytes[which], n);
		for (unsigned i = pick(4); i < 4; i++)
			file[pick((unsigned)n)] = (char)pick(256);
		if (pick(4) == 0)
			n -= pick(64);
		w = window_in_memory(file, n);
		if (rs_torch_read(&w, &torch, &err) == 0) {
			check_inside(&torch, n);
			rs_torch_done(&torch);
			read++;
		} else {
			assert_true(err.code < 0 && *err.msg);
		}
		free(file);
	}
	assert_in_range(read, 1000, 19000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_samples), cmocka_unit_test(test_emitted), cmocka_unit_test(test_pickles), cmocka_unit_test(test_calls),
		cmocka_unit_test(test_archives), cmocka_unit_test(test_changed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
