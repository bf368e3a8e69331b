/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "meta/base/sys.h"
#include "meta/base/text.h"

#define SECOND INT64_C(1000000000)
#define TERMINAL_NS (SECOND / 2)
#define LINE_NS (2 * SECOND)

static struct {
	bool is_on, is_terminal;
	bool is_drawn, was_drawn;	/* there is, and was, a line on the terminal */
	char name[1024];
	const char *what;
	uint64_t done, total;
	uint64_t before;		/* bytes of the steps before */
	int64_t began_ns, step_ns, told_ns;
} self;

/* --- words --- */

static double unit_of(uint64_t bytes, const char **ret)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
	size_t unit = 0;

	while (unit < sizeof(units) / sizeof(*units) - 1 && bytes >> (10 * (unit + 2)))
		unit++;
	*ret = units[unit];
	return (double)(UINT64_C(1) << (10 * (unit + 1)));
}

static void time_text(char text[48], double seconds)
{
	const unsigned long long s = (unsigned long long)seconds;

	if (s < 120)
		(void)snprintf(text, 48, "%llu s", s);
	else if (s < 7200)
		(void)snprintf(text, 48, "%llu min %llu s", s / 60, s % 60);
	else
		(void)snprintf(text, 48, "%llu h %llu min", s / 3600, s / 60 % 60);
}

void cli_progress_text(char text[CLI_PROGRESS_BYTES], const char *what, uint64_t done, uint64_t total, double rate,
		       double seconds)
{
	const char *unit;
	const double per = unit_of(total, &unit);
	char left[48] = "";

	done = sc_min_u64(done, total);
	if (!total) {
		time_text(left, seconds);
		(void)snprintf(text, CLI_PROGRESS_BYTES, "%.200s, %s", what, left);
		return;
	}
	if (rate > 0 && done < total)
		time_text(left, (double)(total - done) / rate + 1);
	(void)snprintf(text, CLI_PROGRESS_BYTES, "%u %%, %.200s, %.1f of %.1f %s, %.1f MiB/s%s%s%s",
		       (unsigned)((double)done * 100 / (double)total), what, (double)done / per, (double)total / per,
		       unit, rate / (1 << 20), *left ? ", " : "", left, *left ? " left" : "");
}

/* --- lines --- */

/* Writes a line; on a terminal in place of the one before, cut at its edge: a line of two rows cannot be taken back. */
static void put(const char *text)
{
	struct winsize size = {0};
	char line[sizeof(self.name) + CLI_PROGRESS_BYTES];

	(void)snprintf(line, sizeof(line), "%s: %s", self.name, text);
	if (!self.is_terminal) {
		(void)fprintf(stderr, "%s\n", line);
		return;
	}
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && size.ws_col <= strlen(line))
		line[size.ws_col - 1] = 0;
	(void)fprintf(stderr, "\r\033[K%s", line);
	self.is_drawn = self.was_drawn = true;
}

static void tell(void)
{
	const int64_t now = sc_now_ns();
	const double seconds = (double)(now - self.step_ns) / (double)SECOND;
	char text[CLI_PROGRESS_BYTES];

	if (now - self.told_ns < (self.is_terminal ? TERMINAL_NS : LINE_NS))
		return;
	self.told_ns = now;
	cli_progress_text(text, self.what, self.done, self.total, seconds > 0 ? (double)self.done / seconds : 0,
			  seconds);
	put(text);
}

/* --- what commands call --- */

void cli_progress_begin(const struct cli_args *args, const char *name)
{
	self.is_terminal = isatty(STDERR_FILENO);
	self.is_on = self.is_terminal || cli_value(args, "progress");
	(void)sc_shown(self.name, sizeof(self.name), name);
	self.began_ns = self.told_ns = sc_now_ns();
	cli_progress_step("begins", 0);
}

bool cli_progress_is_on(void)
{
	return self.is_on;
}

void cli_progress_step(const char *what, uint64_t total)
{
	self.before += self.total;
	self.what = what;
	self.done = 0;
	self.total = total;
	self.step_ns = sc_now_ns();
}

void cli_progress_more(uint64_t bytes)
{
	self.total += bytes;
}

void cli_progress_add(uint64_t bytes)
{
	if (!self.is_on)
		return;
	self.done += bytes;
	tell();
}

void cli_progress_set(uint64_t done, uint64_t total)
{
	self.done = done;
	self.total = total;
	cli_progress_add(0);
}

void cli_progress_hide(void)
{
	if (self.is_drawn)
		(void)fputs("\r\033[K", stderr);
	self.is_drawn = false;
}

void cli_progress_end(bool failed)
{
	const uint64_t bytes = self.before + self.total;
	const double seconds = (double)(sc_now_ns() - self.began_ns) / (double)SECOND;
	const char *unit;
	const double per = unit_of(bytes, &unit);
	char text[CLI_PROGRESS_BYTES], took[48];

	if (self.is_on && !failed && (self.was_drawn || !self.is_terminal)) {
		time_text(took, seconds + 0.5);
		if (bytes)
			(void)snprintf(text, sizeof(text), "100 %%, done, %.1f %s in %s, %.1f MiB/s",
				       (double)bytes / per, unit, took,
				       (double)bytes / (seconds > 0 ? seconds : 1) / (1 << 20));
		else
			(void)snprintf(text, sizeof(text), "100 %%, done in %s", took);
		put(text);
		if (self.is_terminal)
			(void)fputs("\n", stderr);
		self.is_drawn = false;
	}
	cli_progress_hide();
	self.is_on = false;
}
