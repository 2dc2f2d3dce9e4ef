/* What the certificates that a server makes for itself (`paddock cert`) and for its sandboxes
 * (access/authority.c) have in common. */
#include "access/x509.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#define DAY_S        86400L
#define SLACK_S      3600L /* clocks of clients may be behind ours */
#define SERIAL_BYTES 16

void pair_done(struct pair *p)
{
    X509_free(p->cert);
    EVP_PKEY_free(p->key);
}

int x509_fail(struct pd_err *e, const char *what)
{
    unsigned long first = ERR_get_error();
    const char *reason = first ? ERR_reason_error_string(first) : NULL;
    ERR_clear_error();
    return pd_fail(e, PD_INTERNAL, "%s: %s", what, reason ? reason : "libcrypto failed");
}

int x509_extend(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX c;
    X509V3_set_ctx_nodb(&c);
    X509V3_set_ctx(&c, issuer, x, NULL, NULL, 0);

    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &c, nid, value);
    int r = ext && X509_add_ext(x, ext, -1) == 1 ? 0 : -1;
    X509_EXTENSION_free(ext);
    return r;
}

int x509_extend_leaf(X509 *x, X509 *issuer)
{
    return x509_extend(x, issuer, NID_basic_constraints, "critical,CA:FALSE") < 0 ||
                   x509_extend(x, issuer, NID_key_usage, "critical,digitalSignature") < 0 ||
                   x509_extend(x, issuer, NID_ext_key_usage, "serverAuth") < 0 ||
                   x509_extend(x, issuer, NID_subject_key_identifier, "hash") < 0 ||
                   x509_extend(x, issuer, NID_authority_key_identifier, "keyid") < 0
               ? -1
               : 0;
}

static int set_serial(X509 *x)
{
    unsigned char bytes[SERIAL_BYTES];

    random_bytes(bytes, sizeof bytes);
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40); /* positive, and never short */
    BIGNUM *n = BN_bin2bn(bytes, sizeof bytes, NULL);
    int good = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x));
    BN_free(n);
    return good ? 0 : -1;
}

static int set_subject(X509 *x, const char *organisation, const char *common)
{
    X509_NAME *n = X509_get_subject_name(x);
    return X509_NAME_add_entry_by_txt(n, "O", MBSTRING_ASC, (const unsigned char *)organisation, -1,
                                      -1, 0) == 1 &&
                   X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_UTF8, (const unsigned char *)common,
                                              -1, -1, 0) == 1
               ? 0
               : -1;
}

X509 *x509_begin(EVP_PKEY *key, const char *organisation, const char *common, long days)
{
    X509 *x = X509_new();
    if (x && X509_set_version(x, 2) == 1 && set_serial(x) == 0 &&
        X509_gmtime_adj(X509_getm_notBefore(x), -SLACK_S) &&
        X509_gmtime_adj(X509_getm_notAfter(x), days * DAY_S - SLACK_S) &&
        X509_set_pubkey(x, key) == 1 && set_subject(x, organisation, common) == 0)
        return x;
    X509_free(x);
    return NULL;
}

int x509_put_pem(struct buf *out, const X509 *cert, const EVP_PKEY *key)
{
    char *text = NULL;
    BIO *b = BIO_new(BIO_s_mem());
    int good = b && (cert ? PEM_write_bio_X509(b, cert)
                          : PEM_write_bio_PKCS8PrivateKey(b, key, NULL, NULL, 0, NULL, NULL)) == 1;
    long len = good ? BIO_get_mem_data(b, &text) : 0;
    int r = good ? buf_put(out, text, (size_t)len) : -1;
    if (text && key)
        OPENSSL_cleanse(text, (size_t)len);
    BIO_free(b);
    return r;
}
