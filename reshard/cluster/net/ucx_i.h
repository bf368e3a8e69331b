/* SPDX-License-Identifier: Apache-2.0 */
/* Names UCX's functions, of libraries that are loaded when they are wanted. */
#ifndef RS_UCX_I_H
#define RS_UCX_I_H

#include <stdbool.h>
#include <ucp/api/ucp.h>

/* name in rs_ucx, function of libucp.so.0 */
#define RS_UCP_FUNCTIONS(F)                                                                            \
	F(init, ucp_init_version)                                                                      \
	F(cleanup, ucp_cleanup)                                                                        \
	F(config_read, ucp_config_read)                                                                \
	F(config_modify, ucp_config_modify)                                                            \
	F(config_release, ucp_config_release)                                                          \
	F(worker_create, ucp_worker_create)                                                            \
	F(worker_destroy, ucp_worker_destroy)                                                          \
	F(worker_progress, ucp_worker_progress)                                                        \
	F(worker_efd, ucp_worker_get_efd)                                                              \
	F(worker_arm, ucp_worker_arm)                                                                  \
	F(worker_signal, ucp_worker_signal)                                                            \
	F(listener_create, ucp_listener_create)                                                        \
	F(listener_query, ucp_listener_query)                                                          \
	F(listener_reject, ucp_listener_reject)                                                        \
	F(listener_destroy, ucp_listener_destroy)                                                      \
	F(request_query, ucp_conn_request_query)                                                       \
	F(ep_create, ucp_ep_create)                                                                    \
	F(ep_close, ucp_ep_close_nbx)                                                                  \
	F(stream_send, ucp_stream_send_nbx)                                                            \
	F(stream_recv, ucp_stream_recv_data_nb)                                                        \
	F(stream_release, ucp_stream_data_release)                                                     \
	F(stream_poll, ucp_stream_worker_poll)                                                         \
	F(status_of, ucp_request_check_status)                                                         \
	F(request_free, ucp_request_free)

struct rs_ucx {
#define MEMBER(name, function) __typeof__(&function) name;
	RS_UCP_FUNCTIONS(MEMBER)
	__typeof__(&ucs_status_string) text; /* of libucs.so.0 */
	bool loaded;
};
extern struct rs_ucx rs_ucx;

#endif
