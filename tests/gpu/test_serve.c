/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nonsense for the helper, in a thread of this process and on the stand-in for CUDA: a daemon that follows the protocol, but
 * for a message or a plan here and there.  The helper refuses it with a sentence, or goes on where it did no harm; nothing is
 * touched that is not there, nothing is left, nobody hangs.
 */
#include "reshard/engine/gpu_helper/serve.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "meta/base/sys.h"
#include "reshard/engine/gpu/channel.h"
#include "tests/gpu/fake_cuda.h"
#include "tests/prop/pick.h"
#include "tests/support/every.h"

#define CONVERSATIONS some_of(3000)
#define WINDOW 4096u
#define BOXES 6u
#define WAIT_MS 20000

static struct rs_pool pool = {WINDOW, BOXES, 1};	/* of a conversation */
static unsigned refused, finished, planned, loaded, freed, kept;

struct talk {
	int fd, helper_fd, memory_fd;
	unsigned char *memory;
	struct rs_wire wire;		/* as the daemon sees it */
	unsigned odd;			/* of 100 messages, so many are */
	int rc;				/* the helper's, and its sentence */
	struct sc_err err;
};

static void *serve(void *arg)
{
	struct talk *t = arg;

	t->rc = rs_serve(t->helper_fd, ".version 8.0", &t->err);
	(void)shutdown(t->helper_fd, SHUT_RDWR);
	return NULL;
}

/* --- what the daemon says --- */

static uint64_t odd_number(void)
{
	static const uint64_t odd[] = {0, 1, 5, 4095, 4096, 4097, 1u << 16, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX - 4096};

	return odd[pick(sizeof(odd) / sizeof(*odd))];
}

static void change(struct rs_wire_message *m)
{
	unsigned char *bytes = (unsigned char *)m;

	switch (pick(4)) {
	case 0:
		for (size_t i = 0; i < sizeof(*m); i++)
			bytes[i] = (unsigned char)pick(256);
		break;
	case 1:
		m->kind = pick(22);
		break;
	case 2:
		m->nr = pick(2) ? m->nr + pick(4) : odd_number();
		break;
	default:
		bytes[pick(64)] ^= (unsigned char)(1 << pick(8));
	}
}

/* False: the helper is gone. */
static bool say(struct talk *t, struct rs_wire_message m, int pass_fd)
{
	struct sc_err err;

	if (pick(100) < t->odd)
		change(&m);
	if (pick(400) < t->odd)
		return send(t->fd, &m, pick(sizeof(m)), MSG_NOSIGNAL) >= 0;
	/* what the daemon would not have said is said, too */
	(void)rs_wire_step(&t->wire, &m, false, &err);
	return rs_channel_send(t->fd, &m, pick(100) < t->odd / 4 ? -1 : pass_fd, &err) == 0;
}

static struct rs_copy random_copy(bool odd)
{
	const uint64_t run = 1 + pick(40), rows = 1 + pick(10);
	struct rs_copy c = {.nr = 1, .run = run, .ext = {rows}, .from_stride = {run + pick(20)}, .to_stride = {run}};

	c.from = pick(1000);
	c.to = pick(1000);
	if (!odd)
		return c;
	switch (pick(6)) {
	case 0:
		c.nr = (uint8_t)pick(256);
		break;
	case 1:
		c.run = odd_number();
		break;
	case 2:
		c.ext[0] = odd_number();
		break;
	case 3:
		*(pick(2) ? &c.from : &c.to) = odd_number();
		break;
	case 4:
		*(pick(2) ? &c.from_stride[0] : &c.to_stride[0]) = odd_number();
		break;
	default:
		for (size_t i = 0; i < sizeof(c); i++)
			((unsigned char *)&c)[i] = (unsigned char)pick(256);
	}
	return c;
}

struct plan {
	struct rs_extent in, out;
	struct rs_copy copies[BOXES], packs[2], unpacks[2];
	struct rs_part sends[RS_POOL_WORLD_MAX], recvs[RS_POOL_WORLD_MAX];
};

/* One range is read and one written, whole windows; some copies between them; and 40 bytes for each other peer. */
static void plan_share(struct talk *t, uint32_t p, struct plan *plan, struct rs_share *share)
{
	*plan = (struct plan){.in = {.bytes = WINDOW}, .out = {.bytes = WINDOW, .zero = true}};
	*share = (struct rs_share){.in = &plan->in, .out = &plan->out, .copies = plan->copies, .packs = plan->packs,
				   .unpacks = plan->unpacks, .sends = plan->sends, .recvs = plan->recvs, .nr_in = 1, .nr_out = 1,
				   .nr_copies = 1 + (uint32_t)pick(BOXES), .in_bytes = WINDOW, .out_bytes = WINDOW};
	for (unsigned i = 0; i < share->nr_copies; i++) {
		plan->copies[i] = random_copy(pick(100) < t->odd);
		plan->copies[i].to = plan->copies[i].to % 200 + 600 * i; /* apart, if they are none of the odd ones */
	}
	for (uint32_t q = 0; q < pool.peers; q++) {
		if (q == p)
			continue;
		plan->packs[share->nr_packs++] = (struct rs_copy){.from = 7 * q, .to = 48 * q, .run = 40};
		plan->unpacks[share->nr_unpacks++] = (struct rs_copy){.from = 48 * q, .to = 3700 + 48 * q, .run = 40};
		plan->sends[q] = plan->recvs[q] = (struct rs_part){48 * q, 40};
		share->send_bytes = share->recv_bytes = 48 * 3;
	}
}

static void make_odd(struct plan *plan, struct rs_share *share)
{
	struct rs_part *part = pick(2) ? &plan->sends[pick(pool.peers)] : &plan->recvs[pick(pool.peers)];

	switch (pick(6)) {
	case 0:
		*(pick(2) ? &plan->out.window : &plan->out.bytes) = odd_number();
		break;
	case 1:
		memset(&plan->out.zero, 2 + (int)pick(254), sizeof(plan->out.zero));
		break;
	case 2:
		*(pick(2) ? &share->in_bytes : &share->out_bytes) = odd_number();
		break;
	case 3:
		*(pick(2) ? &share->send_bytes : &share->recv_bytes) = odd_number();
		break;
	case 4:
		*(pick(2) ? &part->at : &part->bytes) = odd_number();
		break;
	default:
		(pick(2) ? plan->packs : plan->unpacks)[0] = random_copy(true);
	}
}

static bool say_round(struct talk *t)
{
	struct plan plans[RS_POOL_PEERS_MAX];
	struct rs_share shares[RS_POOL_PEERS_MAX];
	const struct rs_round round = {pool.peers, shares};

	planned++;
	for (uint32_t p = 0; p < pool.peers; p++) {
		plan_share(t, p, &plans[p], &shares[p]);
		if (pick(100) < t->odd)
			make_odd(&plans[p], &shares[p]);
	}
	rs_wire_put_plan(&pool, t->memory, &round);
	if (pick(100) < t->odd / 2)
		memset(t->memory + rs_pool_bytes(&pool) + pick(rs_wire_bytes(&pool) - rs_pool_bytes(&pool) - 8), (int)pick(256), 8);
	if (pick(100) < t->odd / 2) /* the numbers of a table */
		memset(t->memory + rs_pool_bytes(&pool) + 4 * pick(5), 255, 1 + pick(4));
	return say(t, rs_wire_message(RS_WIRE_ROUND, t->wire.put), -1);
}

/* --- the conversation --- */

static bool set_up(struct talk *t)
{
	struct rs_wire_message m = rs_wire_message(RS_WIRE_SETUP, 0);

	m.window_bytes = WINDOW;
	m.boxes_max = BOXES;
	m.peers = pool.peers;
	for (uint32_t p = 0; p < pool.peers; p++)
		m.devices[p] = (uint8_t)p;
	m.exchange_ms = WAIT_MS;
	m.idle_ms = WAIT_MS;
	return say(t, m, t->memory_fd);
}

/* Takes a buffer, gives one back, or begins a pass that ends in one or in files. */
static bool say_when_idle(struct talk *t)
{
	struct rs_wire_message m = rs_wire_message(RS_WIRE_BEGIN, 0);
	const uint64_t nr = 1 + pick(3), bit = UINT64_C(1) << (nr - 1);

	if (pool.peers == 1 && pick(3)) {
		m.kind = t->wire.buffers & bit ? (pick(2) ? RS_WIRE_FREE : RS_WIRE_BEGIN) : RS_WIRE_LOAD;
		m.nr = nr;
		m.window_bytes = WINDOW + pick(5 << 20);
	}
	return say(t, m, -1);
}

/* What the daemon says next; false: the helper is gone, or is left alone. */
static bool go_on(struct talk *t)
{
	switch (t->wire.phase) {
	case RS_WIRE_NEW:
		return set_up(t);
	case RS_WIRE_IDLE:
		return pick(8) && say_when_idle(t);
	case RS_WIRE_BATCH:
		return pick(8) ? say_round(t) : say(t, rs_wire_message(RS_WIRE_FINISH, 0), -1);
	case RS_WIRE_FILLING:
		return say(t, rs_wire_message(RS_WIRE_FILLED, t->wire.put), -1);
	case RS_WIRE_DRAINING:
		return say(t, rs_wire_message(RS_WIRE_DRAINED, t->wire.drained), -1);
	default:
		return true; /* the helper's turn */
	}
}

static bool is_helpers_turn(const struct talk *t)
{
	return t->wire.phase != RS_WIRE_NEW && t->wire.phase != RS_WIRE_IDLE && t->wire.phase != RS_WIRE_BATCH &&
	       t->wire.phase != RS_WIRE_FILLING && t->wire.phase != RS_WIRE_DRAINING;
}

/* Hears all that the helper has to say now.  What it says is always right, as long as the daemon was. */
static bool listen_to(struct talk *t, bool was_right)
{
	struct rs_wire_message m;
	struct sc_err err;
	int rc = rs_channel_receive(t->fd, is_helpers_turn(t) && was_right ? WAIT_MS : 20, &m, NULL, &err);

	if (rc == RS_CHANNEL_LATE)
		assert_false(was_right && is_helpers_turn(t));
	if (rc != RS_CHANNEL_HERE)
		return false;
	if (m.kind == RS_WIRE_FAILED) {
		assert_true(m.text[0]);
		return false;
	}
	rc = rs_wire_step(&t->wire, &m, true, &err);
	if (was_right)
		assert_int_equal(0, rc);
	finished += m.kind == RS_WIRE_FINISHED;
	kept += m.kind == RS_WIRE_FINISHED && t->wire.buffer;
	loaded += m.kind == RS_WIRE_LOADED;
	freed += m.kind == RS_WIRE_FREED;
	return rc == 0;
}

/* In the midst of work a device is left as it is: its process ends.  Odd plans have other bytes than the right ones. */
static bool is_harmless(const char *found, unsigned odd)
{
	return strncmp(found, "leak: ", 6) == 0 ||
	       (odd && (strstr(found, "a byte is stored twice") || strstr(found, "a byte outside of all rows is loaded")));
}

static void talk(unsigned odd)
{
	struct talk t = {.odd = odd, .memory_fd = memfd_create("pool", MFD_CLOEXEC)};
	struct fake_findings found;
	pthread_t thread;
	int pair[2];

	pool.peers = pick(2) ? 1 : 2 + (uint32_t)pick(2);
	fake_begin((enum fake_order)pick(FAKE_ORDERS), pick(1u << 30));
	assert_int_equal(0, sc_sys.socket_pair(pair));
	t.fd = pair[0];
	t.helper_fd = pair[1];
	assert_int_equal(0, ftruncate(t.memory_fd, (off_t)rs_wire_bytes(&pool)));
	t.memory = mmap(NULL, rs_wire_bytes(&pool), PROT_READ | PROT_WRITE, MAP_SHARED, t.memory_fd, 0);
	assert_ptr_not_equal(MAP_FAILED, t.memory);
	assert_int_equal(0, pthread_create(&thread, NULL, serve, &t));
	for (unsigned i = 0; i < 60 && go_on(&t); i++)
		if (is_helpers_turn(&t) && !listen_to(&t, odd == 0))
			break;
	(void)close(t.fd);
	(void)pthread_join(thread, NULL);
	if (t.rc < 0)
		assert_true(t.err.code == t.rc && t.err.msg[0]);
	refused += t.rc == SC_E_STATE;
	found = fake_end();
	if (!is_harmless(found.first, odd))
		assert_string_equal("", found.first);
	(void)close(t.helper_fd);
	(void)close(t.memory_fd);
	(void)munmap(t.memory, rs_wire_bytes(&pool));
}

static void nonsense_is_refused(void **unused)
{
	(void)unused;
	random_state = 1;
	for (unsigned i = 0; i < CONVERSATIONS; i++)
		talk(i % 3 == 0 ? 0 : i % 3 == 1 ? 3 : 12);
	print_message("# %u rounds were planned, %u passes finished, %u of them in %u buffers, of which %u were freed; %u conversations refused\n",
		      planned, finished, kept, loaded, freed, refused);
	assert_true(loaded > CONVERSATIONS / 10 && freed > CONVERSATIONS / 30 && kept > CONVERSATIONS / 30);
	assert_true(planned > CONVERSATIONS && finished > CONVERSATIONS / 5 && refused > CONVERSATIONS / 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(nonsense_is_refused)};

	return cmocka_run_group_tests_name("serve", tests, NULL, NULL);
}
