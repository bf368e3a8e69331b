/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/cluster/net/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "meta/base/mem.h"

#define NR_FILES 3

static const char *const names[NR_FILES] = {"ca.pem", "cert.pem", "key.pem"};

struct rs_tls {
	char *folder;
	SSL_CTX *context;
	struct timespec times[NR_FILES]; /* of the files as they were last looked at */
};

/* Says in words why OpenSSL refused, and forgets its errors; `s` is the connection, or NULL. */
static const char *reason(const SSL *s)
{
	static char text[200];
	unsigned long e = ERR_peek_last_error();
	const char *words = e ? ERR_reason_error_string(e) : NULL;
	long bad = s ? SSL_get_verify_result(s) : X509_V_OK;

	if (bad != X509_V_OK)
		(void)snprintf(text, sizeof(text), "its certificate is refused: %s",
			       X509_verify_cert_error_string(bad));
	else
		(void)snprintf(text, sizeof(text), "TLS: %s", words ? words : "no reason is given");
	ERR_clear_error();
	return text;
}

/* Gives no pass phrase: a daemon has nobody to ask, so a key with one cannot be used. */
static int no_pass_phrase(char *to, int room, int writes, void *arg)
{
	(void)to, (void)room, (void)writes, (void)arg;
	return -1;
}

static int load_files(SSL_CTX *c, const char *folder, struct sc_err *err)
{
	char path[NR_FILES][4096];
	int bad = -1;

	for (int i = 0; i < NR_FILES; i++)
		(void)snprintf(path[i], sizeof(path[i]), "%s/%s", folder, names[i]);
	for (int i = 0; i < NR_FILES; i++)
		if (access(path[i], R_OK) < 0)
			return sc_fail_sys(err, errno, "cannot read '%s' (tls= is a folder with ca.pem, cert.pem and "
					   "key.pem)", path[i]);
	SSL_CTX_set_default_passwd_cb(c, no_pass_phrase);
	if (SSL_CTX_load_verify_file(c, path[0]) != 1)
		bad = 0;
	else if (SSL_CTX_use_certificate_chain_file(c, path[1]) != 1)
		bad = 1;
	else if (SSL_CTX_use_PrivateKey_file(c, path[2], SSL_FILETYPE_PEM) != 1)
		bad = 2;
	if (bad >= 0)
		return sc_fail(err, SC_E_FORMAT, "'%s' cannot be used%s: %s", path[bad],
			       bad == 2 ? " (a key with a pass phrase cannot be)" : "", reason(NULL));
	if (SSL_CTX_check_private_key(c) != 1)
		return sc_fail(err, SC_E_FORMAT, "'%s' is not the key of '%s'", path[2], path[1]);
	return 0;
}

/* Reads the certificates.  No session of TLS is kept, so each connection makes a handshake, by the certificates that
 * are there then. */
static int make_context(const char *folder, SSL_CTX **ret, struct sc_err *err)
{
	SSL_CTX *c = SSL_CTX_new(TLS_method());
	int rc = c ? 0 : sc_nomem(err);

	if (rc == 0 && (SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
			SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:"
						    "TLS_AES_256_GCM_SHA384") != 1 ||
			SSL_CTX_set_num_tickets(c, 0) != 1))
		rc = sc_fail(err, SC_E_UNSUPPORTED, "OpenSSL has no TLS 1.3: %s", reason(NULL));
	if (rc == 0)
		rc = load_files(c, folder, err);
	if (rc < 0) {
		SSL_CTX_free(c);
		return rc;
	}
	SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
	(void)SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
	(void)SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
					  SSL_MODE_RELEASE_BUFFERS);
	(void)SSL_CTX_set_options(c, SSL_OP_IGNORE_UNEXPECTED_EOF); /* frames say how long they are */
	SSL_CTX_set_read_ahead(c, 1); /* a header and its record by one read */
	*ret = c;
	return 0;
}

static bool look_at_files(struct rs_tls *t)
{
	bool changed = false;

	for (int i = 0; i < NR_FILES; i++) {
		struct stat st = {0};
		char path[4096];

		(void)snprintf(path, sizeof(path), "%s/%s", t->folder, names[i]);
		(void)stat(path, &st);
		changed |= memcmp(&st.st_mtim, &t->times[i], sizeof(st.st_mtim)) != 0;
		t->times[i] = st.st_mtim;
	}
	return changed;
}

int rs_tls_new(const char *folder, struct rs_tls **ret, struct sc_err *err)
{
	struct rs_tls *t = sc_zalloc(sizeof(*t));
	int rc;

	if (!t || !(t->folder = sc_strdup(folder))) {
		sc_sys.release(t);
		return sc_nomem(err);
	}
	(void)look_at_files(t);
	rc = make_context(folder, &t->context, err);
	if (rc < 0)
		rs_tls_free(t);
	else
		*ret = t;
	return rc;
}

void rs_tls_free(struct rs_tls *t)
{
	if (!t)
		return;
	SSL_CTX_free(t->context);
	sc_sys.release(t->folder);
	sc_sys.release(t);
}

/* Takes certificates that were replaced.  If they cannot be used, say, as not all files are replaced yet, it logs that
 * once, and looks at the files again when they change. */
static void renew(struct rs_tls *t)
{
	SSL_CTX *newer = NULL;
	struct sc_err err;

	if (!look_at_files(t))
		return;
	if (make_context(t->folder, &newer, &err) < 0) {
		sc_log(SC_LOG_WARN, "%s; the certificates from before are used on", err.msg);
		return;
	}
	SSL_CTX_free(t->context); /* connections have it on */
	t->context = newer;
}

struct ssl_st *rs_tls_begin(struct rs_tls *t, int fd, bool asks)
{
	SSL *s;

	renew(t);
	s = SSL_new(t->context);
	if (!s || SSL_set_fd(s, fd) != 1) {
		SSL_free(s);
		ERR_clear_error();
		return NULL;
	}
	if (asks)
		SSL_set_connect_state(s);
	else
		SSL_set_accept_state(s);
	return s;
}

void rs_tls_end(struct ssl_st *s)
{
	SSL_free(s);
}

/* Says why no byte went, as recv(2) would: 0 (the other side has closed the connection), or -1 and errno. */
static ssize_t nothing(SSL *s, const char **why)
{
	const int number = errno, e = SSL_get_error(s, 0);

	*why = NULL;
	if (e == SSL_ERROR_ZERO_RETURN)
		return 0;
	if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) {
		errno = EAGAIN;
	} else if (e == SSL_ERROR_SSL) {
		*why = reason(s);
		errno = EPROTO;
	} else {
		*why = number && number != ECONNRESET && number != EPIPE ? strerror(number) : NULL;
		errno = number;
	}
	return -1;
}

ssize_t rs_tls_recv(struct ssl_st *s, void *to, size_t bytes, const char **why)
{
	size_t n = 0;

	ERR_clear_error();
	errno = 0;
	return SSL_read_ex(s, to, bytes, &n) == 1 ? (ssize_t)n : nothing(s, why);
}

ssize_t rs_tls_send(struct ssl_st *s, const void *from, size_t bytes, const char **why)
{
	size_t n = 0;

	ERR_clear_error();
	errno = 0;
	if (SSL_write_ex(s, from, bytes, &n) == 1)
		return (ssize_t)n;
	if (nothing(s, why) == 0)
		errno = EPIPE;
	return -1;
}

bool rs_tls_has_more(const struct ssl_st *s)
{
	return SSL_has_pending(s) == 1;
}

bool rs_tls_wants_out(const struct ssl_st *s)
{
	return SSL_want(s) == SSL_WRITING;
}
