/* ws_client: whoever is at the other end of a WebSocket of ours: what it is sent, whether it is
 * still there, and whether it still may be.
 *
 * A client shows that it is there by answering pings, or by reading. */
#pragma once

#include "base/clock.h"
#include "net/ws.h"

#include <stdbool.h>
#include <sys/types.h>

struct call;
struct pd_err;

#define WS_CLIENT_LOOK (NS_PER_S) /* how often ws_client_keep_time is to be called at least */

struct ws_client {
    struct call *c;
    struct ws_decoder decoder;
    bool blocked; /* its socket takes no more */
    bool closing; /* a close was sent: nothing more is */
    deadline ping_at, gone_at, look_at;
};

/* Answers the request with an upgrade. Then the caller must call ws_client_end. */
int ws_client_begin(struct ws_client *w, struct call *c, size_t message_max, struct pd_err *e);
/* Says goodbye. `why`: what broke, or NULL; a client that left is no failure of this server's. */
void ws_client_end(struct ws_client *w, const struct pd_err *why);

int ws_client_send(struct ws_client *w, enum ws_opcode opcode, const void *data, size_t len,
                   struct pd_err *e);
/* Whether its socket takes anything now. */
bool ws_client_can_write(struct ws_client *w);
int ws_client_close(struct ws_client *w, unsigned code, const char *reason);

/* Something came from it. */
void ws_client_seen(struct ws_client *w);
/* Reads what has come, without waiting: bytes, 0 for none, -1 when it has left. */
ssize_t ws_client_read(struct ws_client *w, void *out, size_t size, struct pd_err *e);
/* Answers a ping or a close. True: the message was one of these. */
bool ws_client_take_control(struct ws_client *w, const struct ws_message *m, int *ret_result,
                            struct pd_err *e);
/* Sends pings; closes when the server stops or the key was revoked; fails with PD_LOST for a
 * client that left without a word. */
int ws_client_keep_time(struct ws_client *w, struct pd_err *e);
