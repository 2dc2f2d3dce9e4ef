/* The key is the point of P-256 whose number is the seed. The name has some of a digest of the
 * public key in it, because two authorities of one name confuse clients that are given both. */
#include "access/authority.h"

#include "access/x509.h"
#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"

#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/param_build.h>
#include <openssl/x509v3.h>

#define ORGANISATION "Paddock sandbox"
#define CA_DAYS      3650
#define LEAF_DAYS    30
#define POINT_LEN    65
#define COMMON_MAX   64

/* 1 to the order less 1. */
static BIGNUM *number_of(const uint8_t seed[AUTHORITY_SEED_LEN], const EC_GROUP *g, BN_CTX *c)
{
    BIGNUM *n = BN_bin2bn(seed, AUTHORITY_SEED_LEN, NULL), *most = BN_dup(EC_GROUP_get0_order(g));
    int good = n && most && BN_sub_word(most, 1) && BN_mod(n, n, most, c) && BN_add_word(n, 1);
    BN_free(most);
    if (good)
        return n;
    BN_clear_free(n);
    return NULL;
}

static int point_of(const EC_GROUP *g, const BIGNUM *n, BN_CTX *c, uint8_t ret[POINT_LEN])
{
    EC_POINT *p = EC_POINT_new(g);
    int good =
        p && EC_POINT_mul(g, p, n, NULL, NULL, c) == 1 &&
        EC_POINT_point2oct(g, p, POINT_CONVERSION_UNCOMPRESSED, ret, POINT_LEN, c) == POINT_LEN;
    EC_POINT_free(p);
    return good ? 0 : -1;
}

static EVP_PKEY *key_from(const BIGNUM *n, const uint8_t point[POINT_LEN])
{
    EVP_PKEY *key = NULL;
    OSSL_PARAM_BLD *b = OSSL_PARAM_BLD_new();
    OSSL_PARAM *params =
        b && OSSL_PARAM_BLD_push_utf8_string(b, OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) &&
                OSSL_PARAM_BLD_push_octet_string(b, OSSL_PKEY_PARAM_PUB_KEY, point, POINT_LEN) &&
                OSSL_PARAM_BLD_push_BN(b, OSSL_PKEY_PARAM_PRIV_KEY, n)
            ? OSSL_PARAM_BLD_to_param(b)
            : NULL;
    EVP_PKEY_CTX *c = EVP_PKEY_CTX_new_from_name(NULL, "EC", NULL);

    if (!params || !c || EVP_PKEY_fromdata_init(c) != 1 ||
        EVP_PKEY_fromdata(c, &key, EVP_PKEY_KEYPAIR, params) != 1)
        key = NULL;
    EVP_PKEY_CTX_free(c);
    OSSL_PARAM_free(params);
    OSSL_PARAM_BLD_free(b);
    return key;
}

/* The authority's key; `tag` gets what its name has of it. */
static EVP_PKEY *key_of(const uint8_t seed[AUTHORITY_SEED_LEN], char tag[17])
{
    uint8_t point[POINT_LEN];
    EC_GROUP *g = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1);
    BN_CTX *c = BN_CTX_secure_new();
    BIGNUM *n = g && c ? number_of(seed, g, c) : NULL;
    EVP_PKEY *key = n && point_of(g, n, c, point) == 0 ? key_from(n, point) : NULL;

    for (unsigned i = 0; key && i < 8; i++)
        snprintf(tag + (size_t)2 * i, 3, "%02x", point[1 + i]);
    BN_clear_free(n);
    BN_CTX_free(c);
    EC_GROUP_free(g);
    return key;
}

/* All but its constraints and its signature. */
static int begin(const uint8_t seed[AUTHORITY_SEED_LEN], struct pair *p)
{
    char tag[17] = "", common[COMMON_MAX + 1];

    ERR_clear_error();
    if (!(p->key = key_of(seed, tag)))
        return -1;
    snprintf(common, sizeof common, ORGANISATION " CA %s", tag);
    p->cert = x509_begin(p->key, ORGANISATION, common, CA_DAYS);
    return p->cert && X509_set_issuer_name(p->cert, X509_get_subject_name(p->cert)) == 1 &&
                   x509_extend(p->cert, p->cert, NID_basic_constraints,
                               "critical,CA:TRUE,pathlen:0") == 0 &&
                   x509_extend(p->cert, p->cert, NID_key_usage, "critical,keyCertSign") == 0 &&
                   x509_extend(p->cert, p->cert, NID_subject_key_identifier, "hash") == 0
               ? 0
               : -1;
}

/* These names, and no address. */
static int constrain(X509 *x, const char *const *hosts, unsigned count)
{
    auto_buf text = BUF_INIT(64u << 10);

    buf_puts(&text, "critical,excluded;IP:0.0.0.0/0.0.0.0,excluded;IP:0:0:0:0:0:0:0:0/"
                    "0:0:0:0:0:0:0:0");
    for (unsigned i = 0; i < count; i++)
        buf_printf(&text, ",permitted;DNS:%s", hosts[i]);
    const char *value = buf_cstr(&text);
    return value && !text.overflow ? x509_extend(x, x, NID_name_constraints, value) : -1;
}

int authority_cert(const uint8_t seed[AUTHORITY_SEED_LEN], const char *const *hosts, unsigned count,
                   struct buf *pem, struct pd_err *e)
{
    auto_pair ca = {0};

    if (!count || count > AUTHORITY_HOSTS_MAX)
        return pd_fail(e, PD_INVALID, "an authority is for 1 to %u hosts", AUTHORITY_HOSTS_MAX);
    if (begin(seed, &ca) < 0 || constrain(ca.cert, hosts, count) < 0 ||
        X509_sign(ca.cert, ca.key, EVP_sha256()) <= 0 || x509_put_pem(pem, ca.cert, NULL) < 0)
        return x509_fail(e, "make the sandbox's certificate authority");
    return 0;
}

int authority_leaf(const uint8_t seed[AUTHORITY_SEED_LEN], const char *host, struct buf *cert,
                   struct buf *key, struct pd_err *e)
{
    auto_pair ca = {0}, leaf = {0};
    auto_buf names = BUF_INIT(512);

    buf_printf(&names, "DNS:%s", host);
    const char *value = buf_cstr(&names);
    if (!value || names.overflow || begin(seed, &ca) < 0 || !(leaf.key = EVP_EC_gen("P-256")) ||
        !(leaf.cert = x509_begin(leaf.key, ORGANISATION,
                                 strlen(host) <= COMMON_MAX ? host : "server", LEAF_DAYS)) ||
        X509_set_issuer_name(leaf.cert, X509_get_subject_name(ca.cert)) != 1 ||
        x509_extend_leaf(leaf.cert, ca.cert) < 0 ||
        x509_extend(leaf.cert, ca.cert, NID_subject_alt_name, value) < 0 ||
        X509_sign(leaf.cert, ca.key, EVP_sha256()) <= 0 ||
        x509_put_pem(cert, leaf.cert, NULL) < 0 || x509_put_pem(key, NULL, leaf.key) < 0)
        return x509_fail(e, "make a certificate for a host with a secret");
    return 0;
}
