/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what a program does, for all of its services together.  A metric is a static object of the file that counts; a
 * constructor puts it into the list that /.ctl/metrics shows.
 *
 *	SC_METRIC(commits_made, SC_COUNTER, "scalai_commits_total", "Versions made by commit.");
 *	...
 *	sc_metric_add(&commits_made, 1);
 */
#ifndef SC_METRIC_H
#define SC_METRIC_H

#include <stdint.h>

#include "meta/base/mem.h"

struct sc_metric {
	const char *name, *help;	/* as Prometheus names and describes it */
	enum { SC_COUNTER, SC_GAUGE } kind;
	uint64_t value;			/* atomic */
	struct sc_metric *next;
};

#define SC_METRIC(object, of_kind, its_name, its_help)						\
	static struct sc_metric object = {.name = its_name, .help = its_help, .kind = of_kind};	\
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

/** Adds a metric to the list, in the order of names.  Constructors call it, before there are threads. */
void sc_metric_link(struct sc_metric *metric);
/** Writes all metrics in Prometheus' text format. */
void sc_metrics_text(struct sc_buf *buf);

#endif
