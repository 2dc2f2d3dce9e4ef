/* changes: what the changer may do for one sandbox, and doing it to bytes. Pure.
 *
 * As text, which comes sealed: lines
 *
 *   authority HEX                      the seed of the sandbox's certificate authority
 *   secret PLACEHOLDER HOST PORT VALUE    for each secret and host
 *   header HOST PORT NAME VALUE           for each header rule; port 0: 80 and 443
 *
 * A placeholder becomes the value in headers of requests to its host, and the value becomes
 * asterisks in what that host answers. A header of a rule takes the place of the request's own; its
 * value is no secret to the sandbox. */
#pragma once

#include "access/authority.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct pd_err;

#define CHANGES_MAX 128u /* pairs of secret and host */
#define SETS_MAX    256u /* header rules */
#define BLANKS_MAX  64u
#define BLANK_MIN   8u

struct change {
    const char *placeholder, *host, *value; /* of the text */
    unsigned port;
};

struct header_set {
    const char *host, *name, *value;
    unsigned port;
};

struct changes {
    uint8_t authority[AUTHORITY_SEED_LEN];
    struct change items[CHANGES_MAX];
    unsigned count;
    struct header_set sets[SETS_MAX];
    unsigned set_count;
};

/* Reads the text, which is changed and must stay. */
int changes_parse(char *text, struct changes *ret, struct pd_err *e);
/* Are there any for this host? */
bool changes_has(const struct changes *c, const char *host, unsigned port);
/* Are there secrets for it, so that its answers have to be looked through? */
bool changes_has_secrets(const struct changes *c, const char *host, unsigned port);
/* The header rule of this host at *at or behind it (start with 0); NULL: there is no more. */
const struct header_set *changes_next_set(const struct changes *c, const char *host, unsigned port,
                                          unsigned *at);
/* Does a rule set this header, whatever its case? */
bool changes_sets(const struct changes *c, const char *host, unsigned port, const char *name,
                  size_t len);
/* Appends the value of a header with the host's placeholders replaced, also in the credentials of
 * `Authorization: Basic`; false, and nothing is appended: it has none. */
bool changes_apply(const struct changes *c, const char *host, unsigned port, const char *value,
                   size_t len, struct buf *out);

/* What must not be seen in answers, and what of an answer is held back because it may be the
 * beginning of such. */
struct blank {
    char *words[BLANKS_MAX];
    size_t lens[BLANKS_MAX];
    unsigned count;
    bool begins[256]; /* bytes that a word begins with */
    uint8_t *held;
    size_t held_len;
    size_t covered; /* so many bytes of those held are inside a word that was found */
};

/* Adds a word, and the forms that JSON and URLs write it in where those differ. 0 or -1. */
int blank_add(struct blank *b, const char *word, size_t len);
/* The values of all secrets of the host. */
int blank_add_all(struct blank *b, const struct changes *c, const char *host, unsigned port);
/* Appends what can be told by now, as many bytes as came in the end; `last`: nothing more comes of
 * this text. False: no memory, and what was appended is not complete. */
bool blank_pass(struct blank *b, const void *data, size_t len, bool last, struct buf *out);
void blank_done(struct blank *b);
