/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list_torch FILE...: prints what reshard/codec/torch finds in files of torch.save(), or why it refuses them.
 * list_torch --emit FILE: prints its pickle, written again.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/torch_text.h"

static int read_fd(void *arg, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	ssize_t n = pread(*(int *)arg, to, bytes, (off_t)at);

	return n == (ssize_t)bytes ? 0 : sc_fail(err, SC_E_DAMAGED, "the file ends early");
}

static bool emits;

static void list(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct rs_window window = {.arg = &fd, .read = read_fd};
	struct sc_buf text = {0};
	struct rs_torch torch;
	struct sc_err err;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0) {
		perror(path);
		return;
	}
	window.bytes = (uint64_t)st.st_size;
	if (rs_torch_read(&window, &torch, &err) < 0) {
		(void)printf("refused: %s\n", err.msg);
	} else {
		if (!emits)
			torch_text(&torch, &text);
		else if (rs_pickle_emit(torch.pickle.root, NULL, NULL, &text, &err) < 0)
			(void)fprintf(stderr, "%s\n", err.msg);
		(void)fwrite(text.text, 1, text.bytes, stdout);
		sc_buf_done(&text);
		rs_torch_done(&torch);
	}
	(void)close(fd);
}

int main(int argc, char **argv)
{
	emits = argc == 3 && strcmp(argv[1], "--emit") == 0;
	for (int i = 1 + emits; i < argc; i++) {
		if (!emits)
			(void)printf("== %s\n", argv[i]);
		list(argv[i]);
		(void)fflush(stdout);
	}
	return 0;
}
