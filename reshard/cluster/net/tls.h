/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts mutual TLS 1.3 of OpenSSL below the frames: both sides have a certificate of the cluster's own CA.  TLS keeps
 * the bytes of a connection secret, and keeps out a forger in the path; HELLOs say who a node is, as without TLS.
 *
 * A folder has ca.pem, cert.pem and key.pem.  They may be replaced while a node runs: new connections use the new ones.
 */
#ifndef RS_TLS_H
#define RS_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "meta/base/err.h"

struct rs_tls;
struct ssl_st; /* one connection's: OpenSSL's SSL */

/** Reads the files of a folder.  SC_E_FORMAT (a file is missing, or no certificate or key, or the files do not belong
 *  together), SC_E_NO_MEMORY. */
int rs_tls_new(const char *folder, struct rs_tls **ret, struct sc_err *err);
void rs_tls_free(struct rs_tls *t);

/** Begins TLS over a socket that does not block, which stays the caller's; `asks`: this side has opened it.  NULL:
 *  there is no memory. */
struct ssl_st *rs_tls_begin(struct rs_tls *t, int fd, bool asks);
void rs_tls_end(struct ssl_st *s);

/** As recv(2) and send(2), with the handshake before the first byte.  After EAGAIN the caller waits as
 *  rs_tls_wants_out() says.  With another errno *why is the reason, in a static buffer, or NULL: the other side has
 *  closed the connection. */
ssize_t rs_tls_recv(struct ssl_st *s, void *to, size_t bytes, const char **why);
ssize_t rs_tls_send(struct ssl_st *s, const void *from, size_t bytes, const char **why);
/** Tells whether TLS has taken bytes from the socket that rs_tls_recv() has not returned. */
bool rs_tls_has_more(const struct ssl_st *s);
/** Tells, after EAGAIN, whether the socket must take bytes before there is something to do. */
bool rs_tls_wants_out(const struct ssl_st *s);

#endif
