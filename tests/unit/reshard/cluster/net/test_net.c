/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames over TCP between two processes of the loopback: pulls of regions against a slow copy, many on their way at
 * once; messages; a holder that is killed or stopped, one that sends wrong bytes; who does not know the secret, or is
 * no member.  All of it again over TLS; who has no certificate of the same CA, or an old one.
 *
 * With the argument `ucx`, over UCX, but for TLS.
 */
#include "tests/support/late.h"
#include "tests/support/net_sides.h"
#include "tests/support/stopped.h"

#include <arpa/inet.h>
#include <errno.h>
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

static char folder[] = "/tmp/scalai-net.XXXXXX";

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
	stop_child(holder);
	began = sc_now_ns();
	for (unsigned i = 0; i < 10; i++)
		begin(&p, to[i], &ends[i]);
	for (unsigned i = 0; i < 10; i++) {
		wait_for(&ends[i], 5000);
		assert_int_equal(RS_CODE_IO, ends[i].code);
	}
	assert_true(in_time("pulls of a holder that is stopped", (sc_now_ns() - began) / 1000000, 1500));
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
	assert_true(tls ? closed == 40 : damaged > 5 && closed > 10); /* TLS notices before there is a frame */
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

static const char *certificates(const char *ca, int days, const char *name, char ret[100])
{
	char command[400];

	(void)snprintf(ret, 100, "%s/%s/%s", folder, ca, name);
	(void)snprintf(command, sizeof(command), CERTIFICATES " %s/%s %d %s", folder, ca, days, name);
	assert_int_equal(0, system(command));
	return ret;
}

static void who_has_no_certificate_of_the_ca_gets_nothing(void **unused)
{
	char path[100], why[200];

	(void)unused;
	assert_int_equal(RS_CODE_OK, pull_with(certificates("ca", 2, "third", path), why));
	assert_int_equal(RS_CODE_IO, pull_with(certificates("other", 2, "a", path), why));
	assert_non_null(strstr(why, "its certificate is refused"));
	assert_int_equal(RS_CODE_IO, pull_with(certificates("ca", -1, "old", path), why));
	assert_non_null(strstr(why, "expired"));
	assert_int_equal(RS_CODE_IO, pull_with(NULL, why));
	assert_non_null(strstr(why, "only one of the two nodes is mounted with tls="));
	assert_int_equal(RS_CODE_OK, pull_with(tls, why));
}

static void a_node_without_tls_is_told_so(void **unused)
{
	char path[100], why[200];

	(void)unused;
	assert_int_equal(RS_CODE_IO, pull_with(certificates("ca", 2, "a", path), why));
	assert_non_null(strstr(why, "only one of the two nodes is mounted with tls="));
}

/* A node's certificate is replaced while it runs: by one that is too old, by half a one, and by a good one. */
static void certificates_are_renewed(void **unused)
{
	char path[100], why[200], command[300];

	(void)unused;
	(void)certificates("ca", -1, "holder", path);
	assert_int_equal(RS_CODE_IO, pull_with(tls, why));
	assert_non_null(strstr(why, "expired"));
	(void)snprintf(command, sizeof(command), "echo half > %s/cert.pem", path);
	(void)certificates("ca", 2, "holder", path);
	assert_int_equal(RS_CODE_OK, pull_with(tls, why));
	assert_int_equal(0, system(command));
	assert_int_equal(RS_CODE_OK, pull_with(tls, why)); /* by the one from before */
	(void)certificates("ca", 2, "holder", path);
	assert_int_equal(RS_CODE_OK, pull_with(tls, why));
}

static void what_is_no_certificate_is_refused(void **unused)
{
	char path[100], other[100], command[400];
	struct rs_net_config g = config(1, EPOCH, 9);
	struct rs_net *n = NULL;
	struct sc_err err;

	(void)unused;
	g.tls = certificates("ca", 2, "mixed", path);
	(void)certificates("ca", 2, "b", other);
	(void)snprintf(command, sizeof(command), "cp %s/key.pem %s/key.pem", other, path);
	assert_int_equal(0, system(command));
	assert_int_equal(SC_E_FORMAT, rs_net_new(&g, &n, &err));
	(void)snprintf(command, sizeof(command), "rm %s/ca.pem", path);
	assert_int_equal(0, system(command));
	assert_int_equal(SC_E_SYSTEM, rs_net_new(&g, &n, &err));
	assert_int_equal(ENOENT, err.errnum);
	assert_non_null(strstr(err.msg, "ca.pem"));
	(void)snprintf(command, sizeof(command), "cd %s && openssl ec -in key.pem -out k -aes256 -passout pass:x 2>&1 && "
		       "mv k key.pem", other);
	assert_int_equal(0, system(command));
	g.tls = other; /* nobody is asked for the pass phrase */
	assert_int_equal(SC_E_FORMAT, rs_net_new(&g, &n, &err));
	assert_non_null(strstr(err.msg, "pass phrase"));
}

/* What comes after this is over TLS. */
static void begins_tls(void **unused)
{
	static char ours[100], theirs[100];

	(void)tear_down(unused);
	holders_tls = certificates("ca", 2, "holder", theirs);
	tls = certificates("ca", 2, "asker", ours);
	assert_int_equal(0, set_up(unused));
}

#define OF_ALL                                                                                                         \
	cmocka_unit_test(pulls_bring_what_a_copy_would), cmocka_unit_test(a_large_payload_goes_whole),                  \
	    cmocka_unit_test(refusals_have_their_code), cmocka_unit_test(messages_arrive_with_who_sent_them),           \
	    cmocka_unit_test(a_holder_that_dies_or_stops_ends_its_pulls),                                               \
	    cmocka_unit_test(strangers_and_the_fenced_get_nothing),                                                     \
	    cmocka_unit_test(noise_closes_the_connection_only)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    OF_ALL,
	    cmocka_unit_test(bent_bytes_are_noticed_wherever_they_are), /* UCX has the bytes in another connection */
	    cmocka_unit_test(a_node_without_tls_is_told_so),
	    cmocka_unit_test(begins_tls),
	    OF_ALL,
	    cmocka_unit_test(bent_bytes_are_noticed_wherever_they_are),
	    cmocka_unit_test(who_has_no_certificate_of_the_ca_gets_nothing),
	    cmocka_unit_test(what_is_no_certificate_is_refused),
	    cmocka_unit_test(certificates_are_renewed),
	};
	const struct CMUnitTest ucx_tests[] = {OF_ALL};
	char command[100];
	int failed;

	if (sides_begin(argc, argv, &failed))
		return failed;
	if (!mkdtemp(folder))
		return 1;
	failed = ucx ? cmocka_run_group_tests(ucx_tests, set_up, tear_down)
		     : cmocka_run_group_tests(tests, set_up, tear_down);
	free(tensor);
	(void)snprintf(command, sizeof(command), "rm -r %s", folder);
	return failed + system(command);
}
