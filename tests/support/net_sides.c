/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/net_sides.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/sys.h"

uint8_t *tensor;
struct rs_net *net;
pid_t holder;
char address[64];
int pipe_of_messages[2];
const char *tls, *holders_tls;
bool ucx, holders_ucx;

/* --- the holder, a process of its own --- */

static int serve(void *arg, const struct rs_node_id *peer, const struct rs_pull *p, uint8_t *to)
{
	(void)arg;
	(void)peer;
	if (strcmp(p->tensor, "gone") == 0)
		return RS_CODE_GONE;
	if (!rs_pull_fits(p, TENSOR_BYTES))
		return RS_CODE_BAD;
	rs_pull_gather(p, tensor, to);
	return RS_CODE_OK;
}

static void message(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f)
{
	uint64_t told[3] = {f->kind, f->message.token, peer->node};

	(void)arg;
	if (write(pipe_of_messages[1], told, sizeof(told)) != sizeof(told))
		abort();
}

static bool is_member(void *arg, uint32_t node, uint64_t epoch)
{
	(void)arg;
	(void)node;
	return epoch == EPOCH;
}

struct rs_net_config config(uint32_t node, uint64_t epoch, uint8_t secret)
{
	struct rs_net_config g = {.id = {.node = node, .epoch = epoch, .boot = 1, .protocol_min = 1, .protocol_max = 1},
				  .nr_secrets = 1,
				  .tls = tls,
				  .ucx = ucx,
				  .hello_ms = 1000,
				  .serve = serve,
				  .message = message,
				  .is_member = is_member};

	memset(g.secrets, secret, sizeof(g.secrets));
	return g;
}

/* The holder's program: a process that has loaded UCX cannot fork another one that uses it. */
static int hold(char **args)
{
	struct rs_net_config g;
	struct rs_net *n;
	struct sc_err err;
	int port, ready = atoi(args[0]);

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	pipe_of_messages[1] = atoi(args[1]);
	g = config(2, EPOCH, 9);
	g.listen = "127.0.0.1:0";
	g.ucx = args[2][0] == 'u';
	g.tls = args[3];
	if (rs_net_new(&g, &n, &err) < 0) {
		(void)fprintf(stderr, "holder: %s\n", err.msg);
		return 1;
	}
	port = rs_net_port(n);
	if (write(ready, &port, sizeof(port)) != sizeof(port))
		return 1;
	(void)close(ready);
	for (;;)
		rs_net_run(n, 1000);
}

void start_holder(void)
{
	int port, ready[2];

	assert_int_equal(0, pipe(ready));
	holder = fork();
	if (holder == 0) {
		char a[12], b[12];

		(void)snprintf(a, sizeof(a), "%d", ready[1]);
		(void)snprintf(b, sizeof(b), "%d", pipe_of_messages[1]);
		(void)execl("/proc/self/exe", "holder", "--holder", a, b, holders_ucx ? "ucx" : "tcp", holders_tls, NULL);
		_exit(1);
	}
	(void)close(ready[1]);
	assert_int_equal(sizeof(port), read(ready[0], &port, sizeof(port)));
	(void)close(ready[0]);
	(void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
}

void kill_holder(void)
{
	(void)kill(holder, SIGKILL);
	(void)waitpid(holder, NULL, 0);
}

/* --- the asker --- */

static void pulled(void *arg, int code, const struct sc_err *err)
{
	struct end *e = arg;

	assert_false(e->ended); /* once */
	*e = (struct end){true, code, ""};
	if (err->code)
		(void)snprintf(e->why, sizeof(e->why), "%s", err->msg);
}

struct rs_pull pull_of(uint64_t at, uint32_t bytes, uint32_t ms)
{
	return (struct rs_pull){.file = "model.safetensors",
				.tensor = "w",
				.from = 64,
				.run = 1000,
				.nr = 2,
				.extent = {40, 50},
				.stride = {120000, 1100},
				.at = at,
				.bytes = bytes,
				.deadline_ms = ms};
}

void begin(const struct rs_pull *p, uint8_t *to, struct end *e)
{
	struct sc_err err;

	*e = (struct end){0};
	if (rs_net_pull(net, address, p, to, pulled, e, &err) < 0) { /* so soon, when the other side was quick */
		assert_int_equal(SC_E_SYSTEM, err.code);
		pulled(e, RS_CODE_IO, &err);
	}
}

void wait_for(const struct end *e, int ms)
{
	for (int64_t until = sc_now_ns() + ms * INT64_C(1000000); !e->ended && sc_now_ns() < until;)
		rs_net_run(net, 20);
	assert_true(e->ended);
}

int set_up(void **unused)
{
	struct rs_net_config g = config(1, EPOCH, 9);
	struct sc_err err;

	(void)unused;
	start_holder();
	return rs_net_new(&g, &net, &err);
}

int tear_down(void **unused)
{
	(void)unused;
	rs_net_free(net);
	kill_holder();
	return 0;
}

int pull_with(const char *with, char why[200])
{
	struct rs_pull p = pull_of(0, 10, 3000);
	struct rs_net *mine = net;
	const char *usual = tls;
	uint8_t to[10] = {0};
	struct rs_net_config g;
	struct sc_err err;
	struct end e;

	tls = with;
	g = config(1, EPOCH, 9);
	tls = usual;
	assert_int_equal(0, rs_net_new(&g, &net, &err));
	begin(&p, to, &e);
	wait_for(&e, 5000);
	rs_net_free(net);
	net = mine;
	for (unsigned i = 0; e.code && i < sizeof(to); i++)
		assert_int_equal(0, to[i]);
	(void)snprintf(why, 200, "%s", e.why);
	return e.code;
}

/* True: UCX is not here, which was said. */
static bool has_no_ucx(void)
{
	struct rs_net_config g;
	struct rs_net *n;
	struct sc_err err;

	ucx = true;
	g = config(1, EPOCH, 9);
	if (rs_net_new(&g, &n, &err) == 0) {
		rs_net_free(n);
		return false;
	}
	(void)printf("1..0 # SKIP %s\n", err.msg);
	return err.code == SC_E_UNSUPPORTED;
}

bool sides_begin(int argc, char **argv, int *ret)
{
	(void)signal(SIGPIPE, SIG_IGN); /* as the daemon does */
	*ret = 0;
	tensor = malloc(TENSOR_BYTES);
	for (unsigned i = 0; i < TENSOR_BYTES; i++)
		tensor[i] = (uint8_t)(i * 2654435761u >> 13);
	if (argc > 4 && strcmp(argv[1], "--holder") == 0) {
		*ret = hold(argv + 2);
		return true;
	}
	if (argc == 2 && strcmp(argv[1], "ucx") == 0) {
		if (has_no_ucx())
			return true;
		ucx = holders_ucx = true;
	}
	if (pipe(pipe_of_messages) < 0)
		abort();
	return false;
}
