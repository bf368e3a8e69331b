/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of control files, and the calls that check what goes into them and what comes back. */
#include "reshard/service/control.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "reshard/command/commands/command_i.h"
#include "reshard/upkeep/background/upkeep_i.h"

/* --- rows of a job --- */

#define READ(name)												\
	static int read_##name(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf,		\
			       struct sc_err *err)								\
	{													\
		return rs_render_##name(who->service, job, buf, err);						\
	}													\
	struct rs_control
/* of the newest version, or an error: whoever knows that there is a newer one is not told of an older one */
#define READ_NEWEST(name)											\
	static int read_##name(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf,		\
			       struct sc_err *err)								\
	{													\
		return rs_head_known(job, err) < 0 ? err->code : rs_render_##name(who->service, job, buf, err);	\
	}													\
	struct rs_control
#define WRITE(name, ...)											\
	static int name(const struct rs_caller *who, struct rs_job *job, const char *text,			\
			struct sc_buf *answer, uint64_t *ret_held, struct sc_err *err)			\
	{													\
		(void)text, (void)answer, (void)ret_held;							\
		return __VA_ARGS__;										\
	}													\
	struct rs_control

READ_NEWEST(topology);
WRITE(write_topology, rs_job_topology(who, job, text, err));
static const struct rs_control topology = {
	.name = "topology", .nr = 0, .mode = 0644, .flags = RS_CTL_MOVES | RS_CTL_WAITS,
	.read = read_topology, .write = write_topology,
};

READ(layout);
WRITE(write_layout, rs_job_layout(who, job, text, err));
static const struct rs_control layout = {
	.name = "layout", .nr = 1, .mode = 0644, .flags = RS_CTL_DOCUMENT, .bytes_max = SC_LAYOUT_BYTES_MAX,
	.read = read_layout, .write = write_layout,
};

/* waits for closes, which come as requests */
WRITE(write_commit, rs_job_commit(who, job, text, err));
static const struct rs_control commit = {
	.name = "commit", .nr = 2, .mode = 0200, .flags = RS_CTL_MOVES | RS_CTL_WAITS,
	.write = write_commit,
};

WRITE(write_discard, rs_job_discard(who->service, job, err));
static const struct rs_control discard = {
	.name = "discard", .nr = 3, .mode = 0200, .flags = RS_CTL_WAITS,
	.write = write_discard,
};

WRITE(write_rollback, rs_job_rollback(who, job, text, err));
static const struct rs_control rollback = {
	.name = "rollback", .nr = 4, .mode = 0200, .flags = RS_CTL_MOVES | RS_CTL_WAITS,
	.write = write_rollback,
};

READ_NEWEST(versions);
WRITE(write_versions, rs_job_tag(who, job, text, err));
static const struct rs_control versions = {
	.name = "versions", .nr = 5, .mode = 0644, .flags = RS_CTL_WAITS,
	.read = read_versions, .write = write_versions,
};

READ(status);
static const struct rs_control status = {
	.name = "status", .nr = 6, .mode = 0444,
	.read = read_status,
};

WRITE(write_wait, rs_job_wait_parse(who->service, job, text, ret_held, err));

static int held_wait(struct rs_job *job, uint64_t version, struct sc_err *err)
{
	return rs_job_wait_poll(job->service, job, version, err);
}

static const struct rs_control wait_row = {
	.name = "wait", .nr = 7, .mode = 0666, .flags = RS_CTL_HELD,
	.write = write_wait, .held = held_wait,
};

WRITE(write_plan, rs_render_plan(who->service, job, text, answer, err));
static const struct rs_control plan = {
	.name = "plan", .nr = 8, .mode = 0666, .flags = RS_CTL_ANSWER,
	.write = write_plan,
};

static int read_error(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	(void)who, (void)err;
	rs_render_error(job, buf);
	return 0;
}

static const struct rs_control error = {
	.name = "error", .nr = 9, .mode = 0444,
	.read = read_error,
};

READ(config);
WRITE(write_config, rs_job_config(who, job, text, err));
static const struct rs_control config = {
	.name = "config", .nr = 10, .mode = 0644, .flags = RS_CTL_WAITS,
	.read = read_config, .write = write_config,
};

READ(verify);
WRITE(write_verify, rs_job_verify(who->service, job, err));
static const struct rs_control verify = {
	.name = "verify", .nr = 11, .mode = 0644, .flags = RS_CTL_LONG,
	.read = read_verify, .write = write_verify,
};

READ(data);
WRITE(write_data, rs_job_data(who, job, text, err));
static const struct rs_control data = {
	.name = "data", .nr = 12, .mode = 0644, .flags = RS_CTL_LONG | RS_CTL_MOVES, .bytes_max = SC_DATA_BYTES_MAX,
	.read = read_data, .write = write_data,
};

WRITE(write_diff, rs_render_diff(who->service, job, text, answer, err));
static const struct rs_control diff = {
	.name = "diff", .nr = 13, .mode = 0666, .flags = RS_CTL_ANSWER,
	.write = write_diff,
};

WRITE(write_clone, rs_job_clone(who, job, text, err));
static const struct rs_control clone_row = {
	.name = "clone", .nr = 14, .mode = 0200, .flags = RS_CTL_MOVES | RS_CTL_WAITS,
	.write = write_clone,
};

WRITE(write_plan_svg, rs_render_plan_svg(who->service, job, text, answer, err));
static const struct rs_control plan_svg = {
	.name = "plan.svg", .nr = 15, .mode = 0666, .flags = RS_CTL_ANSWER,
	.write = write_plan_svg,
};

/* --- rows of the mount --- */

/* Adds facts that only the mount knows. */
static void describe(const struct rs_caller *who, const char *name, struct sc_buf *buf)
{
	const struct rs_events *events = &who->service->events;

	if (events->describe)
		events->describe(events->arg, name, buf);
}

SC_METRIC(busy, SC_GAUGE, "scalai_background_busy",
	  "1: the background worker has been called, or works; 0: it waits for a call, or to try again what failed.");

static int read_metrics(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	(void)job;
	sc_metric_set(&busy, !rs_worker_rests(who->service)); /* before what it owes by then */
	sc_metrics_text(buf);
	describe(who, "metrics", buf);
	return rs_render_gauges(who->service, buf, err);
}

static const struct rs_control metrics = {
	.name = "metrics", .nr = 0, .mode = 0444, .flags = RS_CTL_MOUNT,
	.read = read_metrics,
};

static int read_health(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	struct rs_progress scrub;

	(void)job, (void)err;
	sc_buf_printf(buf, "%s\n", rs_service_is_damaged(who->service) ? "damaged" : "ok");
	describe(who, "health", buf);
	rs_scrub_progress(who->service, &scrub);
	if (scrub.what) {
		sc_buf_printf(buf, "scrub: %s\n", scrub.what);
		rs_render_progress(&scrub, "scrub_", buf);
	}
	return 0;
}

static const struct rs_control health = {
	.name = "health", .nr = 1, .mode = 0444, .flags = RS_CTL_MOUNT,
	.read = read_health,
};

static int read_version(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	(void)job, (void)err;
	sc_buf_printf(buf, "scalai %s\n", SC_VERSION);
	describe(who, "version", buf);
	return 0;
}

static const struct rs_control version = {
	.name = "version", .nr = 2, .mode = 0444, .flags = RS_CTL_MOUNT,
	.read = read_version,
};

/* --- and of the cluster that it is of --- */

static int refuse_alone(struct sc_err *err)
{
	return sc_fail(err, SC_E_UNSUPPORTED, "this mount is no node of a cluster");
}

static int read_nodes(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	const struct rs_service *s = who->service;

	(void)job;
	return s->copies ? s->copies->nodes(s->member, buf, err) : refuse_alone(err);
}

static const struct rs_control nodes = {
	.name = "nodes", .nr = 3, .mode = 0444, .flags = RS_CTL_MOUNT,
	.read = read_nodes,
};

/* Gives a written word, without blanks around it, to the function `to` of the cluster's node. */
static int write_word(const struct rs_service *s, const char *text,
		      int (*to)(void *member, const char *word, struct sc_err *err), struct sc_err *err)
{
	char word[SC_NAME_BYTES_MAX + 2];

	(void)snprintf(word, sizeof(word), "%s", text);
	return to(s->member, sc_trim(word), err);
}

static int write_drain(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_buf *answer,
		       uint64_t *ret_held, struct sc_err *err)
{
	const struct rs_service *s = who->service;

	(void)job, (void)answer, (void)ret_held;
	return s->copies ? write_word(s, text, s->copies->drain, err) : refuse_alone(err);
}

static const struct rs_control drain = {
	.name = "drain", .nr = 4, .mode = 0200, .flags = RS_CTL_MOUNT | RS_CTL_LONG,
	.write = write_drain,
};

static int read_cluster(const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf, struct sc_err *err)
{
	const struct rs_service *s = who->service;

	(void)job;
	return s->copies ? s->copies->cluster(s->member, buf, err) : refuse_alone(err);
}

static int write_cluster(const struct rs_caller *who, struct rs_job *job, const char *text, struct sc_buf *answer,
			 uint64_t *ret_held, struct sc_err *err)
{
	const struct rs_service *s = who->service;

	(void)job, (void)answer, (void)ret_held;
	return s->copies ? write_word(s, text, s->copies->set_cluster, err) : refuse_alone(err);
}

static const struct rs_control cluster = {
	.name = "cluster", .nr = 5, .mode = 0644, .flags = RS_CTL_MOUNT | RS_CTL_LONG,
	.read = read_cluster, .write = write_cluster,
};

const struct rs_control *const rs_controls[] = {
	&topology, &layout, &commit, &discard, &rollback, &versions, &status, &wait_row, &plan, &error, &config,
	&verify, &data, &diff, &clone_row, &plan_svg, &metrics, &health, &version,
	&nodes, &drain, &cluster, NULL};
const struct rs_control *const *rs_controls_extra;

/* --- what others call --- */

const struct rs_control *rs_control_at(size_t i)
{
	const size_t nr = sizeof(rs_controls) / sizeof(*rs_controls) - 1;

	if (i < nr)
		return rs_controls[i];
	for (size_t k = 0; rs_controls_extra && rs_controls_extra[k]; k++)
		if (nr + k == i)
			return rs_controls_extra[k];
	return NULL;
}

static bool is_of(const struct rs_control *c, bool of_mount)
{
	return of_mount == !!(c->flags & RS_CTL_MOUNT);
}

const struct rs_control *rs_control_find(bool of_mount, const char *name)
{
	const struct rs_control *c;

	for (size_t i = 0; (c = rs_control_at(i)); i++)
		if (is_of(c, of_mount) && strcmp(c->name, name) == 0)
			return c;
	return NULL;
}

const struct rs_control *rs_control_by_nr(bool of_mount, unsigned nr)
{
	const struct rs_control *c;

	for (size_t i = 0; (c = rs_control_at(i)); i++)
		if (is_of(c, of_mount) && c->nr == nr)
			return c;
	return NULL;
}

mode_t rs_control_mode(const struct rs_control *c, mode_t job)
{
	return c->mode | (job & 0020 ? (c->mode & 0200) >> 3 : 0);
}

size_t rs_control_bytes_max(const struct rs_control *c)
{
	return c->bytes_max ? c->bytes_max : SC_COMMAND_BYTES_MAX;
}

static void check_row(const struct rs_control *c, const struct rs_caller *who, const struct rs_job *job)
{
	assert(who->service);
	assert(!job == !!(c->flags & RS_CTL_MOUNT));
	assert(!c->held == !(c->flags & RS_CTL_HELD));
	assert(c->write || !(c->flags & ~RS_CTL_MOUNT));
	/* one way to answer a write; the text of a descriptor is nothing for another thread */
	assert(__builtin_popcount(c->flags & (RS_CTL_ANSWER | RS_CTL_DOCUMENT | RS_CTL_HELD | RS_CTL_LONG |
					      RS_CTL_WAITS)) <= 1);
}

int rs_control_read(const struct rs_control *c, const struct rs_caller *who, struct rs_job *job, struct sc_buf *buf,
		    struct sc_err *err)
{
	int rc;

	check_row(c, who, job);
	assert(!buf->failed);
	rc = c->read ? c->read(who, job, buf, err) : 0;
	assert(rc == 0 || (rc < 0 && err->code));
	return rc == 0 && buf->failed ? sc_nomem(err) : rc;
}

int rs_control_write(const struct rs_control *c, const struct rs_caller *who, struct rs_job *job, const char *text,
		     struct sc_buf *answer, uint64_t *ret_held, struct sc_err *err)
{
	struct rs_caller caller = *who;
	int rc;

	check_row(c, who, job);
	assert(!answer == !(c->flags & RS_CTL_ANSWER) && (!answer || !answer->failed));
	assert(!ret_held == !(c->flags & RS_CTL_HELD));
	if (!c->write)
		return sc_fail(err, SC_E_PERMISSION, "%s is read-only", c->name);
	if (strlen(text) > rs_control_bytes_max(c))
		return sc_fail(err, SC_E_LIMIT, "%s: a write has at most %zu bytes, but this one has %zu", c->name,
			       rs_control_bytes_max(c), strlen(text));
	if (!(c->flags & RS_CTL_MOVES))
		caller.token = 0;
	rc = c->write(&caller, job, text, answer, ret_held, err);
	assert(rc == 0 || (rc < 0 && err->code));
	return rc == 0 && answer && answer->failed ? sc_nomem(err) : rc;
}

int rs_control_held(const struct rs_control *c, struct rs_job *job, uint64_t held, struct sc_err *err)
{
	int rc;

	assert(c->flags & RS_CTL_HELD && c->held);
	rc = c->held(job, held, err);
	assert(rc == 0 || rc == 1 || (rc < 0 && err->code));
	return rc;
}
