/* A token is "p1-SANDBOX-PORT-EXPIRES-TENANT-MAC": the port in decimal, the end in milliseconds
 * since the epoch in decimal, the MAC in hex over a name for its purpose and everything before the
 * last dash. A tenant may have dashes of its own; everything around it has none or a known length.
 * The MAC is over the text as it stands, so there is one spelling of a token and no other. */
#include "access/preview.h"

#include "access/ids.h"
#include "access/secret.h"
#include "base/banned.h"
#include "base/err.h"

#include <openssl/crypto.h>

#define SECRET_NAME "preview_secret"
#define PURPOSE     "paddock preview 1:" /* the secret signs nothing else, but should it one day */

struct preview {
    uint8_t secret[SECRET_LEN];
};

struct preview *preview_new(struct store *store, struct pd_err *e)
{
    struct preview *p = calloc(1, sizeof *p);
    if (!p) {
        pd_fail(e, PD_CAPACITY, "read the secret of previews: out of memory");
        return NULL;
    }

    if (secret_load(store, SECRET_NAME, p->secret, e) < 0) {
        preview_free(p);
        return NULL;
    }
    return p;
}

void preview_free(struct preview *p)
{
    if (!p)
        return;
    explicit_bzero(p->secret, sizeof p->secret);
    free(p);
}

static int mac_of(const struct preview *p, const char *text, size_t len, uint8_t ret[MAC_LEN])
{
    return secret_mac(p->secret, PURPOSE, text, len, ret);
}

int preview_sign(const struct preview *p, const char *tenant, const char *sandbox, unsigned port,
                 uint64_t now_ms, uint64_t life_ms, char ret[PREVIEW_TOKEN_MAX + 1],
                 uint64_t *ret_expires_ms, struct pd_err *e)
{
    if (life_ms == 0)
        life_ms = PREVIEW_LIFE_MS;
    if (!id_is_tenant(tenant))
        return pd_fail(e, PD_INVALID, "\"%.80s\" is no tenant", tenant ? tenant : "");
    if (!id_is_sandbox(sandbox))
        return pd_fail(e, PD_INVALID, "\"%.40s\" is no sandbox id", sandbox ? sandbox : "");
    if (port < 1 || port > 65535)
        return pd_fail(e, PD_INVALID, "port %u is not in 1-65535", port);
    if (life_ms < 1000 || life_ms > PREVIEW_LIFE_MAX_MS)
        return pd_fail(e, PD_INVALID, "a preview lives 1 to %llu seconds, not %.3f",
                       (unsigned long long)(PREVIEW_LIFE_MAX_MS / 1000), (double)life_ms / 1000);

    char text[PREVIEW_TOKEN_MAX + 1];
    uint8_t mac[MAC_LEN];
    uint64_t expires = now_ms + life_ms;
    int len = snprintf(text, sizeof text, "p1-%s-%u-%llu-%s", sandbox, port,
                       (unsigned long long)expires, tenant);

    if (len < 0 || (size_t)len + 1 + 2 * MAC_LEN > PREVIEW_TOKEN_MAX ||
        mac_of(p, text, (size_t)len, mac) < 0)
        return pd_fail(e, PD_INTERNAL, "sign a preview");

    text[len] = '-';
    hex_encode(mac, sizeof mac, text + len + 1);
    memcpy(ret, text, sizeof text);
    *ret_expires_ms = expires;
    return 0;
}

/* Decimal digits up to `end`, which must stand behind them. */
static int take_number(const char **at, char end, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;
    const char *c = *at;

    for (; *c >= '0' && *c <= '9'; c++) {
        value = value * 10 + (uint64_t)(*c - '0');
        if (value > max)
            return -1;
    }

    if (c == *at || *c != end)
        return -1;
    *at = c + 1;
    *ret = value;
    return 0;
}

struct claims {
    char tenant[ID_TENANT_MAX + 1];
    char sandbox[ID_SANDBOX_LEN + 1];
    uint64_t port, expires_ms;
};

/* Reads what the token claims, up to `end`, where the signature begins with a dash. */
static int claims_parse(const char *token, const char *end, struct claims *ret)
{
    if (strncmp(token, "p1-", 3) != 0)
        return -1;
    const char *at = token + 3;
    if (strnlen(at, ID_SANDBOX_LEN + 1) <= ID_SANDBOX_LEN || at[ID_SANDBOX_LEN] != '-')
        return -1;

    memcpy(ret->sandbox, at, ID_SANDBOX_LEN);
    ret->sandbox[ID_SANDBOX_LEN] = '\0';
    at += ID_SANDBOX_LEN + 1;
    if (!id_is_sandbox(ret->sandbox) || take_number(&at, '-', 65535, &ret->port) < 0 ||
        take_number(&at, '-', UINT64_C(9999999999999999), &ret->expires_ms) < 0)
        return -1;

    if (at > end || (size_t)(end - at) > ID_TENANT_MAX)
        return -1;
    memcpy(ret->tenant, at, (size_t)(end - at));
    ret->tenant[end - at] = '\0';
    return id_is_tenant(ret->tenant) ? 0 : -1;
}

int preview_check(const struct preview *p, const char *token, const char *sandbox, unsigned port,
                  uint64_t now_ms, char ret_tenant[ID_TENANT_MAX + 1], struct pd_err *e)
{
    size_t len = token ? strnlen(token, PREVIEW_TOKEN_MAX + 1) : 0;
    uint8_t given[MAC_LEN], right[MAC_LEN];
    struct claims claims = {0};

    /* One text for all of these: a forger learns nothing. Upper-case digits would be a second
     * spelling. */
    if (len <= 2 * MAC_LEN || len > PREVIEW_TOKEN_MAX || token[len - 2 * MAC_LEN - 1] != '-' ||
        strpbrk(token, "ABCDEF") || hex_decode(token + len - 2 * MAC_LEN, given, MAC_LEN) < 0 ||
        mac_of(p, token, len - 2 * MAC_LEN - 1, right) < 0 ||
        CRYPTO_memcmp(given, right, MAC_LEN) != 0 ||
        claims_parse(token, token + len - 2 * MAC_LEN - 1, &claims) < 0)
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "the preview token is not valid here: ask for a new one with "
                       "POST /v1/sandboxes/ID/ports/PORT/preview");

    if (!sandbox || strcmp(claims.sandbox, sandbox) != 0)
        return pd_fail(e, PD_DENIED, "the preview token is for another sandbox");
    if (claims.port != port)
        return pd_fail(e, PD_DENIED, "the preview token is for port %u, not for port %u",
                       (unsigned)claims.port, port);

    if (now_ms >= claims.expires_ms) {
        char ended[TIME_TEXT_LEN + 1];
        time_format_ms(claims.expires_ms, ended);
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "the preview token expired at %s: ask for a new one with POST "
                       "/v1/sandboxes/%s/ports/%u/preview",
                       ended, sandbox, port);
    }

    memcpy(ret_tenant, claims.tenant, sizeof claims.tenant);
    return 0;
}
