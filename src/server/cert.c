/* How this works: cert_make looks at the four files before it writes any. New files are written
 * beside their place and moved there: the authority by link, which never replaces a file, the rest
 * by rename. The key goes first, so that a certificate never waits for its key. */
#include "server/cert.h"

#include "access/x509.h"
#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CA_DAYS       3650
#define ORGANISATION  "Paddock development"
#define COMMON_MAX    64
#define PLACE_SIZE    (CERT_PATH_SIZE + 16)
#define FINGERPRINT_N 4

/* ---- names ---- */

static bool is_address(const char *name)
{
    struct in6_addr a;
    return inet_pton(AF_INET, name, &a) == 1 || inet_pton(AF_INET6, name, &a) == 1;
}

static bool is_host(const char *name)
{
    for (const char *p = name;;) {
        size_t len = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789-");
        if (len < 1 || len > 63 || p[0] == '-' || p[len - 1] == '-')
            return false;
        if (!p[len])
            return true;
        if (p[len] != '.')
            return false;
        p += len + 1;
    }
}

int cert_names_add(struct cert_names *n, const char *what, const char *name, struct pd_err *e)
{
    if (strlen(name) > CERT_NAME_MAX ||
        (!is_address(name) && !is_host(strncmp(name, "*.", 2) ? name : name + 2)))
        return pd_fail(e, PD_INVALID,
                       "%s: '%.80s' is neither a host name in lower case, such as box.test or "
                       "*.box.test, nor an address",
                       what, name);

    for (unsigned i = 0; i < n->count; i++)
        if (!strcmp(n->items[i], name))
            return 0;

    if (n->count == CERT_NAMES_MAX)
        return pd_fail(e, PD_INVALID, "%s: more than %d names", what, CERT_NAMES_MAX);
    (void)snprintf(n->items[n->count++], sizeof *n->items, "%s", name);
    return 0;
}

/* ---- making ---- */

static int add_name(GENERAL_NAMES *all, const char *text)
{
    GENERAL_NAME *g = GENERAL_NAME_new();
    if (g && is_address(text)) {
        ASN1_OCTET_STRING *ip = a2i_IPADDRESS(text);
        if (ip)
            GENERAL_NAME_set0_value(g, GEN_IPADD, ip);
        if (ip && sk_GENERAL_NAME_push(all, g) > 0)
            return 0;
    } else if (g) {
        ASN1_IA5STRING *dns = ASN1_IA5STRING_new();
        int good = dns && ASN1_STRING_set(dns, text, -1) == 1;
        if (dns)
            GENERAL_NAME_set0_value(g, GEN_DNS, dns);
        if (good && sk_GENERAL_NAME_push(all, g) > 0)
            return 0;
    }

    GENERAL_NAME_free(g);
    return -1;
}

static int add_names(X509 *x, const struct cert_names *n)
{
    GENERAL_NAMES *all = sk_GENERAL_NAME_new_null();
    int r = all ? 0 : -1;

    for (unsigned i = 0; i < n->count && r == 0; i++)
        r = add_name(all, n->items[i]);

    if (r == 0 && X509_add1_ext_i2d(x, NID_subject_alt_name, all, 0, X509V3_ADD_DEFAULT) != 1)
        r = -1;
    sk_GENERAL_NAME_pop_free(all, GENERAL_NAME_free);
    return r;
}

/* A new key and a certificate that lacks its extensions and its signature. */
static int begin(struct pair *p, const char *common, long days)
{
    p->key = EVP_EC_gen("P-256");
    p->cert = p->key ? x509_begin(p->key, ORGANISATION, common, days) : NULL;
    return p->cert ? 0 : -1;
}

static int make_ca(struct pair *p, struct pd_err *e)
{
    /* Two authorities of one name confuse clients that are given both. */
    unsigned char tag[FINGERPRINT_N];
    char common[COMMON_MAX + 1];

    random_bytes(tag, sizeof tag);
    (void)snprintf(common, sizeof common, ORGANISATION " CA %02x%02x%02x%02x", tag[0], tag[1],
                   tag[2], tag[3]);

    ERR_clear_error();
    if (begin(p, common, CA_DAYS) < 0 ||
        X509_set_issuer_name(p->cert, X509_get_subject_name(p->cert)) != 1 ||
        x509_extend(p->cert, p->cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") < 0 ||
        x509_extend(p->cert, p->cert, NID_key_usage, "critical,keyCertSign,cRLSign") < 0 ||
        x509_extend(p->cert, p->cert, NID_subject_key_identifier, "hash") < 0 ||
        X509_sign(p->cert, p->key, EVP_sha256()) <= 0)
        return x509_fail(e, "make the certificate authority");
    return 0;
}

static int make_leaf(struct pair *p, const struct pair *ca, const struct cert_request *r,
                     struct pd_err *e)
{
    const char *first = r->names->items[0];

    ERR_clear_error();
    if (begin(p, strlen(first) <= COMMON_MAX ? first : "server", (long)r->days) < 0 ||
        X509_set_issuer_name(p->cert, X509_get_subject_name(ca->cert)) != 1 ||
        x509_extend_leaf(p->cert, ca->cert) < 0 || add_names(p->cert, r->names) < 0)
        return x509_fail(e, "make the certificate");

    /* One that outlives its authority would promise more than clients accept. */
    const ASN1_TIME *end = X509_get0_notAfter(ca->cert);
    if ((ASN1_TIME_compare(X509_get0_notAfter(p->cert), end) > 0 &&
         X509_set1_notAfter(p->cert, end) != 1) ||
        X509_sign(p->cert, ca->key, EVP_sha256()) <= 0)
        return x509_fail(e, "sign the certificate");
    return 0;
}

/* ---- files ---- */

static int place(const char *dir, const char *name, char out[CERT_PATH_SIZE], struct pd_err *e)
{
    if ((size_t)snprintf(out, CERT_PATH_SIZE, "%s/%s", dir, name) >= CERT_PATH_SIZE)
        return pd_fail(e, PD_INVALID, "the path of the directory is too long");
    return 0;
}

/* A file with a passphrase is not ours; nobody is to be asked for one. */
static int no_passphrase(char *out, int size, int writing, void *arg)
{
    (void)out;
    (void)size;
    (void)writing;
    (void)arg;
    return -1;
}

static FILE *open_plain(const char *path)
{
    struct stat st;

    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;

    FILE *f = fdopen(fd, "r");
    if (f)
        (void)fd_take(&fd);
    return f;
}

/* Reads both files; the member of one that cannot be read stays NULL, whatever the reason. */
static void read_pair(const char *cert, const char *key, struct pair *ret)
{
    FILE *f = open_plain(cert);
    if (f) {
        ret->cert = PEM_read_X509(f, NULL, no_passphrase, NULL);
        (void)fclose(f);
    }

    if ((f = open_plain(key))) {
        ret->key = PEM_read_PrivateKey(f, NULL, no_passphrase, NULL);
        (void)fclose(f);
    }

    ERR_clear_error();
}

static int exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static int write_to(int fd, const struct pair *p, int is_key, struct pd_err *e)
{
    auto_buf text = BUF_INIT(64u << 10);

    if (x509_put_pem(&text, is_key ? NULL : p->cert, is_key ? p->key : NULL) < 0)
        return x509_fail(e, "write PEM");

    int r = 0;
    if ((errno = -fd_write_all(fd, text.data, text.len)) != 0 ||
        fchmod(fd, is_key ? 0600 : 0644) < 0 || fsync(fd) < 0)
        r = pd_fail_sys(e, "write the %s", is_key ? "key" : "certificate");
    OPENSSL_cleanse(text.data, text.len);
    return r;
}

static int save(const char *path, const struct pair *p, int is_key, int replace, struct pd_err *e)
{
    char temporary[PLACE_SIZE];

    (void)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    auto_fd fd = mkostemp(temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return pd_fail_sys(e, "write %.150s", path);

    int r = write_to(fd, p, is_key, e);
    if (r == 0 && (replace ? rename(temporary, path) : link(temporary, path)) < 0)
        r = pd_fail_sys(e, "write %.150s", path);

    if (r < 0 || !replace)
        (void)unlink(temporary);
    return r;
}

/* ---- all of it ---- */

static bool is_authority(const struct pair *p)
{
    return p->cert && p->key && X509_check_ca(p->cert) == 1 &&
           X509_check_private_key(p->cert, p->key) == 1;
}

/* The authority of the directory, or a new one that is not saved yet. */
static int get_ca(const struct cert_request *r, const char *key, struct cert_result *out,
                  struct pair *ca, struct pd_err *e)
{
    read_pair(out->ca, key, ca);
    ERR_clear_error();
    if (is_authority(ca)) {
        if (X509_cmp_current_time(X509_get0_notAfter(ca->cert)) > 0)
            return 0;
        if (!r->force)
            return pd_fail(e, PD_CONFLICT,
                           "%.120s has expired: --force makes another one, which clients then "
                           "need",
                           out->ca);
    } else if (!r->force && (exists(out->ca) || exists(key))) {
        return pd_fail(e, PD_CONFLICT,
                       "%.70s and ca.key are not an authority and its key, or not readable: choose "
                       "another --dir, or --force to replace them",
                       out->ca);
    }

    ERR_clear_error();
    pair_done(ca);
    *ca = (struct pair){0};
    out->made_ca = true;
    return make_ca(ca, e);
}

/* Whether certificate and key may be replaced: nothing is there, or what this authority signed. */
static int check_place(const struct cert_request *r, const struct cert_result *out,
                       const struct pair *ca, struct pd_err *e)
{
    auto_pair old = {0};

    if (r->force || (!exists(out->cert) && !exists(out->key)))
        return 0;

    read_pair(out->cert, out->key, &old);
    EVP_PKEY *signer = X509_get0_pubkey(ca->cert);
    int ours = old.cert && !out->made_ca && signer && X509_verify(old.cert, signer) == 1;
    ERR_clear_error();

    if (ours)
        return 0;
    return pd_fail(e, PD_CONFLICT,
                   "%.100s was not made by this authority: choose another --dir, or --force to "
                   "replace it",
                   exists(out->cert) ? out->cert : out->key);
}

static void show_end(const X509 *x, char *out, size_t size)
{
    struct tm t;
    if (ASN1_TIME_to_tm(X509_get0_notAfter(x), &t) != 1 || !strftime(out, size, "%F", &t))
        out[0] = 0;
}

int cert_make(const struct cert_request *r, struct cert_result *ret, struct pd_err *e)
{
    struct cert_result out = {0};
    auto_pair ca = {0}, leaf = {0};

    if (r->names->count == 0 || r->days < 1 || r->days > CERT_DAYS_MAX)
        return pd_fail(e, PD_INVALID, "a certificate has names, and 1 to %d days", CERT_DAYS_MAX);

    char ca_key[CERT_PATH_SIZE];
    if (place(r->dir, "ca.pem", out.ca, e) < 0 || place(r->dir, "ca.key", ca_key, e) < 0 ||
        place(r->dir, "cert.pem", out.cert, e) < 0 || place(r->dir, "key.pem", out.key, e) < 0)
        return -1;

    if (get_ca(r, ca_key, &out, &ca, e) < 0 || check_place(r, &out, &ca, e) < 0 ||
        make_leaf(&leaf, &ca, r, e) < 0)
        return -1;

    if (out.made_ca &&
        (save(ca_key, &ca, 1, r->force, e) < 0 || save(out.ca, &ca, 0, r->force, e) < 0))
        return -1;
    if (save(out.key, &leaf, 1, 1, e) < 0 || save(out.cert, &leaf, 0, 1, e) < 0)
        return -1;

    show_end(leaf.cert, out.until, sizeof out.until);
    *ret = out;
    return 0;
}
