/* How this works: OpenSSL is used on a non-blocking socket and never waits; conn does that. Memory
 * of an idle connection is kept small: buffers are released, sessions are not cached here (clients
 * may keep tickets). */
#include "net/tls.h"

#include "base/buf.h"
#include "base/err.h"
#include "net/conn.h"

#include "base/banned.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

struct tls_context {
    SSL_CTX *ctx;
    int is_client;
};

struct tls {
    SSL *ssl;
    int is_client, has_host, broken;
    BIO_METHOD *early; /* of a source that begins with bytes which were read before */
};

/* Takes the oldest error of this thread's queue and empties it. */
static int fail_ssl(struct pd_err *e, enum pd_code code, const char *what)
{
    unsigned long first = ERR_get_error();
    const char *reason = first ? ERR_reason_error_string(first) : NULL;
    ERR_clear_error();
    return pd_fail(e, code, "%s: %s", what, reason ? reason : "TLS failed");
}

static int select_http1(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                        const unsigned char *in, unsigned in_len, void *arg)
{
    (void)ssl;
    (void)arg;
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *found;
    if (SSL_select_next_proto(&found, out_len, ours, sizeof ours - 1, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

static struct tls_context *context_new(int is_client, struct pd_err *e)
{
    struct tls_context *t = calloc(1, sizeof *t);
    if (!t) {
        pd_fail(e, PD_CAPACITY, "out of memory");
        return NULL;
    }

    ERR_clear_error();
    t->is_client = is_client;
    t->ctx = SSL_CTX_new(is_client ? TLS_client_method() : TLS_server_method());
    if (!t->ctx || !SSL_CTX_set_min_proto_version(t->ctx, TLS1_2_VERSION)) {
        fail_ssl(e, PD_INTERNAL, "set up TLS");
        tls_context_free(t);
        return NULL;
    }

    SSL_CTX_set_options(t->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                    SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_OFF);
    return t;
}

struct tls_context *tls_server_new(const char *cert_file, const char *key_file, struct pd_err *e)
{
    struct tls_context *t = context_new(0, e);
    if (!t)
        return NULL;

    char what[200];
    if (SSL_CTX_use_certificate_chain_file(t->ctx, cert_file) != 1)
        snprintf(what, sizeof what, "certificate file %s", cert_file);
    else if (SSL_CTX_use_PrivateKey_file(t->ctx, key_file, SSL_FILETYPE_PEM) != 1)
        snprintf(what, sizeof what, "key file %s", key_file);
    else if (SSL_CTX_check_private_key(t->ctx) != 1)
        snprintf(what, sizeof what, "%s is not the key of %s", key_file, cert_file);
    else {
        SSL_CTX_set_num_tickets(t->ctx, 1);
        SSL_CTX_set_alpn_select_cb(t->ctx, select_http1, NULL);
        return t;
    }

    fail_ssl(e, PD_INVALID, what);
    tls_context_free(t);
    return NULL;
}

static BIO *memory_of(const struct buf *text)
{
    return BIO_new_mem_buf(text->data, (int)text->len);
}

struct tls_context *tls_server_of(const struct buf *cert, const struct buf *key, struct pd_err *e)
{
    struct tls_context *t = context_new(0, e);
    if (!t)
        return NULL;

    BIO *c = memory_of(cert), *k = memory_of(key);
    X509 *x = c ? PEM_read_bio_X509(c, NULL, NULL, NULL) : NULL;
    EVP_PKEY *p = k ? PEM_read_bio_PrivateKey(k, NULL, NULL, NULL) : NULL;
    int good = x && p && SSL_CTX_use_certificate(t->ctx, x) == 1 &&
               SSL_CTX_use_PrivateKey(t->ctx, p) == 1 && SSL_CTX_check_private_key(t->ctx) == 1;
    EVP_PKEY_free(p);
    X509_free(x);
    BIO_free(k);
    BIO_free(c);
    if (good) {
        SSL_CTX_set_num_tickets(t->ctx, 0);
        SSL_CTX_set_alpn_select_cb(t->ctx, select_http1, NULL);
        return t;
    }

    fail_ssl(e, PD_INTERNAL, "a certificate in memory");
    tls_context_free(t);
    return NULL;
}

struct tls_context *tls_client_new(const char *ca_file, struct pd_err *e)
{
    struct tls_context *t = context_new(1, e);
    if (!t)
        return NULL;

    int good = ca_file ? SSL_CTX_load_verify_locations(t->ctx, ca_file, NULL)
                       : SSL_CTX_set_default_verify_paths(t->ctx);
    if (good != 1) {
        fail_ssl(e, PD_INVALID, ca_file ? ca_file : "the system's certificate authorities");
        tls_context_free(t);
        return NULL;
    }

    static const unsigned char http1[] = "\x08http/1.1";
    (void)SSL_CTX_set_alpn_protos(t->ctx, http1, sizeof http1 - 1);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
    return t;
}

void tls_context_free(struct tls_context *t)
{
    if (!t)
        return;
    SSL_CTX_free(t->ctx);
    free(t);
}

struct tls *tls_new(struct tls_context *context, int fd, struct pd_err *e)
{
    struct tls *t = calloc(1, sizeof *t);
    if (!t) {
        pd_fail(e, PD_CAPACITY, "out of memory");
        return NULL;
    }

    ERR_clear_error();
    t->is_client = context->is_client;
    t->ssl = SSL_new(context->ctx);
    if (!t->ssl || SSL_set_fd(t->ssl, fd) != 1) {
        fail_ssl(e, PD_CAPACITY, "start TLS");
        t->broken = 1;
        tls_free(t);
        return NULL;
    }

    if (t->is_client)
        SSL_set_connect_state(t->ssl);
    else
        SSL_set_accept_state(t->ssl);
    return t;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    tls_end_writing(t);
    SSL_free(t->ssl);
    BIO_meth_free(t->early);
    free(t);
}

void tls_end_writing(struct tls *t)
{
    /* Before the handshake, or after a failure, OpenSSL wants no good-bye. */
    if (!t->broken && t->ssl && SSL_is_init_finished(t->ssl)) {
        ERR_clear_error();
        (void)SSL_shutdown(t->ssl);
        ERR_clear_error();
    }
}

int tls_set_host(struct tls *t, const char *host, struct pd_err *e)
{
    ERR_clear_error();

    struct in6_addr number;
    int is_number =
        inet_pton(AF_INET, host, &number) == 1 || inet_pton(AF_INET6, host, &number) == 1;
    int good = is_number
                   ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(t->ssl), host)
                   : SSL_set1_host(t->ssl, host) && (int)SSL_set_tlsext_host_name(t->ssl, host);

    if (good != 1)
        return fail_ssl(e, PD_INVALID, "host name for TLS");
    t->has_host = 1;
    return 0;
}

/* ---- bytes that somebody has read already ---- */

/* The source of a session that begins with such: they come first, then the descriptor's. */
struct early {
    int fd;
    size_t at, len;
    uint8_t bytes[];
};

static int early_read(BIO *b, char *out, int size)
{
    struct early *s = BIO_get_data(b);

    BIO_clear_retry_flags(b);
    if (s->at < s->len) {
        size_t step = s->len - s->at < (size_t)size ? s->len - s->at : (size_t)size;
        memcpy(out, s->bytes + s->at, step);
        s->at += step;
        return (int)step;
    }

    ssize_t n = recv(s->fd, out, (size_t)size, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(b);
    return (int)n;
}

static long early_ctrl(BIO *b, int what, long number, void *arg)
{
    (void)number;
    (void)arg;
    const struct early *s = BIO_get_data(b);
    return what == BIO_CTRL_PENDING ? (long)(s->len - s->at) : what == BIO_CTRL_FLUSH;
}

static int early_destroy(BIO *b)
{
    free(BIO_get_data(b));
    BIO_set_data(b, NULL);
    return 1;
}

int tls_unread(struct tls *t, int fd, const void *data, size_t len, struct pd_err *e)
{
    struct early *s = malloc(sizeof *s + len);
    if (!t->early)
        t->early = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "early");
    BIO *b = s && t->early && BIO_meth_set_read(t->early, early_read) &&
                     BIO_meth_set_ctrl(t->early, early_ctrl) &&
                     BIO_meth_set_destroy(t->early, early_destroy)
                 ? BIO_new(t->early)
                 : NULL;
    if (!b) {
        free(s);
        return pd_fail(e, PD_CAPACITY, "out of memory");
    }

    *s = (struct early){.fd = fd, .len = len};
    memcpy(s->bytes, data, len);
    BIO_set_data(b, s);
    BIO_set_init(b, 1);
    SSL_set0_rbio(t->ssl, b);
    return 0;
}

int tls_pending(struct tls *t)
{
    return SSL_has_pending(t->ssl) || (t->early && BIO_ctrl_pending(SSL_get_rbio(t->ssl)));
}

/* Tells what a result `n` <= 0 of OpenSSL's means. */
static ssize_t outcome(struct tls *t, int n, int sys, short *ret_want, struct pd_err *e)
{
    *ret_want = 0;
    int error = SSL_get_error(t->ssl, n);
    switch (error) {
    case SSL_ERROR_WANT_READ:
        *ret_want = POLLIN;
        return -1;
    case SSL_ERROR_WANT_WRITE:
        *ret_want = POLLOUT;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        break;
    }

    t->broken = 1;
    long verdict = SSL_get_verify_result(t->ssl);
    if (t->is_client && verdict != X509_V_OK) {
        ERR_clear_error();
        return pd_fail(e, PD_DENIED, "the server's certificate is not trusted: %s",
                       X509_verify_cert_error_string(verdict));
    }

    if (error == SSL_ERROR_SYSCALL) {
        ERR_clear_error();
        pd_fail(e, PD_LOST, "the connection was lost: %s", sys ? strerror(sys) : "end of stream");
        if (e)
            e->sys = sys;
        return -1;
    }
    return fail_ssl(e, PD_LOST, "TLS");
}

static int check(struct tls *t, short *ret_want, struct pd_err *e)
{
    *ret_want = 0;
    if (t->broken)
        return pd_fail(e, PD_LOST, "the TLS connection has failed before");
    if (t->is_client && !t->has_host)
        return pd_fail(e, PD_INTERNAL, "a TLS client must know whom it talks to");

    ERR_clear_error();
    errno = 0;
    return 0;
}

ssize_t tls_read(struct tls *t, void *out, size_t size, short *ret_want, struct pd_err *e)
{
    if (check(t, ret_want, e))
        return -1;

    int n = SSL_read(t->ssl, out, size > (1 << 30) ? 1 << 30 : (int)size);
    return n > 0 ? n : outcome(t, n, errno, ret_want, e);
}

ssize_t tls_write(struct tls *t, const void *data, size_t len, short *ret_want, struct pd_err *e)
{
    if (check(t, ret_want, e))
        return -1;

    int n = SSL_write(t->ssl, data, len > (1 << 30) ? 1 << 30 : (int)len);
    if (n > 0)
        return n;

    ssize_t r = outcome(t, n, errno, ret_want, e);
    return r == 0 ? pd_fail(e, PD_LOST, "the peer has ended the TLS connection") : r;
}
