/* secrets: from the rules of a sandbox and the vault of its tenant to what the changer, the gate
 * and the sandbox itself get of them (docs/secrets.md). */
#pragma once

#include <stdbool.h>

struct buf;
struct pd_err;
struct session;
struct vault;

/* Where a sandbox's programs find whom to trust: the authorities of the machine, and its own. */
#define SECRETS_BUNDLE "/etc/paddock/authorities.pem"

/* Does the tenant have every secret that the rules name? */
int secrets_check(struct vault *v, const char *tenant, const char *rules, struct pd_err *e);
/* Writes what the changer may do for a box, sealed for it: as egress_config.secrets. A secret that
 * is gone is left out. */
int secrets_seal(struct vault *v, const char *id, const char *tenant, const char *rules,
                 struct buf *out, struct pd_err *e);
/* Gives the sandbox what belongs to its secrets: placeholders in its environment, and
 * whom to trust. `before`: rules whose variables it had and may have to lose, or NULL. `is_bare`:
 * its box was made without a way out, and without the machine's authorities. One that is paused has
 * the rest when it goes on (owes_trust). */
int session_give_secrets(struct session *s, const char *before, bool is_bare, struct pd_err *e);
