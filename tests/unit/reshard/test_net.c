/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames over TCP between two processes of the loopback: pulls of regions against a slow copy, many on their way at
 * once; messages; a holder that is killed or stopped, one that sends wrong bytes; who does not know the secret, or is
 * no member.
 */
#include "reshard/net/net.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka wants some of the above first */
#include <cmocka.h>

#include "meta/base/sys.h"

#define TENSOR_BYTES (8u << 20)
#define EPOCH 7

static uint8_t *tensor; /* the same bytes on both sides */
static struct rs_net *net;
static pid_t holder;
static char address[64];
static int pipe_of_messages[2];

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

static struct rs_net_config config(uint32_t node, uint64_t epoch, uint8_t secret)
{
	struct rs_net_config g = {.id = {.node = node, .epoch = epoch, .boot = 1, .protocol_min = 1, .protocol_max = 1},
				  .nr_secrets = 1,
				  .hello_ms = 1000,
				  .serve = serve,
				  .message = message,
				  .is_member = is_member};

	memset(g.secrets, secret, sizeof(g.secrets));
	return g;
}

static void start_holder(void)
{
	struct rs_net_config g = config(2, EPOCH, 9);
	struct rs_net *n;
	struct sc_err err;
	int port, ready[2];

	assert_int_equal(0, pipe(ready));
	holder = fork();
	if (holder == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		g.listen = "127.0.0.1:0";
		if (rs_net_new(&g, &n, &err) < 0)
			_exit(1);
		port = rs_net_port(n);
		if (write(ready[1], &port, sizeof(port)) != sizeof(port))
			_exit(1);
		for (;;)
			rs_net_run(n, 1000);
	}
	assert_int_equal(sizeof(port), read(ready[0], &port, sizeof(port)));
	(void)close(ready[0]);
	(void)close(ready[1]);
	(void)snprintf(address, sizeof(address), "127.0.0.1:%d", port);
}

static void kill_holder(void)
{
	(void)kill(holder, SIGKILL);
	(void)waitpid(holder, NULL, 0);
}

/* --- the asker --- */

struct end {
	bool ended;
	int code;
	char why[200];
};

static void pulled(void *arg, int code, const struct sc_err *err)
{
	struct end *e = arg;

	assert_false(e->ended); /* once */
	*e = (struct end){true, code, ""};
	if (err->code)
		(void)snprintf(e->why, sizeof(e->why), "%s", err->msg);
}

static struct rs_pull pull_of(uint64_t at, uint32_t bytes, uint32_t ms)
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

static void begin(const struct rs_pull *p, uint8_t *to, struct end *e)
{
	struct sc_err err;

	*e = (struct end){0};
	if (rs_net_pull(net, address, p, to, pulled, e, &err) < 0)
		fail_msg("%s", err.msg);
}

static void wait_for(const struct end *e, int ms)
{
	for (int64_t until = sc_now_ns() + ms * INT64_C(1000000); !e->ended && sc_now_ns() < until;)
		rs_net_run(net, 20);
	assert_true(e->ended);
}

static int set_up(void **unused)
{
	struct rs_net_config g = config(1, EPOCH, 9);
	struct sc_err err;

	(void)unused;
	start_holder();
	return rs_net_new(&g, &net, &err);
}

static int tear_down(void **unused)
{
	(void)unused;
	rs_net_free(net);
	kill_holder();
	return 0;
}

static void pulls_bring_what_a_copy_would(void **unused)
{
	static uint8_t to[64][100000], want[100000];
	static struct end ends[64];
	static struct rs_pull pulls[64];
	uint64_t r = 1;

	(void)unused;
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 64; i++) { /* all on their way at once */
			r = r * 6364136223846793005u + 1442695040888963407u;
			pulls[i] = pull_of((r >> 33) % 1900000, 1 + (uint32_t)((r >> 20) % 99999), 10000);
			begin(&pulls[i], to[i], &ends[i]);
		}
		for (unsigned i = 0; i < 64; i++) {
			wait_for(&ends[i], 10000);
			if (ends[i].code)
				fail_msg("code %d: %s", ends[i].code, ends[i].why);
			rs_pull_gather(&pulls[i], tensor, want);
			assert_memory_equal(want, to[i], pulls[i].bytes);
		}
	}
}

static void a_large_payload_goes_whole(void **unused)
{
	static uint8_t to[RS_FRAME_PAYLOAD_MAX];
	struct rs_pull p = {
	    .file = "a", .run = TENSOR_BYTES, .at = 12345, .bytes = RS_FRAME_PAYLOAD_MAX, .deadline_ms = 10000};
	struct end e;

	(void)unused;
	begin(&p, to, &e);
	wait_for(&e, 10000);
	assert_int_equal(RS_CODE_OK, e.code);
	assert_memory_equal(tensor + 12345, to, sizeof(to));
}

static void refusals_have_their_code(void **unused)
{
	struct rs_pull p = pull_of(0, 10, 10000);
	uint8_t to[10];
	struct end e;

	(void)unused;
	(void)snprintf(p.tensor, sizeof(p.tensor), "gone");
	begin(&p, to, &e);
	wait_for(&e, 5000);
	assert_int_equal(RS_CODE_GONE, e.code);
	p = pull_of(0, 10, 10000);
	p.from = TENSOR_BYTES;
	begin(&p, to, &e);
	wait_for(&e, 5000);
	assert_int_equal(RS_CODE_BAD, e.code);
	p = pull_of(0, 10, 10000); /* and the connection goes on */
	begin(&p, to, &e);
	wait_for(&e, 5000);
	assert_int_equal(RS_CODE_OK, e.code);
}

static void messages_arrive_with_who_sent_them(void **unused)
{
	struct rs_net_frame *f = calloc(1, sizeof(*f));
	uint64_t told[3];
	struct sc_err err;

	(void)unused;
	f->kind = RS_FRAME_PREPARED;
	for (uint64_t i = 1; i <= 100; i++) {
		f->message.token = i;
		assert_int_equal(0, rs_net_send(net, address, f, &err));
		rs_net_run(net, 0);
	}
	for (int i = 0; i < 50; i++)
		rs_net_run(net, 2);
	for (uint64_t i = 1; i <= 100; i++) {
		assert_int_equal(sizeof(told), read(pipe_of_messages[0], told, sizeof(told)));
		assert_true(told[0] == RS_FRAME_PREPARED && told[1] == i && told[2] == 1);
	}
	free(f);
}

static void a_holder_that_dies_or_stops_ends_its_pulls(void **unused)
{
	static uint8_t to[10][1000];
	static struct end ends[10];
	struct rs_pull p = pull_of(0, 1000, 500);
	int64_t began;

	(void)unused;
	begin(&p, to[0], &ends[0]);
	wait_for(&ends[0], 5000);
	(void)kill(holder, SIGSTOP);
	began = sc_now_ns();
	for (unsigned i = 0; i < 10; i++)
		begin(&p, to[i], &ends[i]);
	for (unsigned i = 0; i < 10; i++) {
		wait_for(&ends[i], 5000);
		assert_int_equal(RS_CODE_IO, ends[i].code);
	}
	assert_true(sc_now_ns() - began < 1500000000ll);
	(void)kill(holder, SIGCONT);
	begin(&p, to[0], &ends[0]); /* by another connection */
	wait_for(&ends[0], 5000);
	assert_int_equal(RS_CODE_OK, ends[0].code);
	kill_holder();
	begin(&p, to[1], &ends[1]);
	wait_for(&ends[1], 5000);
	assert_int_equal(RS_CODE_IO, ends[1].code);
	start_holder();
	begin(&p, to[2], &ends[2]);
	wait_for(&ends[2], 5000);
	assert_int_equal(RS_CODE_OK, ends[2].code);
}

static void strangers_and_the_fenced_get_nothing(void **unused)
{
	struct rs_net_config wrong = config(1, EPOCH, 8), old = config(1, EPOCH - 1, 9);
	struct rs_pull p = pull_of(0, 10, 3000);
	struct rs_net *mine = net;
	uint8_t to[10] = {0};
	struct sc_err err;
	struct end e;

	(void)unused;
	assert_int_equal(0, rs_net_new(&wrong, &net, &err));
	begin(&p, to, &e);
	wait_for(&e, 5000);
	assert_int_equal(RS_CODE_IO, e.code);
	rs_net_free(net);
	assert_int_equal(0, rs_net_new(&old, &net, &err));
	begin(&p, to, &e);
	wait_for(&e, 5000);
	assert_int_equal(RS_CODE_FENCED, e.code);
	rs_net_free(net);
	net = mine;
	for (unsigned i = 0; i < sizeof(to); i++)
		assert_int_equal(0, to[i]);
}

/* Hands bytes between the asker and the holder, and bends the byte with this number on the way back. */
static void relay(int listener, int to_port, size_t bend)
{
	struct sockaddr_in a = {
	    .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)to_port)};
	int client = accept(listener, NULL, NULL), server = socket(AF_INET, SOCK_STREAM, 0);
	static uint8_t bytes[1 << 16];
	size_t seen = 0;
	ssize_t n;

	if (connect(server, (void *)&a, sizeof(a)) < 0)
		_exit(1);
	if (fork() == 0)
		while ((n = recv(client, bytes, sizeof(bytes), 0)) > 0 &&
		       send(server, bytes, (size_t)n, MSG_NOSIGNAL) == n)
			;
	else
		while ((n = recv(server, bytes, sizeof(bytes), 0)) > 0) {
			if (bend >= seen && bend < seen + (size_t)n)
				bytes[bend - seen] ^= 4;
			seen += (size_t)n;
			if (send(client, bytes, (size_t)n, MSG_NOSIGNAL) != n)
				break;
		}
	_exit(0);
}

static void bent_bytes_are_noticed_wherever_they_are(void **unused)
{
	char real[64];
	unsigned damaged = 0, closed = 0;
	int port;

	(void)unused;
	(void)snprintf(real, sizeof(real), "%s", address);
	port = atoi(strrchr(real, ':') + 1);
	for (size_t bend = 0; bend < 360; bend += 9) { /* HELLO, header, body, payload */
		struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		int listener = socket(AF_INET, SOCK_STREAM, 0);
		struct rs_pull p = pull_of(0, 200, 3000);
		struct rs_net *mine = net;
		socklen_t n = sizeof(a);
		uint8_t to[200];
		struct sc_err err;
		struct rs_net_config g = config(1, EPOCH, 9);
		struct end e;
		pid_t pid;

		assert_true(bind(listener, (void *)&a, n) == 0 && listen(listener, 1) == 0);
		assert_int_equal(0, getsockname(listener, (void *)&a, &n));
		(void)snprintf(address, sizeof(address), "127.0.0.1:%d", ntohs(a.sin_port));
		pid = fork();
		if (pid == 0) {
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
			relay(listener, port, bend);
		}
		(void)close(listener);
		assert_int_equal(0, rs_net_new(&g, &net, &err));
		begin(&p, to, &e);
		wait_for(&e, 5000);
		if (e.code != RS_CODE_IO && e.code != RS_CODE_DAMAGED)
			fail_msg("byte %zu bent: code %d", bend, e.code);
		damaged += e.code == RS_CODE_DAMAGED;
		closed += e.code == RS_CODE_IO;
		rs_net_free(net);
		net = mine;
		(void)kill(pid, SIGKILL);
		(void)waitpid(pid, NULL, 0);
	}
	(void)snprintf(address, sizeof(address), "%s", real);
	assert_true(damaged > 5 && closed > 10);
}

static void noise_closes_the_connection_only(void **unused)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1))};
	struct rs_pull p = pull_of(0, 10, 3000);
	uint64_t r = 5;
	uint8_t to[10];
	struct end e;

	(void)unused;
	for (unsigned i = 0; i < 200; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		uint8_t noise[300];

		assert_int_equal(0, connect(fd, (void *)&a, sizeof(a)));
		for (unsigned k = 0; k < sizeof(noise); k++) {
			r = r * 6364136223846793005u + 1442695040888963407u;
			noise[k] = (uint8_t)(r >> 40);
		}
		if (i % 2)
			memcpy(noise, "Sc\1\1\x77\0\0\0\0\0\0\0", 12); /* begins as a HELLO would */
		(void)send(fd, noise, i + 1, MSG_NOSIGNAL);
		(void)close(fd);
	}
	begin(&p, to, &e);
	wait_for(&e, 5000);
	assert_int_equal(RS_CODE_OK, e.code);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(pulls_bring_what_a_copy_would),
	    cmocka_unit_test(a_large_payload_goes_whole),
	    cmocka_unit_test(refusals_have_their_code),
	    cmocka_unit_test(messages_arrive_with_who_sent_them),
	    cmocka_unit_test(a_holder_that_dies_or_stops_ends_its_pulls),
	    cmocka_unit_test(strangers_and_the_fenced_get_nothing),
	    cmocka_unit_test(bent_bytes_are_noticed_wherever_they_are),
	    cmocka_unit_test(noise_closes_the_connection_only),
	};
	int failed;

	tensor = malloc(TENSOR_BYTES);
	for (unsigned i = 0; i < TENSOR_BYTES; i++)
		tensor[i] = (uint8_t)(i * 2654435761u >> 13);
	if (pipe(pipe_of_messages) < 0)
		return 1;
	failed = cmocka_run_group_tests(tests, set_up, tear_down);
	free(tensor);
	return failed;
}
