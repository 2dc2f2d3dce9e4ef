/* auth: API keys and the tenants that they belong to.
 *
 * Keys are `e2b_` and 40 hex digits; the store has their SHA-256 only. A key belongs to a tenant.
 * What another process (paddock key create, paddock key revoke) does to the store holds here within
 * a second; a new key holds at once, because an unknown one makes the store be looked at. How often
 * that happens is bounded, so wrong keys cost no more than right ones.
 *
 * Safe from any thread. */
#pragma once

#include "access/ids.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;
struct store;
struct auth;

#define AUTH_ID_LEN    16  /* of a key's public name: the start of its hash in hex */
#define AUTH_LABEL_MAX 100 /* what people call it, UTF-8 without control characters */
#define AUTH_HASH_LEN  32  /* of the SHA-256 of a key */

/* What a key may do: look; work with its tenant's sandboxes; change what concerns all tenants, too.
 * The numbers are those of the store. */
enum auth_role { AUTH_OPERATOR, AUTH_ADMIN, AUTH_READER, AUTH_ROLE_COUNT };
const char *auth_role_name(enum auth_role r);
const char *const *auth_role_names(void); /* in the order of the enum; NULL at the end */

struct auth_who {
    char tenant[ID_TENANT_MAX + 1];
    char key_id[AUTH_ID_LEN + 1];
    enum auth_role role;
    uint8_t key_hash[AUTH_HASH_LEN]; /* opens nothing; for auth_check_hash */
};

/* Reads the keys of the store, which must outlive it. `extra` (or NULL, or ""): one more key, of
 * the tenant `default`, that is in no store: PADDOCK_API_KEY. PD_INVALID when it is malformed. */
struct auth *auth_new(struct store *store, const char *extra, struct pd_err *e);
void auth_free(struct auth *a);

/* Finds the tenant of a key. PD_UNAUTHENTICATED: none was given (NULL or ""), it is malformed,
 * unknown, revoked or expired. The text never contains the key. */
int auth_check(struct auth *a, const char *key, struct auth_who *ret, struct pd_err *e);

/* Whether the key of this hash, which auth_check has told, is still good. */
int auth_check_hash(struct auth *a, const uint8_t hash[AUTH_HASH_LEN], struct auth_who *ret,
                    struct pd_err *e);

/* Whether it may be a label. PD_INVALID. */
int auth_check_label(const char *label, struct pd_err *e);
/* Makes a key and stores its hash; the caller shows the key, once. `label` may be NULL. It is good
 * until `expires_ms` since the epoch; 0: until it is revoked. */
int auth_create(struct auth *a, const char *tenant, const char *label, enum auth_role role,
                uint64_t expires_ms, char ret_key[ID_KEY_LEN + 1], char ret_id[AUTH_ID_LEN + 1],
                struct pd_err *e);
/* From now on the key is refused. PD_NOT_FOUND; revoking it again is fine. */
int auth_revoke(struct auth *a, const char *id, struct pd_err *e);
/* A key as it is shown: nothing in it opens anything. */
struct auth_key {
    const char *id, *tenant, *label; /* live during the call */
    enum auth_role role;
    uint64_t created_ms, expires_ms, last_used_ms, revoked_ms; /* 0: not */
};
/* Every key of the store, oldest first, as it is there now; stops when `each` returns non-zero. */
int auth_list(struct auth *a, int (*each)(const struct auth_key *k, void *arg), void *arg,
              struct pd_err *e);
/* How many keys are accepted; 0 is the first start. */
unsigned auth_count(struct auth *a);
