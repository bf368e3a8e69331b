/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what a program does, for all of its services together.  A metric is a static object of the file that counts; a
 * constructor puts it into the list that /.ctl/metrics shows.
 *
 *	SC_METRIC(commits_made, SC_COUNTER, "scalai_commits_total", "Versions made by commit.");
 *	SC_HISTOGRAM(lookups, "scalai_lookup_seconds", "", "Time until a lookup was answered.");
 *	...
 *	sc_metric_add(&commits_made, 1);
 *	sc_metric_since(&lookups, began_ns);
 *
 * Histograms with one name are one family: they have one help, and labels (`kind="view"`) that tell them apart.
 */
#ifndef SC_METRIC_H
#define SC_METRIC_H

#include <stdint.h>

#include "meta/base/mem.h"

#define SC_BOUNDS 24	/* of a histogram: 1, 2 and 5 microseconds and so on to 50 seconds */

enum sc_metric_kind { SC_COUNTER, SC_GAUGE, SC_HISTOGRAM_OF, SC_SECONDS /* a counter, in ns */ };

struct sc_metric {
	const char *name, *help;	/* as Prometheus names and describes it */
	enum sc_metric_kind kind;
	uint64_t value;			/* atomic; of a histogram the sum, in ns */
	struct sc_metric *next;
	/* of a histogram */
	const char *labels;		/* "": it has none */
	uint64_t *buckets;		/* SC_BOUNDS + 1 counts, each atomic */
};

#define SC_METRIC(object, of_kind, its_name, its_help)						\
	SC_METRIC_WITH(object, .name = its_name, .help = its_help, .kind = of_kind)
#define SC_HISTOGRAM(object, its_name, its_labels, its_help)					\
	static uint64_t buckets_of_##object[SC_BOUNDS + 1];					\
	SC_METRIC_WITH(object, .name = its_name, .help = its_help, .labels = its_labels,	\
		       .kind = SC_HISTOGRAM_OF, .buckets = buckets_of_##object)
#define SC_METRIC_WITH(object, ...)								\
	static struct sc_metric object = {__VA_ARGS__};						\
	__attribute__((constructor)) static void link_##object(void)				\
	{											\
		sc_metric_link(&object);							\
	}											\
	struct sc_metric

static inline void sc_metric_add(struct sc_metric *metric, uint64_t nr)
{
	(void)__atomic_add_fetch(&metric->value, nr, __ATOMIC_RELAXED);
}

static inline void sc_metric_set(struct sc_metric *metric, uint64_t value)
{
	__atomic_store_n(&metric->value, value, __ATOMIC_RELAXED);
}

/** Counts in a histogram how long ago something began, by sc_now_ns().  No lock, no memory. */
void sc_metric_since(struct sc_metric *histogram, int64_t began_ns);

/** Adds a metric to the list, in the order of names and labels.  Constructors call it, before there are threads. */
void sc_metric_link(struct sc_metric *metric);
/** Writes all metrics in Prometheus' text format. */
void sc_metrics_text(struct sc_buf *buf);

/** Begins a family of metrics that are no objects, as they are made of what a service is at the moment. */
void sc_metric_family(struct sc_buf *buf, const char *name, enum sc_metric_kind kind, const char *help);
/** Adds text as the value of a label, between its quotes. */
void sc_metric_label(struct sc_buf *buf, const char *text);

#endif
