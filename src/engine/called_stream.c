/* The certificate around the key is there because TLS wants one: nobody reads what it says, and it
 * is made anew each time from the key, which is what a box compares. A file that is there is
 * complete: it is written under another name and linked, and the first of several counts. */
#include "engine/called_stream.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY_FILE  "calls.key"
#define CERT_LIFE (10l * 365 * 24 * 3600)

struct called_keys {
    SSL_CTX *context;
    uint8_t pin[CALLER_PIN];
};

struct called {
    struct byte_stream stream;
    SSL *ssl;
    int fd;
};

/* ---- the key ---- */

static EVP_PKEY *read_key(const char *path)
{
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char text[1024];
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : -1;
    BIO *bio = n > 0 ? BIO_new_mem_buf(text, (int)n) : NULL;
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, (void *)"") : NULL;

    BIO_free(bio);
    explicit_bzero(text, sizeof text);
    return key;
}

static int write_key(const char *path, EVP_PKEY *key)
{
    char temporary[700];

    snprintf(temporary, sizeof temporary, "%.600s.%d", path, (int)getpid());
    (void)unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    int good = PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL);
    good = (fclose(file) == 0 && good) && (link(temporary, path) == 0 || errno == EEXIST);
    (void)unlink(temporary);
    return good ? 0 : -1;
}

static EVP_PKEY *find_key(const char *state_dir, struct pd_err *e)
{
    char path[640];

    if ((size_t)snprintf(path, sizeof path, "%s/" KEY_FILE, state_dir) >= 600) {
        pd_fail(e, PD_INVALID, "the state directory's path is too long: %.100s", state_dir);
        return NULL;
    }
    EVP_PKEY *key = read_key(path);
    if (key)
        return key;

    key = EVP_EC_gen("P-256");
    int written = key ? write_key(path, key) : -1;
    EVP_PKEY_free(key);
    key = written == 0 ? read_key(path) : NULL; /* another process's may be the one */
    if (!key)
        pd_fail(e, PD_INTERNAL, "the key for boxes that call cannot be kept in %.200s", path);
    return key;
}

static X509 *wrap(EVP_PKEY *key)
{
    X509 *x = X509_new();
    X509_NAME *name = x ? X509_get_subject_name(x) : NULL;
    const unsigned char *word = (const unsigned char *)"paddock";

    if (x && X509_set_version(x, 2) && ASN1_INTEGER_set(X509_get_serialNumber(x), 1) &&
        X509_gmtime_adj(X509_getm_notBefore(x), -24l * 3600) &&
        X509_gmtime_adj(X509_getm_notAfter(x), CERT_LIFE) && X509_set_pubkey(x, key) &&
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, word, -1, -1, 0) &&
        X509_set_issuer_name(x, name) && X509_sign(x, key, EVP_sha256()))
        return x;
    X509_free(x);
    return NULL;
}

/* Of P-256, and not compressed. */
static bool take_pin(EVP_PKEY *key, uint8_t out[CALLER_PIN])
{
    unsigned char *point = NULL;
    size_t len = EVP_PKEY_get1_encoded_public_key(key, &point);
    bool good = len == CALLER_PIN && point[0] == 4;

    if (good)
        memcpy(out, point, CALLER_PIN);
    OPENSSL_free(point);
    return good;
}

struct called_keys *called_keys_open(const char *state_dir, struct pd_err *e)
{
    EVP_PKEY *key = find_key(state_dir, e);
    struct called_keys *k = key ? calloc(1, sizeof *k) : NULL;
    X509 *x = k ? wrap(key) : NULL;

    if (k)
        k->context = SSL_CTX_new(TLS_server_method());
    bool good = x && k->context && take_pin(key, k->pin) &&
                SSL_CTX_set_min_proto_version(k->context, TLS1_2_VERSION) == 1 &&
                SSL_CTX_use_certificate(k->context, x) == 1 &&
                SSL_CTX_use_PrivateKey(k->context, key) == 1;
    if (good) {
        SSL_CTX_set_options(k->context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
        SSL_CTX_set_mode(k->context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                         SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                         SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_session_cache_mode(k->context, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_num_tickets(k->context, 0);
    }
    ERR_clear_error();
    X509_free(x);
    EVP_PKEY_free(key);
    if (good)
        return k;
    called_keys_free(k);
    if (key)
        pd_fail(e, PD_INTERNAL, "the key for boxes that call is no key of P-256");
    return NULL;
}

void called_keys_free(struct called_keys *k)
{
    if (!k)
        return;
    SSL_CTX_free(k->context);
    free(k);
}

void called_keys_pin(const struct called_keys *k, char out[2 * CALLER_PIN + 1])
{
    for (size_t i = 0; i < CALLER_PIN; i++)
        snprintf(out + 2 * i, 3, "%02x", k->pin[i]);
}

/* ---- the stream ---- */

static struct called *self(struct byte_stream *s)
{
    return (struct called *)s;
}

/* What an operation that did not succeed means. */
static ssize_t pending(struct called *c, int result)
{
    int what = SSL_get_error(c->ssl, result);

    ERR_clear_error();
    return what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE ? -EAGAIN
           : what == SSL_ERROR_ZERO_RETURN                             ? 0
                                                                       : -EIO;
}

static ssize_t called_read(struct byte_stream *s, void *out, size_t size)
{
    size_t n = 0;
    int r = SSL_read_ex(self(s)->ssl, out, size, &n);
    return r == 1 ? (ssize_t)n : pending(self(s), r);
}

static ssize_t called_write(struct byte_stream *s, const void *data, size_t len)
{
    size_t n = 0;

    if (!len)
        return 0;
    int r = SSL_write_ex(self(s)->ssl, data, len, &n);
    ssize_t failed = r == 1 ? 0 : pending(self(s), r);
    return r == 1 ? (ssize_t)n : failed ? failed : -EIO;
}

static int called_fd(const struct byte_stream *s)
{
    return ((const struct called *)s)->fd;
}

static void called_free(struct byte_stream *s)
{
    (void)SSL_shutdown(self(s)->ssl);
    ERR_clear_error();
    SSL_free(self(s)->ssl);
    close(self(s)->fd);
    free(s);
}

static const struct byte_stream_kind kind = {
    .read = called_read, .write = called_write, .fd = called_fd, .free = called_free};

static bool shake_hands(SSL *ssl, int fd, deadline t)
{
    for (;;) {
        int r = SSL_accept(ssl), what = SSL_get_error(ssl, r);
        struct pollfd p = {.fd = fd, .events = what == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN};
        if (r == 1)
            return true;
        if ((what != SSL_ERROR_WANT_READ && what != SSL_ERROR_WANT_WRITE) || deadline_passed(t) ||
            (poll(&p, 1, deadline_poll_ms(t)) < 0 && errno != EINTR))
            return false;
    }
}

struct byte_stream *called_stream(const struct called_keys *k, int given, deadline t,
                                  struct pd_err *e)
{
    auto_fd fd = given;
    struct called *c = calloc(1, sizeof *c);

    if (!c || fd_set_nonblock(fd) < 0 || !(c->ssl = SSL_new(k->context)) ||
        SSL_set_fd(c->ssl, fd) != 1 || !shake_hands(c->ssl, fd, t)) {
        ERR_clear_error();
        if (c)
            SSL_free(c->ssl);
        free(c);
        pd_fail(e, PD_BAD_GATEWAY, "a box has called, and its TLS handshake failed");
        return NULL;
    }
    c->stream.kind = &kind;
    c->fd = fd_take(&fd);
    return &c->stream;
}
