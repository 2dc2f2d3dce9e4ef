/* called_stream: the connection of a box that has called, as a stream of bytes: the server's side
 * of its TLS, whose key the box knows (box/caller.h). The key is this server's own: it is made at
 * first use and kept in the state directory, where only the server's processes look. */
#pragma once

#include "base/clock.h"
#include "box/caller.h"

struct byte_stream;
struct called_keys;
struct pd_err;

/* Reads the key, or makes it. NULL with *e. */
struct called_keys *called_keys_open(const char *state_dir, struct pd_err *e);
void called_keys_free(struct called_keys *k); /* NULL is fine */
/* What a box is told of it: the public key, in hexadecimal digits. */
void called_keys_pin(const struct called_keys *k, char out[2 * CALLER_PIN + 1]);

/* Does the handshake. The descriptor is taken over, also when it fails. NULL with *e. */
struct byte_stream *called_stream(const struct called_keys *k, int fd, deadline t,
                                  struct pd_err *e);
