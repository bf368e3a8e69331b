/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the words of mount -o. */
#include <stdio.h>
#include <string.h>

#include "fs/daemon/mount.h"
#include "meta/base/mem.h"
#include "meta/base/sys.h"
#include "meta/base/text.h"
#include "meta/member/keys.h"

#define DOMAIN_MAX 63u

/* Parses "off", or a number and s, m, h or d. */
static int scrub_option(const char *text, int64_t *ret_s, struct sc_err *err)
{
	static const struct {
		char letter;
		int64_t seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
	size_t n = strlen(text);
	uint32_t number;

	if (strcmp(text, "off") == 0) {
		*ret_s = 0;
		return 0;
	}
	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
		if (n > 1 && text[n - 1] == units[i].letter && sc_number_parse(text, n - 1, &number) && number) {
			*ret_s = number * units[i].seconds;
			return 0;
		}
	return sc_fail(err, SC_E_COMMAND, "scrub=%s: write how often each file is read again, like 30d or 12h, or off",
		       text);
}

static int log_option(struct fs_mount_options *o, const char *path, struct sc_err *err)
{
	if (*path != '/')
		return sc_fail(err, SC_E_COMMAND, "log=%s: write the file's whole path, from the root", path);
	if (strlen(path) >= sizeof(o->log))
		return sc_fail(err, SC_E_COMMAND, "log=: the path has more than %zu bytes", sizeof(o->log) - 1);
	(void)snprintf(o->log, sizeof(o->log), "%s", path);
	return 0;
}

/* Tells whether a word begins with a text, and gives the rest of it. */
static bool has(const char *word, const char *begin, const char **ret_value)
{
	*ret_value = word + strlen(begin);
	return strncmp(word, begin, strlen(begin)) == 0;
}

static int gpu_program(struct rs_gpu_options *gpu, const char *value, struct sc_err *err)
{
	gpu->off = strcmp(value, "off") == 0;
	if (!gpu->off && strcmp(value, "auto") != 0 && (*value != '/' || strlen(value) >= sizeof(gpu->program)))
		return sc_fail(err, SC_E_COMMAND, "gpu=%s: write auto, off, or the whole path of scalai-gpu", value);
	(void)snprintf(gpu->program, sizeof(gpu->program), "%s", *value == '/' ? value : "");
	return 0;
}

/* Parses `0` or `0:1:5`, with colons since a comma ends an option. */
static int gpu_devices(struct rs_gpu_options *gpu, const char *value, struct sc_err *err)
{
	uint32_t nr = 0, n;
	bool good = true;

	for (const char *at = value; good && at; nr++) {
		const char *end = strchrnul(at, ':');

		good = nr < RS_POOL_PEERS_MAX && sc_number_parse(at, (size_t)(end - at), &n) &&
		       n <= RS_GPU_DEVICE_MAX && !memchr(gpu->devices, (int)n, nr);
		if (good)
			gpu->devices[nr] = (uint8_t)n;
		at = *end ? end + 1 : NULL;
	}
	gpu->nr_devices = nr;
	if (good)
		return 0;
	return sc_fail(err, SC_E_COMMAND, "gpu_devices=%s: write the numbers of 1 to %u GPUs, each once, like "
		       "gpu_devices=0 or gpu_devices=0:1, in the order of their PCI addresses", value,
		       RS_POOL_PEERS_MAX);
}

/* Tells whether a value is one of NCCL_SOCKET_IFNAME, but no list, since a comma ends an option. */
static bool is_net(const char *value)
{
	const char *name = value + strspn(value, "=");

	return name - value <= 1 && *name && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
						    "0123456789_.-@") == strlen(name);
}

static int gpu_option(struct rs_gpu_options *gpu, const char *word, struct sc_err *err)
{
	uint32_t n;
	const char *value;

	if (has(word, "gpu=", &value))
		return gpu_program(gpu, value, err);
	if (has(word, "gpu_devices=", &value))
		return gpu_devices(gpu, value, err);
	if ((has(word, "gpu_memory=", &value) && sc_bytes_parse(value, &gpu->device_bytes)) ||
	    (has(word, "gpu_pinned=", &value) && sc_bytes_parse(value, &gpu->pinned_bytes)))
		return 0;
	if (has(word, "gpu_timeout=", &value) && sc_number_parse(value, strlen(value), &n) && n && n <= 86400) {
		gpu->timeout_ms = n * 1000;
		return 0;
	}
	if (has(word, "gpu_net=", &value) && *value && strlen(value) < sizeof(gpu->net) && is_net(value)) {
		(void)snprintf(gpu->net, sizeof(gpu->net), "%s", value);
		return 0;
	}
	return sc_fail(err, SC_E_COMMAND, "'%s' is no setting; there are gpu=auto|off|PATH, gpu_devices=N[:N...], "
		       "gpu_memory=N[K|M|G] and gpu_pinned=N[K|M|G] (1M or more), gpu_timeout=N (seconds, 1 or more), "
		       "gpu_net=NAME (of network interfaces)", word);
}

/* Keeps a copy of an option's value.  NULL: there is no room. */
static const char *keep(struct fs_mount_options *o, const char *value)
{
	char *at = o->words + o->nr_words;
	size_t n = strlen(value) + 1;

	if (n > sizeof(o->words) - o->nr_words)
		return NULL;
	memcpy(at, value, n);
	o->nr_words += n;
	return at;
}

static int cluster_option(struct fs_mount_options *o, const char *word, struct sc_err *err)
{
	struct rs_member_options *m = &o->member;
	const char *value, **to = NULL;

#ifndef FS_HAS_CLUSTER
	return sc_fail(err, SC_E_UNSUPPORTED, "'%s': this scalai was built without libcurl and libcrypto, and is no "
		       "node of a cluster", word);
#endif
	if (has(word, "cluster=", &value))
		to = &m->cluster;
	else if (has(word, "node=", &value))
		to = &m->node;
	else if (has(word, "listen=", &value))
		to = &m->listen;
	else if (has(word, "domain=", &value) && meta_plain_name(value, DOMAIN_MAX))
		to = &m->domain;
	else if (has(word, "etcd=", &value) && m->nr_etcd < RS_MEMBER_ETCD_MAX)
		to = &m->etcd[m->nr_etcd++];
	else if (has(word, "tls=", &value))
		to = &m->tls;
	else if (has(word, "etcd_tls=", &value))
		to = &m->etcd_tls;
	else if (has(word, "fabric=", &value) && (strcmp(value, "tcp") == 0 || strcmp(value, "ucx") == 0))
		to = &m->fabric;
	if (!to || !*value)
		return sc_fail(err, SC_E_COMMAND, "'%.80s': there are cluster=NAME, node=NAME, listen=ADDRESS:PORT, up "
			       "to %d times etcd=URL, tls=FOLDER, etcd_tls=FOLDER, fabric=tcp|ucx, and domain=NAME, of "
			       "%u letters, digits, '-', '_' and '.' at most", word, RS_MEMBER_ETCD_MAX, DOMAIN_MAX);
	if ((to == &m->tls || to == &m->etcd_tls) && *value != '/')
		return sc_fail(err, SC_E_COMMAND, "'%s': write the folder's whole path, from / on", word);
	if ((to == &m->cluster || to == &m->node) && !meta_plain_name(value, NAME_MAX))
		return sc_fail(err, SC_E_COMMAND, "'%.80s': a name has letters, digits, '-', '_' and '.'", word);
	*to = keep(o, value);
	return *to ? 0 : sc_fail(err, SC_E_COMMAND, "'%.64s': the options of the cluster are too long", word);
}

static bool is_of_cluster(const char *word)
{
	static const char *const names[] = {"cluster=", "node=", "listen=", "etcd=", "tls=", "etcd_tls=", "fabric=",
					    "domain="};
	const char *ignored;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (has(word, names[i], &ignored))
			return true;
	return false;
}

/* Refuses options of a cluster if only some of them are given. */
static int check_cluster(const struct fs_mount_options *o, struct sc_err *err)
{
	const struct rs_member_options *m = &o->member;

	if (!m->cluster && !m->node && !m->listen && !m->nr_etcd && !m->tls && !m->etcd_tls && !m->fabric &&
	    !m->domain)
		return 0;
	if (!m->cluster || !m->node || !m->listen || !m->nr_etcd)
		return sc_fail(err, SC_E_COMMAND, "a node of a cluster needs all of cluster=NAME, node=NAME, "
			       "listen=ADDRESS:PORT and etcd=URL");
	if (m->tls && m->fabric && strcmp(m->fabric, "ucx") == 0)
		return sc_fail(err, SC_E_COMMAND, "fabric=ucx and tls= do not go together: UCX has no TLS");
	return 0;
}

int fs_etcd_option(struct fs_mount_options *o, const char *text, struct sc_err *err)
{
	char *copy = sc_strdup(text), *save = NULL, *word;
	const char *ignored;
	int rc = copy ? 0 : sc_nomem(err);

	for (word = copy ? strtok_r(copy, ",", &save) : NULL; rc == 0 && word; word = strtok_r(NULL, ",", &save))
		rc = has(word, "cluster=", &ignored) || has(word, "etcd=", &ignored) || has(word, "etcd_tls=", &ignored)
			     ? cluster_option(o, word, err)
			     : sc_fail(err, SC_E_COMMAND, "'%.80s': there are cluster=NAME, etcd=URL and "
				       "etcd_tls=FOLDER here", word);
	if (rc == 0 && (!o->member.cluster || !o->member.nr_etcd))
		rc = sc_fail(err, SC_E_COMMAND, "cluster=NAME and etcd=URL are needed");
	sc_sys.release(copy);
	return rc;
}

int fs_mount_option(struct fs_mount_options *o, const char *text, struct sc_err *err)
{
	static const char *const taken[] = {"rw", "auto", "noauto", "user", "nouser", "users", "defaults", "async",
					    "_netdev", "nofail", "suid", "nosuid", "dev", "nodev", "exec", "noexec",
					    "atime", "noatime", "relatime", "allow_other", "default_permissions", NULL};
	char *copy = sc_strdup(text), *save = NULL, *word;
	int rc = copy ? 0 : sc_nomem(err);

	for (word = copy ? strtok_r(copy, ",", &save) : NULL; rc == 0 && word; word = strtok_r(NULL, ",", &save)) {
		bool known = strncmp(word, "x-", 2) == 0 || strncmp(word, "comment=", 8) == 0;

		for (int i = 0; taken[i]; i++)
			known |= strcmp(word, taken[i]) == 0;
		if (strcmp(word, "io_uring") == 0)
			o->io_uring = true;
		else if (strcmp(word, "private") == 0)
			o->private_ = true;
		else if (strcmp(word, "no_passthrough") == 0)
			o->no_passthrough = true;
		else if (strcmp(word, "hold") == 0)
			o->hold = true;
		else if (strcmp(word, "existing") == 0)
			o->existing = true;
		else if (strcmp(word, "no_read_ahead") == 0)
			o->read_ahead_off = true;
		else if (strcmp(word, "debug") == 0)
			o->debug = true;
		else if (strncmp(word, "log=", 4) == 0)
			rc = log_option(o, word + 4, err);
		else if (is_of_cluster(word))
			rc = cluster_option(o, word, err);
		else if (strncmp(word, "gpu", 3) == 0)
			rc = gpu_option(&o->gpu, word, err);
		else if (strncmp(word, "scrub=", 6) == 0)
			rc = scrub_option(word + 6, &o->scrub_s, err);
		else if (strncmp(word, "scrub_mib_s=", 12) == 0)
			rc = sc_number_parse(word + 12, strlen(word + 12), &o->scrub_mib_s)
				     ? 0
				     : sc_fail(err, SC_E_COMMAND, "'%s': write a number of MiB a second, like "
				     	"scrub_mib_s=64", word);
		else if (!known)
			rc = sc_fail(err, SC_E_COMMAND, "mount option '%s' is unknown; Scalai's own are io_uring, "
				     "private, existing, no_passthrough, no_read_ahead, hold, scrub=, scrub_mib_s=, "
				     "log=, debug, gpu=, gpu_devices=, gpu_memory=, gpu_pinned=, gpu_timeout=, "
				     "gpu_net=, cluster=, node=, listen=, etcd=, tls=, etcd_tls=, fabric=, "
				     "domain=", word);
	}
	if (rc == 0)
		rc = check_cluster(o, err);
	if (rc == 0 && o->hold && o->io_uring)
		rc = sc_fail(err, SC_E_COMMAND, "hold and io_uring do not go together: the kernel can't hand its rings "
			     "over");
	sc_sys.release(copy);
	return rc;
}
