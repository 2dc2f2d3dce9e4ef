/* switchboard: where boxes call that nobody can dial. One process listens at an address of this
 * machine for all boxes of it; which box calls stands in the first bytes of its TLS (SNI), and the
 * connection is handed to whoever waits for that box, as it came. Keys and sessions of TLS are the
 * waiter's: this process decrypts nothing, has no credentials, and reads no more than a
 * ClientHello.
 *
 *   box ──TLS──▶ switchboard ──the connection itself──▶ carrier of that box
 *
 * It is started by the first who waits and ends a moment after the last has gone. Those who wait
 * find it by an abstract socket that is named after the address, and both sides look whose process
 * the other one is. Who calls has a few seconds to say for whom, and there are so many places. */
#pragma once

#include "base/clock.h"

#include <stdbool.h>

struct pd_err;

/* "ADDRESS:PORT" or "[ADDRESS]:PORT", numeric. PD_INVALID. */
int switchboard_check(const char *listen, struct pd_err *e);

/* Waits for calls of the box with this link's id: a descriptor that can be read when there is one,
 * or -1. Starts the switchboard if there is none; PD_INVALID says why it cannot listen. */
int switchboard_join(const char *listen, const char *link, deadline t, struct pd_err *e);
/* The next call; -1 without waiting when there is none, with *ret_gone where there will be none. */
int switchboard_take(int board, bool *ret_gone);

/* `paddock-remote switchboard ADDRESS:PORT`. Says "up", "there" (it is there already) or what is
 * wrong on its standard output. */
_Noreturn void switchboard_main(const char *listen);
