/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/settings.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "meta/base/metric.h"
#include "meta/base/sys.h"
#include "reshard/engine/io/fds.h"

#define LOAD_WINDOW (8ull << 20)

SC_METRIC(gpu_failures, SC_COUNTER, "scalai_gpu_failures_total", "Calls of the engine gpu that the host did again.");

static struct {
	pthread_mutex_t lock;		/* short */
	struct rs_gpu_options options;
	int64_t paused_until_ns;
	struct rs_gpu_state state;
	unsigned joint_failures;	/* in a row */
	int64_t joint_until_ns;		/* then they pause */
} said = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct rs_gpu_options rs_gpu_options_default(void)
{
	return (struct rs_gpu_options){.nr_devices = 1, .device_bytes = 512u << 20, .pinned_bytes = 512u << 20,
				       .timeout_ms = 60000, .idle_ms = 30000, .stop_ms = 2000, .boxes_max = 4096,
				       .run_bytes = RS_FDS_READ_BYTES_MIN};
}

struct rs_pool rs_gpu_load_pool(const struct rs_gpu_options *o)
{
	const uint64_t most = o->window_bytes ? o->window_bytes : LOAD_WINDOW; /* tests have smaller ones */

	return (struct rs_pool){sc_min_u64(LOAD_WINDOW, most), o->boxes_max, 1};
}

struct rs_pool rs_gpu_pool(const struct rs_gpu_options *o)
{
	const struct rs_pool load = rs_gpu_load_pool(o);
	const uint64_t device = rs_pool_device_bytes(&load), pinned = o->nr_devices * rs_pool_bytes(&load);
	struct rs_pool pool = {.boxes_max = o->boxes_max, .peers = o->nr_devices,
			       .world = *o->net ? RS_POOL_WORLD_MAX : 0};

	if (o->device_bytes > device && o->pinned_bytes > pinned)
		pool.window_bytes = rs_pool_window(o->device_bytes - device, o->pinned_bytes - pinned, pool);
	if (!pool.window_bytes)
		pool.window_bytes = rs_pool_window(o->device_bytes, o->pinned_bytes, pool);
	pool.world = 0;
	return pool;
}

/* Gives the path of `scalai-gpu` in the folder of this program. */
static void program_beside(char *ret, size_t bytes)
{
	static const char name[] = "scalai-gpu";
	ssize_t n = readlink("/proc/self/exe", ret, bytes - 1);
	char *slash;

	ret[n > 0 ? n : 0] = 0;
	slash = strrchr(ret, '/');
	if (slash && (size_t)(slash + 1 - ret) + sizeof(name) <= bytes)
		memcpy(slash + 1, name, sizeof(name));
	else
		*ret = 0;
}

/* Takes options, and forgets failures.  Under said.lock. */
static void take(const struct rs_gpu_options *options)
{
	said.options = *options;
	if (!*options->program)
		program_beside(said.options.program, sizeof(said.options.program));
	said.state = (struct rs_gpu_state){0};
	said.paused_until_ns = 0;
	said.joint_failures = 0;
}

void rs_gpu_set(const struct rs_gpu_options *options)
{
	(void)pthread_mutex_lock(&said.lock);
	take(options);
	(void)pthread_mutex_unlock(&said.lock);
}

void rs_gpu_get(struct rs_gpu_options *ret)
{
	(void)pthread_mutex_lock(&said.lock);
	if (!said.options.boxes_max) { /* nobody has set any */
		const struct rs_gpu_options options = rs_gpu_options_default();

		take(&options);
	}
	*ret = said.options;
	(void)pthread_mutex_unlock(&said.lock);
}

void rs_gpu_forgive(void)
{
	(void)pthread_mutex_lock(&said.lock);
	said.state.failures = said.joint_failures = 0;
	said.state.why[0] = 0;
	said.paused_until_ns = 0;
	(void)pthread_mutex_unlock(&said.lock);
}

static int64_t pause_end(void)
{
	return sc_now_ns() + (int64_t)RS_GPU_PAUSE_S * 1000000000;
}

static bool pauses(unsigned failures, int64_t until_ns)
{
	return failures >= RS_GPU_FAILURES_MAX && sc_now_ns() < until_ns;
}

void rs_gpu_note_joint(bool well)
{
	(void)pthread_mutex_lock(&said.lock);
	said.joint_failures = well ? 0 : said.joint_failures + 1;
	said.joint_until_ns = pause_end();
	(void)pthread_mutex_unlock(&said.lock);
}

bool rs_gpu_joint_pauses(void)
{
	bool is;

	(void)pthread_mutex_lock(&said.lock);
	is = pauses(said.joint_failures, said.joint_until_ns);
	(void)pthread_mutex_unlock(&said.lock);
	return is;
}

void rs_gpu_state(struct rs_gpu_state *ret)
{
	(void)pthread_mutex_lock(&said.lock);
	*ret = said.state;
	(void)pthread_mutex_unlock(&said.lock);
}

/* Checks that the mount allows GPUs, and that there is a program.  Under said.lock. */
static int check(struct sc_err *err)
{
	const char *program = said.options.program;

	if (said.options.off)
		return sc_fail(err, SC_E_UNSUPPORTED, "the mount has gpu=off");
	if (*program && access(program, X_OK) < 0)
		return sc_fail(err, SC_E_UNSUPPORTED, "there is no program '%s' (%s)", program, strerror(errno));
	return 0;
}

int rs_gpu_probe(struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&said.lock);
	rc = check(err);
	if (rc == 0 && pauses(said.state.failures, said.paused_until_ns))
		rc = sc_fail(err, SC_E_UNSUPPORTED, "%s", said.state.why);
	(void)pthread_mutex_unlock(&said.lock);
	return rc;
}

int rs_gpu_check(struct rs_gpu_options *ret, struct sc_err *err)
{
	int rc;

	(void)pthread_mutex_lock(&said.lock);
	*ret = said.options;
	rc = check(err);
	(void)pthread_mutex_unlock(&said.lock);
	if (rc == 0 && !*ret->program)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "the folder of this program is not known (/proc/self/exe)");
	return rc;
}

void rs_gpu_note_success(const char *device)
{
	(void)pthread_mutex_lock(&said.lock);
	said.state.by_gpu++;
	said.state.failures = 0;
	said.state.why[0] = 0;
	(void)snprintf(said.state.device, sizeof(said.state.device), "%s", device);
	(void)pthread_mutex_unlock(&said.lock);
}

void rs_gpu_note_failure(const struct sc_err *err)
{
	unsigned failures;

	(void)pthread_mutex_lock(&said.lock);
	said.state.by_host++;
	failures = ++said.state.failures;
	(void)snprintf(said.state.why, sizeof(said.state.why), "%s", err->msg);
	said.paused_until_ns = pause_end();
	(void)pthread_mutex_unlock(&said.lock);
	sc_metric_add(&gpu_failures, 1);
	sc_log(SC_LOG_WARN, "engine gpu: %s, continuing: the host writes these files%s", err->msg,
	       failures >= RS_GPU_FAILURES_MAX ? ", and all for an hour, or until a job's `config` is written" : "");
}
