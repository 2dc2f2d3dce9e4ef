/* seal: text that only this server can read: AES-256-GCM under a key that lies in a file of its own
 * beside the database, so that a copy of the database alone tells nothing.
 *
 * The daemon seals; it and the changer (docs/secrets.md) open. What is in between, the database or
 * the gate, passes on what it cannot read. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct buf;
struct pd_err;

#define SEAL_KEY_LEN 32
#define SEAL_FILE    "secrets.key" /* in the daemon's data directory */

struct seal_key {
    uint8_t bytes[SEAL_KEY_LEN];
};

/* Reads the key's file; makes it, for `owner`, when there is none. */
int seal_key_load(const char *path, uid_t owner, gid_t group, struct seal_key *ret,
                  struct pd_err *e);

/* Appends base64. `context` is what the text is for: it opens for nothing else. The same text for
 * the same context gives the same seal, so that whoever holds it sees that nothing has changed. */
int seal_close(const struct seal_key *k, const char *context, const void *data, size_t len,
               struct buf *out, struct pd_err *e);
/* Appends the text. PD_DENIED: it was sealed for something else, with another key, or changed. */
int seal_open(const struct seal_key *k, const char *context, const char *sealed, size_t len,
              struct buf *out, struct pd_err *e);

/* Bytes that follow from the key and a text, and tell neither. */
int seal_derive(const struct seal_key *k, const char *purpose, const char *text, uint8_t ret[32]);
