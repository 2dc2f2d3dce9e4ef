/* google_keys: credentials for Google's APIs, as they are kept and exchanged: a service account's
 * file, the assertion that is signed with its key (RFC 7523), tokens. No calls are made here. */
#pragma once

#include "engine/rented_text.h"

#include <stdint.h>
#include <time.h>

struct pd_err;

#define GOOGLE_TOKEN 4096u /* of a header, with its NUL */
#define GOOGLE_SCOPE "https://www.googleapis.com/auth/cloud-platform"

struct google_account {
    char email[256], key_id[129];
    char key[8192];          /* PEM */
    struct rented_url token; /* where the assertion is exchanged */
};

/* A file of the console's. PD_INVALID says what is missing; the text never has a secret in it. */
int google_account_read(const void *json, size_t len, struct google_account *ret, struct pd_err *e);
/* Header and claims of an assertion that holds for an hour; what the signature is for. */
int google_assertion_text(struct buf *out, const struct google_account *a, time_t now,
                          struct pd_err *e);
/* Appends "." and the signature (RS256). PD_INVALID where the key is none. */
int google_assertion_sign(struct buf *out, const struct google_account *a, struct pd_err *e);
/* The form that exchanges it. */
void google_exchange_form(struct buf *out, const char *assertion);

/* May it stand in a header? */
bool google_is_token(const char *text);
/* The answer of an exchange, and of the metadata server: the token, and for how many seconds. */
int google_token_read(const void *json, size_t len, char ret[GOOGLE_TOKEN], unsigned *ret_life,
                      struct pd_err *e);
