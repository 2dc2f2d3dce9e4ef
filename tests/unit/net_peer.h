/* net_peer: a server of the test's own in a thread, and clients that send whatever they like. */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "net/server.h"
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATIENCE (60 * NS_PER_S)

struct test_server {
    struct server *server;
    struct tls_context *tls;
    pthread_t thread;
    struct sockaddr_in address;
    int running;
};

static inline void *test_server_run(void *arg)
{
    struct pd_err e;
    struct test_server *t = arg;
    if (server_run(t->server, &e))
        print_message("# server_run: %s\n", e.msg);
    return NULL;
}

static inline void server_begin(struct test_server *t, const struct server_config *config)
{
    struct pd_err e;
    t->server = server_new(config, &e);
    assert_non_null(t->server);
    int fd = server_bind("127.0.0.1:0", &e);
    assert_true(fd >= 0);
    socklen_t len = sizeof t->address;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&t->address, &len), 0);
    assert_int_equal(server_listen(t->server, fd, t->tls, &e), 0);
    assert_int_equal(pthread_create(&t->thread, NULL, test_server_run, t), 0);
    t->running = 1;
}

static inline void server_end(struct test_server *t)
{
    if (t->running) {
        server_stop(t->server, deadline_in(5 * NS_PER_S));
        pthread_join(t->thread, NULL);
    }
    server_free(t->server);
    tls_context_free(t->tls);
    *t = (struct test_server){0};
}

/* A client's end: a plain socket and what came in on it. */
struct peer {
    int fd;
    struct buf in;
};

static inline int dial_server(const struct test_server *t)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&t->address, sizeof t->address), 0);
    struct timeval patience = {.tv_sec = PATIENCE / NS_PER_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

static inline struct peer peer_dial(const struct test_server *t)
{
    return (struct peer){dial_server(t), BUF_INIT(64u << 20)};
}

static inline void peer_done(struct peer *p)
{
    fd_done(&p->fd);
    buf_done(&p->in);
}
#define auto_peer __attribute__((cleanup(peer_done))) struct peer

static inline void peer_put(struct peer *p, const void *data, size_t len)
{
    const char *at = data;
    while (len) {
        ssize_t n = send(p->fd, at, len, MSG_NOSIGNAL);
        assert_true(n > 0);
        at += n;
        len -= (size_t)n;
    }
}

static inline void peer_say(struct peer *p, const char *text)
{
    peer_put(p, text, strlen(text));
}

/* More bytes: 1, or 0 at the end or a reset. Time-outs fail the test. */
static inline int peer_more(struct peer *p)
{
    uint8_t *to = buf_reserve(&p->in, 65536);
    assert_non_null(to);
    ssize_t n = recv(p->fd, to, 65536, 0);
    if (n < 0 && errno != ECONNRESET)
        fail_msg("no bytes came: %s", strerror(errno));
    if (n <= 0)
        return 0;
    p->in.len += (size_t)n;
    return 1;
}

static inline void peer_drop(struct peer *p, size_t n)
{
    p->in.len -= n;
    memmove(p->in.data, p->in.data + n, p->in.len);
}

/* An answer, with copies of what tests ask for. */
struct answer {
    int status, keep_alive, complete;
    enum http_body kind;
    char id[40], allow[80], type[80], extra[80];
    uint64_t length;
    struct buf body;
};

static inline void answer_done(struct answer *a)
{
    buf_done(&a->body);
}
#define auto_answer __attribute__((cleanup(answer_done))) struct answer

static inline void copy_header(const struct http_head *h, const char *name, char *out, size_t size)
{
    const struct slice *v = http_find(h, name);
    snprintf(out, size, "%.*s", v ? (int)v->len : 0, v ? v->at : "");
}

/* Reads one answer. `complete` is 0 when the connection ended inside it; a missing head fails. */
static inline struct answer peer_answer(struct peer *p, enum http_method m)
{
    static _Thread_local struct http_head h;
    struct answer a = {.body = BUF_INIT(64u << 20)};
    struct pd_err e;
    ptrdiff_t n;

    while ((n = p->in.len ? http_response_parse(p->in.data, p->in.len, m, &h, &e) : 0) == 0)
        if (!peer_more(p))
            fail_msg("the connection ended without an answer");
    if (n < 0)
        fail_msg("malformed answer: %s", e.msg);

    a.status = h.status;
    a.keep_alive = h.keep_alive;
    a.kind = h.body;
    a.length = h.length;
    copy_header(&h, "X-Request-Id", a.id, sizeof a.id);
    copy_header(&h, "Allow", a.allow, sizeof a.allow);
    copy_header(&h, "Content-Type", a.type, sizeof a.type);
    copy_header(&h, "X-Extra", a.extra, sizeof a.extra);
    if (h.status >= 200)
        assert_int_equal(strlen(a.id), 16);

    peer_drop(p, (size_t)n);
    a.complete = 1;

    if (h.body == HTTP_BODY_LENGTH) {
        while (p->in.len < h.length)
            if (!peer_more(p)) {
                a.complete = 0;
                return a;
            }
        buf_put(&a.body, p->in.data, h.length);
        peer_drop(p, h.length);
    } else if (h.body == HTTP_BODY_TO_EOF) {
        while (peer_more(p))
            ;
        buf_put(&a.body, p->in.data, p->in.len);
        peer_drop(p, p->in.len);
    } else if (h.body == HTTP_BODY_CHUNKED) {
        struct http_chunks chunks = {0};
        while (!chunks.done) {
            size_t used, len;
            const char *piece;
            if (!p->in.len && !peer_more(p)) {
                a.complete = 0;
                return a;
            }
            assert_int_equal(
                http_chunks_next(&chunks, (char *)p->in.data, p->in.len, &used, &piece, &len, &e),
                0);
            if (len)
                buf_put(&a.body, piece, len);
            peer_drop(p, used);
        }
    }

    return a;
}

static inline int answer_is(struct answer *a, int status, const char *body)
{
    const char *text = buf_cstr(&a->body);
    if (a->status == status && a->complete && text && strcmp(text, body) == 0)
        return 1;
    print_message("# status %d complete %d body '%.200s'\n", a->status, a->complete, text);
    return 0;
}

static inline int answer_has(struct answer *a, const char *part)
{
    const char *text = buf_cstr(&a->body);
    if (text && strstr(text, part))
        return 1;
    print_message("# '%s' is not in '%.300s'\n", part, text);
    return 0;
}

/* The server has closed: nothing more comes. */
static inline int peer_at_end(struct peer *p)
{
    return p->in.len == 0 && !peer_more(p);
}

/* A key and a certificate for it, signed by itself, in two files below dir. */
static inline void make_certificate(const char *dir, char cert[128], char key[128])
{
    snprintf(cert, 128, "%s/cert.pem", dir);
    snprintf(key, 128, "%s/key.pem", dir);
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    assert_true(pair && x);

    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, pair);

    X509_NAME *name = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"test", -1, -1, 0);
    X509_set_issuer_name(x, name);

    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, x, x, NULL, NULL, 0);
    X509_EXTENSION *names =
        X509V3_EXT_conf_nid(NULL, &context, NID_subject_alt_name, "IP:127.0.0.1,DNS:here.test");
    assert_non_null(names);

    X509_add_ext(x, names, -1);
    X509_EXTENSION_free(names);
    assert_true(X509_sign(x, pair, EVP_sha256()) > 0);

    FILE *f = fopen(cert, "we");
    assert_true(f && PEM_write_X509(f, x) == 1);
    fclose(f);
    f = fopen(key, "we");
    assert_true(f && PEM_write_PrivateKey(f, pair, NULL, NULL, 0, NULL, NULL) == 1);

    fclose(f);
    X509_free(x);
    EVP_PKEY_free(pair);
}
