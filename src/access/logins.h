/* logins: who is logged in at the console, and the one-use codes that log in without a key.
 *
 * A login is two secrets of 256 bits: the session, which a browser keeps as a cookie, and the
 * proof, which the page keeps and sends along. Neither opens anything without the other: a browser
 * sends the cookie with what other pages make it send, and a page of another port can read no
 * storage of ours. The store has their SHA-256 only, so logins outlive the daemon.
 *
 * A login is as good as the key that it was made with, and ends with it; by itself it ends after
 * LOGIN_IDLE_MS without a request, after LOGIN_LIFE_MS, and by logins_end. A code is good once, for
 * LOGIN_CODE_MS, and not beyond a restart.
 *
 * Safe from any thread. */
#pragma once

#include "access/auth.h"

#include <stdint.h>

struct pd_err;
struct store;
struct logins;

#define LOGIN_SECRET_LEN 64                  /* hex digits of a session, a proof and a code */
#define LOGIN_IDLE_MS    UINT64_C(43200000)  /* 12 h */
#define LOGIN_LIFE_MS    UINT64_C(604800000) /* 7 days */
#define LOGIN_CODE_MS    UINT64_C(60000)
#define LOGINS_MAX       1024u /* of the server */
#define LOGINS_OF_KEY    32u   /* of one key; the one that was not used for longest makes room */
#define LOGIN_CODES_MAX  64u   /* at a time; the oldest makes room */

struct login {
    char session[LOGIN_SECRET_LEN + 1], proof[LOGIN_SECRET_LEN + 1];
    uint64_t expires_ms; /* at the latest */
};

/* Reads the logins of the store. Both must outlive it. */
struct logins *logins_new(struct store *store, struct auth *auth, struct pd_err *e);
void logins_free(struct logins *l); /* NULL is fine */

/* Logs in whom auth_check has let in. PD_CAPACITY when there are LOGINS_MAX, or what the store
 * says. */
int logins_begin(struct logins *l, const struct auth_who *who, uint64_t now_ms, struct login *ret,
                 struct pd_err *e);
/* Whose the login is. PD_UNAUTHENTICATED: there is none of these two secrets, it has ended, or its
 * key has. The text never contains them. */
int logins_check(struct logins *l, const char *session, const char *proof, uint64_t now_ms,
                 struct auth_who *ret, struct pd_err *e);
/* Ends a login; one that is not there has ended. */
int logins_end(struct logins *l, const char *session, struct pd_err *e);

/* Ids of the keys that somebody is logged in with, one for each login. Returns how many. */
unsigned logins_keys(struct logins *l, uint64_t now_ms, char ret[LOGINS_MAX][AUTH_ID_LEN + 1]);

/* A code with which somebody logs in as `who`. */
void logins_offer(struct logins *l, const struct auth_who *who, uint64_t now_ms,
                  char ret[LOGIN_SECRET_LEN + 1]);
/* Takes a code, which is none any more. PD_UNAUTHENTICATED: unknown, used or too old, or the key
 * was revoked meanwhile. */
int logins_redeem(struct logins *l, const char *code, uint64_t now_ms, struct auth_who *ret,
                  struct pd_err *e);
