/* redact: takes what looks like a secret out of a command line, for the audit log.
 *
 * Pure. Replaced by [redacted] are the values of assignments, JSON members, headers and options
 * whose name speaks of a key, token, secret, password or credential; what follows "Bearer"; user
 * names' passwords in URLs and behind -u; private keys in PEM; and words that have the shape of
 * well-known keys (e2b_, AKIA, ghp_, sk-, xoxb-, glpat-, AIza, JSON web tokens ...), wherever they
 * are, also behind a prefix. A reference such as $TOKEN stays: it is no secret. It is a net, not a
 * proof: a secret under an innocent name passes. */
#pragma once

#include <stddef.h>

struct buf;

/* Appends the text without its secrets. Overflow shows in the buf. */
void redact(const char *text, size_t len, struct buf *out);
