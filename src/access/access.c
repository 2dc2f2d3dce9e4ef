/* Tokens of sandboxes for the E2B door. A token is a sandbox's id and a MAC over its kind and that
 * id, so none has to be stored and each can be checked. Signatures of links are computed from a
 * token, as E2B's clients compute them. */
#include "access/access.h"

#include "access/secret.h"
#include "base/banned.h"
#include "base/err.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#define SECRET_NAME "access_secret"

struct access {
    uint8_t secret[SECRET_LEN];
};

struct access *access_new(struct store *store, struct pd_err *e)
{
    struct access *a = calloc(1, sizeof *a);
    if (!a)
        pd_fail(e, PD_CAPACITY, "read the secret of access tokens: out of memory");
    if (a && secret_load(store, SECRET_NAME, a->secret, e) < 0) {
        access_free(a);
        return NULL;
    }
    return a;
}

void access_free(struct access *a)
{
    if (!a)
        return;
    explicit_bzero(a->secret, sizeof a->secret);
    free(a);
}

void access_token(const struct access *a, enum access_kind kind, const char *sandbox,
                  char ret[ACCESS_TOKEN_LEN + 1])
{
    uint8_t mac[MAC_LEN];

    /* Without a MAC there is no token that opens anything. */
    if (secret_mac(a->secret, kind == ACCESS_ENVD ? "envd:" : "traffic:", sandbox, strlen(sandbox),
                   mac) < 0)
        abort();

    snprintf(ret, ACCESS_TOKEN_LEN + 1, "%.*s-", ID_SANDBOX_LEN, sandbox);
    hex_encode(mac, sizeof mac, ret + strlen(ret));
}

int access_equal(const char *a, size_t a_len, const char *b, size_t b_len)
{
    return a_len == b_len && CRYPTO_memcmp(a, b, a_len) == 0;
}

int access_check(const struct access *a, enum access_kind kind, const char *sandbox,
                 const char *text, size_t len)
{
    char right[ACCESS_TOKEN_LEN + 1];

    if (!id_is_sandbox(sandbox))
        return 0;
    access_token(a, kind, sandbox, right);
    return access_equal(text, len, right, ACCESS_TOKEN_LEN);
}

int access_names(const char *text, size_t len, char ret_sandbox[ID_SANDBOX_LEN + 1])
{
    char id[ID_SANDBOX_LEN + 1];

    if (len != ACCESS_TOKEN_LEN || text[ID_SANDBOX_LEN] != '-')
        return 0;

    memcpy(id, text, ID_SANDBOX_LEN);
    id[ID_SANDBOX_LEN] = 0;
    if (!id_is_sandbox(id))
        return 0;

    memcpy(ret_sandbox, id, sizeof id);
    return 1;
}

int access_sign(const char *token, const char *path, const char *operation, const char *user,
                const char *expiration, char ret[ACCESS_SIGNATURE_LEN + 1])
{
    uint8_t hash[32], text[45];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    const char *const parts[] = {path,
                                 ":",
                                 operation,
                                 ":",
                                 user,
                                 ":",
                                 token,
                                 expiration ? ":" : "",
                                 expiration ? expiration : ""};
    int good = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL);

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        good = good && EVP_DigestUpdate(md, parts[i], strlen(parts[i]));
    good = good && EVP_DigestFinal_ex(md, hash, NULL);
    EVP_MD_CTX_free(md);
    if (!good)
        return -1;

    EVP_EncodeBlock(text, hash, sizeof hash); /* 43 digits and one '=' */
    snprintf(ret, ACCESS_SIGNATURE_LEN + 1, "v1_%.43s", (const char *)text);
    return 0;
}
