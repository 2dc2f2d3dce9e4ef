/* vault: the secrets of tenants, which their sandboxes can use and not read (docs/secrets.md).
 *
 * A secret has a name and a value. What a sandbox sees in its place is a placeholder that follows
 * from tenant and name: it stays the same when the value changes, and tells nothing. Values are
 * sealed in the store and are given to nobody but by vault_value. Calls are safe from any thread.
 */
#pragma once

#include "access/authority.h"

#include <stddef.h>

struct buf;
struct pd_err;
struct store;
struct vault;

#define VAULT_NAME_MAX         63u
#define VAULT_VALUE_MIN        8u /* what is shorter would be blanked out in every other answer */
#define VAULT_VALUE_MAX        4096u
#define VAULT_SECRETS_MAX      100u /* of one tenant */
#define VAULT_PLACEHOLDER_SIZE 48   /* "pdk-secret-" and 32 hex digits, with the NUL */

struct vault *vault_new(struct store *store, const char *key_file, struct pd_err *e);
void vault_free(struct vault *v);

/* Letters, digits, `.`, `_` and `-`, not beginning with a sign. */
int vault_check_name(const char *name, struct pd_err *e);
/* Makes it, or replaces its value: printable ASCII, without blanks at its ends. */
int vault_put(struct vault *v, const char *tenant, const char *name, const char *value,
              struct pd_err *e);
int vault_delete(struct vault *v, const char *tenant, const char *name, struct pd_err *e);
/* Every name, with the time of its last change; until the callback returns non-zero. */
int vault_each(struct vault *v, const char *tenant,
               int (*each)(const char *name, uint64_t changed_ms, void *arg), void *arg,
               struct pd_err *e);
/* Appends the value; whoever has it clears it. PD_NOT_FOUND. */
int vault_value(struct vault *v, const char *tenant, const char *name, struct buf *out,
                struct pd_err *e);

void vault_placeholder(const struct vault *v, const char *tenant, const char *name,
                       char out[VAULT_PLACEHOLDER_SIZE]);
/* The seed of a sandbox's certificate authority. */
int vault_authority(const struct vault *v, const char *sandbox, uint8_t ret[AUTHORITY_SEED_LEN],
                    struct pd_err *e);
/* Seals a text for the rules of a tenant's sandboxes, and opens it again: appends it to `out`. */
int vault_seal_rule(const struct vault *v, const char *tenant, const char *text, struct buf *out,
                    struct pd_err *e);
int vault_open_rule(const struct vault *v, const char *tenant, const char *sealed, size_t len,
                    struct buf *out, struct pd_err *e);
/* Seals for the changer what it may do for a sandbox. */
int vault_seal(const struct vault *v, const char *context, const struct buf *text, struct buf *out,
               struct pd_err *e);
