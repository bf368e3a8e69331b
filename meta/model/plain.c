/* SPDX-License-Identifier: Apache-2.0 */
/* Answers what `plain` and `log` lines of a layout say of files, by their paths. */
#include "meta/model/layout.h"

#include <string.h>

static bool is_named(const struct meta_layout *layout, bool only_logs, const char *file)
{
	struct meta_caps caps = {0};

	for (uint32_t i = 0; i < layout->nr_plain; i++, caps.nr = 0)
		if ((layout->plain[i].is_log || !only_logs) &&
		    meta_pattern_match(&layout->plain[i].pattern, file, strlen(file), &caps))
			return true;
	return false;
}

bool meta_layout_is_plain(const struct meta_layout *layout, const char *file)
{
	return is_named(layout, false, file);
}

bool meta_layout_is_log(const struct meta_layout *layout, const char *file)
{
	return layout->has_logs && is_named(layout, true, file);
}

/* Steps over `log` lines of a flat text. */
static const char *without_logs(const char *flat)
{
	while (strncmp(flat, "log ", 4) == 0)
		flat += strcspn(flat, "\n") + 1;
	return flat;
}

bool meta_layout_same_but_logs(const struct meta_layout *a, const struct meta_layout *b)
{
	const char *x = without_logs(a->flat), *y = without_logs(b->flat);

	while (*x && *x == *y) {
		const bool ends = *x++ == '\n';

		y++;
		if (ends) {
			x = without_logs(x);
			y = without_logs(y);
		}
	}
	return *x == *y;
}

static bool ends_in(const char *path, const char *const *suffixes)
{
	const char *dot = strrchr(path, '.');

	while (dot && *suffixes && strcmp(dot, *suffixes) != 0)
		suffixes++;
	return dot && *suffixes;
}

bool meta_layout_propose_log(const char *path, struct sc_buf *ret)
{
	static const char *const logs[] = {".log", ".out", ".err", ".txt", ".csv", ".jsonl", ".wandb", NULL};
	static const char *const tensors[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".distcp", NULL};
	const char *slash = strchr(path, '/');

	if (ends_in(path, tensors) || strpbrk(path, " \t\n#${}*"))
		return false;
	if (ends_in(path, logs))
		sc_buf_printf(ret, "*%s", strrchr(path, '.'));
	else if (slash)
		sc_buf_printf(ret, "%.*s/*", (int)(slash - path), path);
	else
		sc_buf_printf(ret, "%s", path);
	return true;
}
