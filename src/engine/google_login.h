/* google_login: whose token a broker shows to Google, and where it is from:
 *
 *   a file with a token (cloudrun_token_file), which somebody else keeps fresh
 *   the key of a service account (cloudrun_credentials_file, or GOOGLE_APPLICATION_CREDENTIALS):
 *   a signed assertion is exchanged for a token. Or such a file of type external_account: somebody
 *   else's token is exchanged (google_federation.h)
 *   the metadata server of the machine, where this runs at Google
 *
 * The first that is named is the one: what is wrong there is an error and not passed by, because
 * the next one would be somebody else's. A token is used until five minutes before its end. */
#pragma once

#include "base/clock.h"
#include "engine/google_keys.h"

struct google_login {
    const char *token_file, *account_file; /* or "" */
    const char *ca_file;                   /* or "" */
    const char *from;                      /* for people, once there is a token */
    char header[GOOGLE_TOKEN + 24];        /* "Authorization: Bearer TOKEN" */
    deadline until;
};

/* Reads the environment. Makes no call. */
void google_login_open(struct google_login *g, const char *token_file, const char *account_file,
                       const char *ca_file);
/* Overwrites the token. */
void google_login_close(struct google_login *g);

/* The header with a token that holds. NULL with *e: PD_INVALID and PD_DENIED name the file or the
 * place, and the remedy. */
const char *google_login_header(struct google_login *g, deadline t, struct pd_err *e);
/* It was refused: the next one is fetched anew. */
void google_login_forget(struct google_login *g);
/* The token alone, which must not be shown; "" when there is none. */
const char *google_login_secret(const struct google_login *g);
