/* access: the tokens that open one sandbox, as E2B's clients carry them.
 *
 * A token is made from the sandbox's id and a secret of the server's: it is nowhere stored, and it
 * is the same after a restart. It names its sandbox, so that nobody has to look for it:
 * "ID-MAC". The token for envd opens the sandbox's commands and files, the one for traffic its
 * ports.
 *
 * Safe from any thread. */
#pragma once

#include "access/ids.h"

#include <stddef.h>

struct pd_err;
struct store;
struct access;

enum access_kind { ACCESS_ENVD, ACCESS_TRAFFIC };
#define ACCESS_TOKEN_LEN (ID_SANDBOX_LEN + 1 + 64)

struct access *access_new(struct store *store, struct pd_err *e);
void access_free(struct access *a);

void access_token(const struct access *a, enum access_kind kind, const char *sandbox,
                  char ret[ACCESS_TOKEN_LEN + 1]);
/* 1 when the text is that sandbox's token; takes as long for a wrong one as for a right one. */
int access_check(const struct access *a, enum access_kind kind, const char *sandbox,
                 const char *text, size_t len);
/* The sandbox that a token names, whether it is genuine or not: 1, or 0 when it has not that form.
 */
int access_names(const char *text, size_t len, char ret_sandbox[ID_SANDBOX_LEN + 1]);

/* Pure: the signature of a link to a file: "v1_" and the SHA-256 of PATH:OPERATION:USER:TOKEN, and
 * :EXPIRATION if there is one, in base64 without padding. */
#define ACCESS_SIGNATURE_LEN 46
int access_sign(const char *token, const char *path, const char *operation, const char *user,
                const char *expiration, char ret[ACCESS_SIGNATURE_LEN + 1]);
/* In constant time. */
int access_equal(const char *a, size_t a_len, const char *b, size_t b_len);
