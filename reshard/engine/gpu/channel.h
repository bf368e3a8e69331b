/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives messages (wire.h) by a socket pair; both sides have one end. */
#ifndef RS_CHANNEL_H
#define RS_CHANNEL_H

#include "reshard/engine/gpu/wire.h"

enum { RS_CHANNEL_LATE = 0, RS_CHANNEL_HERE = 1, RS_CHANNEL_ENDED = 2 };

/** Sends a message, and a descriptor with it unless pass_fd is below 0.  Never blocks: there is room for all messages
 *  that may be sent before the other side answers.  Errors: SC_E_SYSTEM. */
int rs_channel_send(int fd, const struct rs_wire_message *m, int pass_fd, struct sc_err *err);
/**
 * Waits timeout_ms (-1: for ever) for a message.  Returns RS_CHANNEL_HERE, RS_CHANNEL_LATE (no message came) or
 * RS_CHANNEL_ENDED (the other side has closed).  *ret_fd is the descriptor that came with the message, which is the
 * caller's, or -1; ret_fd may be NULL: no descriptor is wanted.
 * Errors: SC_E_SYSTEM, SC_E_STATE (the message has another size).
 */
int rs_channel_receive(int fd, int timeout_ms, struct rs_wire_message *ret, int *ret_fd, struct sc_err *err);
/** Tells whether the other side has closed, without waiting longer than `us` microseconds for it. */
bool rs_channel_is_closed(int fd, unsigned us);

#endif
