/* Readers and writers of Google's credentials. A claim's characters are checked before they are
 * signed; a token's before it becomes a part of a header. */
#include "engine/google_keys.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/json.h"
#include "engine/http.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>

#define ASSERTION_LIFE 3600
#define LIFE_MOST      86400

static bool is_printable(const char *text)
{
    size_t len = 0;

    while (text[len] > ' ' && text[len] < 127 && text[len] != '"' && text[len] != '\\')
        len++;
    return len > 0 && !text[len];
}

/* A member that is one word and fits. */
static int take_word(json_t *j, const char *name, char *ret, size_t size, struct pd_err *e)
{
    const char *text = json_string_value(json_object_get(j, name));

    if (!text || !is_printable(text) || strlen(text) >= size)
        return pd_fail(e, PD_INVALID, "the service account's file has no good '%s'", name);
    snprintf(ret, size, "%s", text);
    return 0;
}

int google_account_read(const void *json, size_t len, struct google_account *ret, struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);
    const char *type = json_string_value(json_object_get(j, "type"));
    const char *key = json_string_value(json_object_get(j, "private_key"));
    char url[512];

    if (!j || !type)
        return pd_fail(e, PD_INVALID, "it is not the JSON file of a service account");
    if (strcmp(type, "service_account") != 0)
        return pd_fail(e, PD_INVALID,
                       "it is of type '%.40s': use the key file of a service account, one of "
                       "type external_account, or a token with cloudrun_token_file",
                       type);
    if (take_word(j, "client_email", ret->email, sizeof ret->email, e) < 0 ||
        take_word(j, "private_key_id", ret->key_id, sizeof ret->key_id, e) < 0 ||
        take_word(j, "token_uri", url, sizeof url, e) < 0 ||
        rented_url_read("token_uri", url, &ret->token, e) < 0)
        return -1;
    if (!key || strlen(key) >= sizeof ret->key)
        return pd_fail(e, PD_INVALID, "the service account's file has no good 'private_key'");
    snprintf(ret->key, sizeof ret->key, "%s", key);
    return 0;
}

/* base64 of RFC 4648, section 5, without padding. */
static int put_base64url(struct buf *out, const void *data, size_t len)
{
    size_t at = out->len;

    if (base64_encode(out, data, len) < 0)
        return -1;
    for (size_t i = at; i < out->len; i++)
        out->data[i] = out->data[i] == '+' ? '-' : out->data[i] == '/' ? '_' : out->data[i];
    while (out->len > at && out->data[out->len - 1] == '=')
        out->len--;
    return 0;
}

int google_assertion_text(struct buf *out, const struct google_account *a, time_t now,
                          struct pd_err *e)
{
    auto_buf head = BUF_INIT(512), claims = BUF_INIT(2048);
    struct json h = JSON_INIT(&head), c = JSON_INIT(&claims);
    char audience[sizeof a->token.base + sizeof a->token.path];

    json_open(&h, '{');
    json_member_cstr(&h, "alg", "RS256");
    json_member_cstr(&h, "typ", "JWT");
    json_member_cstr(&h, "kid", a->key_id);
    json_close(&h, '}');

    snprintf(audience, sizeof audience, "%s%s", a->token.base, a->token.path);
    json_open(&c, '{');
    json_member_cstr(&c, "iss", a->email);
    json_member_cstr(&c, "scope", GOOGLE_SCOPE);
    json_member_cstr(&c, "aud", audience);
    json_member_int(&c, "iat", (int64_t)now);
    json_member_int(&c, "exp", (int64_t)now + ASSERTION_LIFE);
    json_close(&c, '}');

    if (head.overflow || claims.overflow || put_base64url(out, head.data, head.len) < 0 ||
        buf_puts(out, ".") < 0 || put_base64url(out, claims.data, claims.len) < 0)
        return pd_fail(e, PD_TOO_LARGE, "an assertion is too long");
    return 0;
}

int google_assertion_sign(struct buf *out, const struct google_account *a, struct pd_err *e)
{
    uint8_t signature[1024];
    size_t len = sizeof signature;
    BIO *bio = BIO_new_mem_buf(a->key, (int)strlen(a->key));
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, (void *)"") : NULL;
    EVP_MD_CTX *c = EVP_MD_CTX_new();

    bool good = key && c && EVP_PKEY_is_a(key, "RSA") &&
                EVP_DigestSignInit(c, NULL, EVP_sha256(), NULL, key) == 1 &&
                EVP_DigestSign(c, signature, &len, out->data, out->len) == 1;
    EVP_MD_CTX_free(c);
    EVP_PKEY_free(key);
    BIO_free(bio);
    ERR_clear_error();
    if (!good)
        return pd_fail(e, PD_INVALID, "the service account's private_key is no RSA key");
    if (buf_puts(out, ".") < 0 || put_base64url(out, signature, len) < 0)
        return pd_fail(e, PD_TOO_LARGE, "an assertion is too long");
    return 0;
}

void google_exchange_form(struct buf *out, const char *assertion)
{
    buf_puts(out, "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=");
    http_escape(out, assertion);
}

bool google_is_token(const char *text)
{
    return is_printable(text) && strlen(text) < GOOGLE_TOKEN;
}

int google_token_read(const void *json, size_t len, char ret[GOOGLE_TOKEN], unsigned *ret_life,
                      struct pd_err *e)
{
    auto_json *j = json_loadb(json, len, 0, NULL);
    const char *token = json_string_value(json_object_get(j, "access_token"));
    const char *type = json_string_value(json_object_get(j, "token_type"));
    json_t *life = json_object_get(j, "expires_in");
    json_int_t seconds = json_is_integer(life) ? json_integer_value(life) : 0;

    if (!token || !google_is_token(token) || (type && strcmp(type, "Bearer") != 0))
        return pd_fail(e, PD_PROTOCOL, "the answer has no token");
    snprintf(ret, GOOGLE_TOKEN, "%s", token);
    *ret_life = seconds < 0 ? 0 : seconds > LIFE_MOST ? LIFE_MOST : (unsigned)seconds;
    return 0;
}
