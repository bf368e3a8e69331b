/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/metric.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/base/sys.h"

static struct sc_metric *metrics;

static const uint64_t bounds_ns[SC_BOUNDS] = {
#define DECADE(ns) ns, 2 * (ns), 5 * (ns)
	DECADE(1000ull), DECADE(10000ull), DECADE(100000ull), DECADE(1000000ull), DECADE(10000000ull),
	DECADE(100000000ull), DECADE(1000000000ull), DECADE(10000000000ull),
};

static int compare(const struct sc_metric *a, const struct sc_metric *b)
{
	const int names = strcmp(a->name, b->name);

	if (names || !a->buckets || !b->buckets)
		return names;
	return strcmp(a->labels, b->labels);
}

void sc_metric_link(struct sc_metric *metric)
{
	struct sc_metric **at = &metrics;

	while (*at && compare(*at, metric) < 0)
		at = &(*at)->next;
	assert(!*at || compare(*at, metric) != 0); /* two with one name */
	metric->next = *at;
	*at = metric;
}

void sc_metric_since(struct sc_metric *histogram, int64_t began_ns)
{
	const int64_t now = sc_now_ns();
	const uint64_t took = now > began_ns ? (uint64_t)(now - began_ns) : 0;
	size_t from = 0, nr = SC_BOUNDS;

	/* the first bound that is not less */
	while (nr) {
		const size_t half = nr / 2;

		if (bounds_ns[from + half] < took) {
			from += half + 1;
			nr -= half + 1;
		} else {
			nr = half;
		}
	}
	sc_metric_add(histogram, took);
	(void)__atomic_add_fetch(&histogram->buckets[from], 1, __ATOMIC_RELAXED);
}

/* Adds seconds without zeros at their end. */
static void add_seconds(struct sc_buf *buf, uint64_t ns)
{
	char text[40];
	size_t n = (size_t)snprintf(text, sizeof(text), "%" PRIu64 ".%09" PRIu64, ns / 1000000000, ns % 1000000000);

	while (text[n - 1] == '0')
		n--;
	sc_buf_add(buf, text, n - (text[n - 1] == '.'));
}

/* Adds the lines of a histogram: counts up to each bound, the sum, and how many there are, which is the last count. */
static void add_histogram(const struct sc_metric *m, struct sc_buf *buf)
{
	const char *comma = *m->labels ? "," : "", *open = *m->labels ? "{" : "", *shut = *m->labels ? "}" : "";
	uint64_t nr = 0;

	for (size_t i = 0; i <= SC_BOUNDS; i++) {
		nr += __atomic_load_n(&m->buckets[i], __ATOMIC_RELAXED);
		sc_buf_printf(buf, "%s_bucket{%s%sle=\"", m->name, m->labels, comma);
		if (i < SC_BOUNDS)
			add_seconds(buf, bounds_ns[i]);
		else
			sc_buf_printf(buf, "+Inf");
		sc_buf_printf(buf, "\"} %" PRIu64 "\n", nr);
	}
	sc_buf_printf(buf, "%s_sum%s%s%s ", m->name, open, m->labels, shut);
	add_seconds(buf, __atomic_load_n(&m->value, __ATOMIC_RELAXED));
	sc_buf_printf(buf, "\n%s_count%s%s%s %" PRIu64 "\n", m->name, open, m->labels, shut, nr);
}

void sc_metric_family(struct sc_buf *buf, const char *name, enum sc_metric_kind kind, const char *help)
{
	static const char *const kinds[] = {"counter", "gauge", "histogram", "counter"};

	sc_buf_printf(buf, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kinds[kind]);
}

void sc_metric_label(struct sc_buf *buf, const char *text)
{
	for (; *text; text++) {
		if (*text == '"' || *text == '\\' || *text == '\n')
			sc_buf_byte(buf, '\\');
		sc_buf_byte(buf, *text == '\n' ? 'n' : *text);
	}
}

void sc_metrics_text(struct sc_buf *buf)
{
	const char *family = "";

	for (const struct sc_metric *m = metrics; m; m = m->next) {
		if (strcmp(family, m->name) != 0)
			sc_metric_family(buf, m->name, m->kind, m->help);
		family = m->name;
		if (m->kind == SC_HISTOGRAM_OF) {
			add_histogram(m, buf);
			continue;
		}
		sc_buf_printf(buf, "%s ", m->name);
		if (m->kind == SC_SECONDS)
			add_seconds(buf, __atomic_load_n(&m->value, __ATOMIC_RELAXED));
		else
			sc_buf_printf(buf, "%" PRIu64, __atomic_load_n(&m->value, __ATOMIC_RELAXED));
		sc_buf_printf(buf, "\n");
	}
}
