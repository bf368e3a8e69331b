/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/base/metric.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static struct sc_metric *metrics;

void sc_metric_link(struct sc_metric *metric)
{
	struct sc_metric **at = &metrics;

	while (*at && strcmp((*at)->name, metric->name) < 0)
		at = &(*at)->next;
	assert(!*at || strcmp((*at)->name, metric->name) != 0); /* two with one name */
	metric->next = *at;
	*at = metric;
}

void sc_metrics_text(struct sc_buf *buf)
{
	for (const struct sc_metric *m = metrics; m; m = m->next)
		sc_buf_printf(buf, "# HELP %s %s\n# TYPE %s %s\n%s %" PRIu64 "\n", m->name, m->help, m->name,
			      m->kind == SC_COUNTER ? "counter" : "gauge", m->name,
			      __atomic_load_n(&m->value, __ATOMIC_RELAXED));
}
