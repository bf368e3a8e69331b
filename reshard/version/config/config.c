/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/version/config/config.h"

#include <stdio.h>
#include <string.h>

#include "meta/base/limits.h"
#include "meta/base/text.h"

static int one_of(const char *value, const char *const *words)
{
	for (int i = 0; words[i]; i++)
		if (strcmp(value, words[i]) == 0)
			return i;
	return -1;
}

static int number(const char *value, uint32_t most, uint32_t *ret)
{
	uint32_t n;

	if (!sc_number_parse(value, strlen(value), &n) || n > most)
		return -1;
	*ret = n;
	return 0;
}

/* Takes the name of a file of tensors, or a pattern of several; empty: none. */
static int glob(const char *value, char ret[RS_CONFIG_GLOB_BYTES])
{
	if (strlen(value) >= RS_CONFIG_GLOB_BYTES)
		return -1;
	memcpy(ret, value, strlen(value) + 1);
	return 0;
}

bool rs_ranks_next(const char **at, struct rs_ranks *ret)
{
	const size_t n = strspn(*at, "0123456789"), m = (*at)[n] == '-' ? strspn(*at + n + 1, "0123456789") : 0;
	const char *end = *at + n + ((*at)[n] == '-' ? m + 1 : 0);

	if (!sc_number_parse(*at, n, &ret->first) || (*end && (*end != ',' || !end[1])))
		return false;
	ret->last = ret->first;
	if ((*at)[n] == '-' && !sc_number_parse(*at + n + 1, m, &ret->last))
		return false;
	*at = end + (*end == ',');
	return ret->first <= ret->last && ret->last < SC_RANKS_MAX;
}

/* Takes the number of nodes that have a file's bytes; empty: as the cluster says. */
static int replicas(const char *value, uint32_t *ret)
{
	uint32_t n = 0;

	if (*value && (number(value, 16, &n) < 0 || !n))
		return -1;
	*ret = n;
	return 0;
}

static int home(const char *value, char ret[RS_CONFIG_HOME_BYTES])
{
	const char *at = strcmp(value, "none") == 0 ? "" : value;
	struct rs_ranks r;

	while (*at)
		if (!rs_ranks_next(&at, &r))
			return -1;
	if (strlen(value) >= RS_CONFIG_HOME_BYTES)
		return -1;
	memcpy(ret, value, strlen(value) + 1);
	return 0;
}

bool rs_ranks_have(const char *list, uint32_t rank)
{
	struct rs_ranks r;

	while (rs_ranks_next(&list, &r))
		if (rank >= r.first && rank <= r.last)
			return true;
	return false;
}

struct rs_config rs_config_default(void)
{
	return (struct rs_config){.materialize = RS_EAGER, .verify = RS_VERIFY_BACKGROUND, .keep = 4, .sync = true,
				  .ranks_per_node = 8, .buffer_bytes = 256u << 20,
				  .hf_shard_bytes = UINT64_C(5) << 30};
}

static const char *const materialize_words[] = {"eager", "lazy", "never", NULL};
static const char *const verify_words[] = {"commit", "background", NULL};
static const char *const switch_words[] = {"off", "on", NULL};
static const char *const yes_words[] = {"no", "yes", NULL};
static const char *const plain_words[] = {"refuse", "drop", NULL};
static const char *const suspicious_words[] = {"refuse", "accept", NULL};
static const char *const engine_words[] = {"auto", "host", "gpu", NULL};

const char *const rs_config_forms[] = {
	"materialize=eager|lazy|never", "verify=commit|background", "sync=on|off", "keep=N (0: all)",
	"buffer_mib=N (2 or more)", "ranks_per_node=N (1 or more)", "show=on|off", "remove=yes|no", "plain=refuse|drop",
	"suspicious=refuse|accept", "hf=FILE", "hf_shard=N[K|M|G] (1M or more)", "engine=auto|host|gpu",
	"home=RANKS (0-3,7) or none", "replicas=N (1 to 16)", NULL};

int rs_config_apply(struct rs_config *c, const char *key, const char *value)
{
	uint32_t mib, ranks;
	int word;

	if (strcmp(key, "materialize") == 0 && (word = one_of(value, materialize_words)) >= 0)
		c->materialize = word;
	else if (strcmp(key, "verify") == 0 && (word = one_of(value, verify_words)) >= 0)
		c->verify = word;
	else if (strcmp(key, "sync") == 0 && (word = one_of(value, switch_words)) >= 0)
		c->sync = word;
	else if (strcmp(key, "show") == 0 && (word = one_of(value, switch_words)) >= 0)
		c->show = word;
	else if (strcmp(key, "remove") == 0 && (word = one_of(value, yes_words)) >= 0)
		c->remove = word;
	else if (strcmp(key, "plain") == 0 && (word = one_of(value, plain_words)) >= 0)
		c->drop_plain = word;
	else if (strcmp(key, "suspicious") == 0 && (word = one_of(value, suspicious_words)) >= 0)
		c->accept_suspicious = word;
	else if (strcmp(key, "keep") == 0)
		return number(value, 1000000, &c->keep);
	else if (strcmp(key, "replicas") == 0)
		return replicas(value, &c->replicas);
	else if (strcmp(key, "ranks_per_node") == 0 && number(value, SC_RANKS_MAX, &ranks) == 0 && ranks >= 1)
		c->ranks_per_node = ranks;
	else if (strcmp(key, "buffer_mib") == 0 && number(value, 65536, &mib) == 0 && mib >= 2)
		c->buffer_bytes = (uint64_t)mib << 20;
	else if (strcmp(key, "home") == 0)
		return home(value, c->home);
	else if (strcmp(key, "hf") == 0)
		return glob(value, c->hf);
	else if (strcmp(key, "hf_shard") == 0)
		return sc_bytes_parse(value, &c->hf_shard_bytes) ? 0 : -1;
	else if (strcmp(key, "engine") == 0 && (word = one_of(value, engine_words)) >= 0)
		c->engine = word;
	else
		return -1;
	return 0;
}

void rs_config_hf(const struct rs_config *c, char *ret, size_t bytes)
{
	(void)snprintf(ret, bytes, "%llu,%s", (unsigned long long)c->hf_shard_bytes, c->hf);
}

void rs_config_text(const struct rs_config *c, struct sc_buf *buf)
{
	char copies[16] = "";

	if (c->replicas)
		(void)snprintf(copies, sizeof(copies), "%u", c->replicas);
	sc_buf_printf(buf, "materialize=%s\nverify=%s\nsync=%s\nkeep=%u\nbuffer_mib=%u\nranks_per_node=%u\n"
			   "show=%s\nremove=%s\nplain=%s\nsuspicious=%s\nhf=%s\nhf_shard=%uM\nengine=%s\n"
			   "home=%s\nreplicas=%s\n",
		      materialize_words[c->materialize], verify_words[c->verify],
		      switch_words[c->sync], c->keep, (unsigned)(c->buffer_bytes >> 20), c->ranks_per_node,
		      switch_words[c->show], yes_words[c->remove], plain_words[c->drop_plain],
		      suspicious_words[c->accept_suspicious], c->hf, (unsigned)(c->hf_shard_bytes >> 20),
		      engine_words[c->engine], c->home, copies);
}

const char *rs_config_engine(const struct rs_config *c)
{
	return c->engine == RS_ENGINE_AUTO ? NULL : engine_words[c->engine];
}
