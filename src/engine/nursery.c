/* How this works: on the socket to the broker one frame goes each way for a watch, the container's
 * place with four descriptors there, a pidfd back. The key of the box's link is in a pipe that only
 * the watch reads. */
#include "engine/nursery.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "engine/far_box.h"
#include "engine/http.h"
#include "engine/remote.h"
#include "jail/init_image.h"
#include "wire/msg.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SOCK_FD       3
#define FIRST_FD      3 /* of a watch */
#define WATCH_FDS     (NURSERY_FDS + 1)
#define SECRETS_FD    (int)(FIRST_FD + WATCH_FDS)
#define BIRTH_TIME    (10 * NS_PER_S)
#define NURSERY_WORDS 14u /* of its command line, without settings */

/* ---- the process ---- */

/* What every watch gets. */
struct ward {
    const struct broker_config *config;
    int secrets; /* credentials that the environment had (secret_env.h); or negative */
    int program; /* paddock-box */
};

/* A certificate of nobody's, read as one is read: as text. */
static X509 *make_certificate(EVP_PKEY *key)
{
    X509 *made = X509_new(), *read = NULL;
    BIO *text = BIO_new(BIO_s_mem());

    if (made && text && key && X509_gmtime_adj(X509_getm_notBefore(made), 0) &&
        X509_gmtime_adj(X509_getm_notAfter(made), 3600) && X509_set_pubkey(made, key) == 1 &&
        X509_sign(made, key, EVP_sha256()) > 0 && PEM_write_bio_X509(text, made) == 1)
        read = PEM_read_bio_X509(text, NULL, NULL, NULL);
    X509_free(made);
    BIO_free(text);
    return read;
}

/* Two ends in this process greet each other. */
static void shake_hands(SSL *near, SSL *far)
{
    BIO *a = NULL, *b = NULL;
    if (!near || !far || BIO_new_bio_pair(&a, 0, &b, 0) != 1)
        return;

    SSL_set_bio(near, a, a);
    SSL_set_bio(far, b, b);
    SSL_set_connect_state(near);
    SSL_set_accept_state(far);
    for (int i = 0; i < 8 && SSL_do_handshake(near) != 1; i++)
        (void)SSL_do_handshake(far);
    (void)SSL_do_handshake(far);
}

/* What a connection needs of the libraries is in memory once, and not in each carrier. Whatever
 * fails here, a carrier does for itself. */
static void warm_up(void)
{
    (void)http_begin();
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = make_certificate(key);
    SSL_CTX *client = SSL_CTX_new(TLS_client_method()), *server = SSL_CTX_new(TLS_server_method());

    if (client && server && certificate && SSL_CTX_use_certificate(server, certificate) == 1 &&
        SSL_CTX_use_PrivateKey(server, key) == 1) {
        SSL *near = SSL_new(client), *far = SSL_new(server);
        shake_hands(near, far);
        SSL_free(near);
        SSL_free(far);
    }
    SSL_CTX_free(client);
    SSL_CTX_free(server);
    X509_free(certificate);
    EVP_PKEY_free(key);
    ERR_clear_error();
}

/* Takes what is free between the libraries' objects, for good: what children allocate lies together
 * then, and does not give each of them a copy of every page that has a gap. */
static void fill_gaps(void)
{
    (void)malloc_trim(0);
    const char *end = sbrk(0);

    for (size_t size = 32u << 10; size >= sizeof(void *); size /= 2)
        for (;;) {
            char *gap = malloc(size);
            if (gap && gap < end)
                continue;
            free(gap);
            break;
        }
}

static _Noreturn void be_watch(const struct ward *w, const struct frame *f)
{
    static char container[WIRE_PAYLOAD_MAX + 1];
    int high[WATCH_FDS];
    sigset_t none;

    memcpy(container, f->payload.data, f->payload.len);
    for (unsigned i = 0; i < WATCH_FDS; i++)
        high[i] = fcntl(i < NURSERY_FDS ? f->fds[i] : w->program, F_DUPFD, SECRETS_FD + 1);
    int secrets = w->secrets < 0 ? -1 : fcntl(w->secrets, F_DUPFD, SECRETS_FD + 1);
    for (unsigned i = 0; i < WATCH_FDS; i++)
        if (high[i] < 0 || dup2(high[i], FIRST_FD + (int)i) < 0)
            _exit(1);
    if (secrets < 0)
        close(SECRETS_FD);
    else if (dup3(secrets, SECRETS_FD, O_CLOEXEC) < 0)
        _exit(1);
    syscall(SYS_close_range, SECRETS_FD + 1, ~0u, 0);
    (void)setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    far_box_main(w->config, container, secrets < 0 ? -1 : SECRETS_FD);
}

static void bear(const struct ward *w, const struct frame *f)
{
    struct wire_head head = {.type = WIRE_ERROR, .id = f->head.id};
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    auto_fd process = -1;
    pid_t pid = f->fd_count == NURSERY_FDS ? fork() : -1;

    if (pid == 0)
        be_watch(w, f);
    if (pid > 0)
        process = (int)syscall(SYS_pidfd_open, pid, 0);
    /* Nobody could end it. With ESRCH it has ended, and the number may be another's. */
    if (pid > 0 && process < 0 && errno != ESRCH)
        (void)kill(pid, SIGKILL);
    if (process >= 0) {
        head.type = WIRE_STARTED;
        msg_started_encode(&out, &(struct msg_started){.pid = pid});
    }

    int sent = wire_send(SOCK_FD, &head, &out, &process, process >= 0, deadline_in(BIRTH_TIME));
    if (sent < 0 && process >= 0)
        (void)syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
}

_Noreturn void nursery_main(const struct broker_config *c)
{
    struct frame f = FRAME_INIT;
    struct pd_err e;

    (void)signal(SIGCHLD, SIG_IGN); /* the keeper has pidfds */
    (void)signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "paddock-nursery", 0, 0, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    struct ward w = {.config = c, .secrets = secret_env_seal(), .program = box_image_open(&e)};
    if (w.program < 0)
        _exit(1);
    warm_up();
    fill_gaps();
    while (wire_recv(SOCK_FD, &f, DEADLINE_NONE, &e) > 0) {
        bear(&w, &f);
        frame_done(&f);
    }
    _exit(0);
}

/* ---- the broker's side ---- */

/* With its socket and no other descriptor. */
static _Noreturn void become_nursery(const struct broker_config *c, int sock)
{
    char lease[16];
    const char *argv[NURSERY_WORDS + 2 * BROKER_SETTINGS_MAX] = {
        NULL,     "nursery", c->kind->name, "--instance", c->instance, "--state", c->state_dir,
        "--host", c->host,   "--certs",     c->cert_path, "--lease",   lease};
    unsigned words = NURSERY_WORDS - 1;
    sigset_t none;

    snprintf(lease, sizeof lease, "%u", (unsigned)c->lease);
    for (unsigned i = 0; i < c->setting_count; i++) {
        argv[words++] = "--set";
        argv[words++] = c->settings[i];
    }
    argv[words] = NULL;

    int high = fcntl(sock, F_DUPFD, SOCK_FD + 1);
    if (high < 0 || dup2(high, SOCK_FD) < 0)
        _exit(127);
    syscall(SYS_close_range, SOCK_FD + 1, ~0u, 0);
    (void)setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    exec_beside("paddock-remote", argv);
    _exit(127);
}

static int start(struct nursery *n, const struct broker_config *c, struct pd_err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket");

    auto_fd ours = pair[0], theirs = pair[1];
    pid_t pid = fork();
    if (pid < 0)
        return pd_fail_sys(e, "start a nursery");
    if (pid == 0)
        become_nursery(c, theirs);
    n->sock = fd_take(&ours);
    return 0;
}

void nursery_done(struct nursery *n)
{
    if (n->sock > 0)
        close(n->sock);
    n->sock = 0;
}

/* `ret_asked`: whether the nursery may have heard of it. */
static pid_t ask(struct nursery *n, const char *container, const int fds[NURSERY_FDS],
                 int *ret_process, bool *ret_asked, struct pd_err *e)
{
    struct wire_head head = {.type = WIRE_BUILD, .id = wire_id_new()};
    struct msg_started m;
    auto_frame f = FRAME_INIT;
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    deadline t = deadline_in(BIRTH_TIME);

    buf_put(&out, container, strlen(container) + 1);
    *ret_asked = wire_send(n->sock, &head, &out, fds, NURSERY_FDS, t) == 0;
    if (!*ret_asked)
        return pd_fail(e, PD_LOST, "the nursery of stand-ins is gone");
    int r = wire_recv(n->sock, &f, t, e);
    if (r == 0)
        return pd_fail(e, PD_LOST, "the nursery of stand-ins is gone");
    if (r < 0)
        return -1;
    if (f.head.type != WIRE_STARTED || f.fd_count != 1 || msg_started_decode(&f.payload, &m, e) < 0)
        return pd_fail(e, PD_LOST, "the stand-in ended at once");
    *ret_process = frame_take_fd(&f, 0);
    return m.pid;
}

pid_t nursery_bear(struct nursery *n, const struct broker_config *c, const char *container,
                   const int fds[NURSERY_FDS], int *ret_process, struct pd_err *e)
{
    for (int attempt = 0;; attempt++) {
        bool is_new = n->sock <= 0;
        if (is_new && start(n, c, e) < 0)
            return -1;
        bool asked;
        pid_t pid = ask(n, container, fds, ret_process, &asked, e);
        if (pid > 0)
            return pid;

        /* It may have been killed since the last time. One that was asked may have started a watch
         * whose answer got lost: another one would be the box's second. */
        nursery_done(n);
        if (asked || is_new || attempt)
            return -1;
    }
}
