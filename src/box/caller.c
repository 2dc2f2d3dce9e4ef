/* How this works: one process waits, and starts another for each connection, so that nothing of one
 * is left for the next. That one connects, does the handshake of TLS 1.2 with BearSSL, and only
 * then opens the box's own socket; from then on it copies, each direction through a buffer of the
 * engine's, until one side ends. A machine with another key never gets beyond the handshake. */
#include "box/caller.h"

#include "base/banned.h"
#include "base/fd.h"
#include "box/join.h"

#include <string.h>

#ifdef HAVE_BEARSSL

#include <bearssl.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNECT_TIME   (10 * NS_PER_S)
#define HANDSHAKE_TIME (20 * NS_PER_S)
#define PAUSE_LEAST    (250 * NS_PER_MS)
#define PAUSE_MOST     (5 * NS_PER_S)

#define CALL_FAILED 1 /* status of a call that never had its handshake */

/* One connection. */
struct call {
    int far, near; /* the keeper's machine; the box's own socket, or -1 */
    br_ssl_client_context tls;
    br_x509_knownkey_context known;
    uint8_t room[BR_SSL_BUFSIZE_BIDI];
};

bool caller_can(void)
{
    return true;
}

/* ---- connecting ---- */

static int connect_one(const struct addrinfo *a, deadline t)
{
    auto_fd fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int failed = 0;
    socklen_t len = sizeof failed;

    if (fd < 0 || (connect(fd, a->ai_addr, a->ai_addrlen) < 0 && errno != EINPROGRESS) ||
        poll(&p, 1, deadline_poll_ms(t)) != 1 ||
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &len) < 0 || failed)
        return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd_take(&fd);
}

static int connect_far(const struct caller *c)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int fd = -1;

    if (getaddrinfo(c->host, c->port, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = connect_one(a, deadline_in(CONNECT_TIME));
    freeaddrinfo(list);
    return fd;
}

/* ---- TLS ---- */

static void set_up(struct call *l, const struct caller *c)
{
    static const uint16_t suites[] = {BR_TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                                      BR_TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256};
    br_ssl_engine_context *engine = &l->tls.eng;
    const br_ec_public_key key = {
        .curve = BR_EC_secp256r1, .q = (unsigned char *)c->pin, .qlen = CALLER_PIN};
    uint8_t seed[32];

    br_ssl_client_zero(&l->tls);
    br_ssl_engine_set_versions(engine, BR_TLS12, BR_TLS12);
    br_ssl_engine_set_suites(engine, suites, sizeof suites / sizeof *suites);
    br_ssl_engine_set_default_chapol(engine);
    br_ssl_engine_set_default_aes_gcm(engine);
    br_ssl_engine_set_ec(engine, br_ec_get_default());
    br_ssl_engine_set_ecdsa(engine, br_ecdsa_vrfy_asn1_get_default());
    br_ssl_engine_set_hash(engine, br_sha256_ID, &br_sha256_vtable);
    br_ssl_engine_set_prf_sha256(engine, br_tls12_sha256_prf);
    br_x509_knownkey_init_ec(&l->known, &key, BR_KEYTYPE_SIGN);
    br_ssl_engine_set_x509(engine, &l->known.vtable);
    br_ssl_engine_set_buffer(engine, l->room, sizeof l->room, 1);

    while (getrandom(seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        ;
    br_ssl_engine_inject_entropy(engine, seed, sizeof seed);
    explicit_bzero(seed, sizeof seed);
    if (!br_ssl_client_reset(&l->tls, c->name, 0))
        _exit(CALL_FAILED);
}

static bool passes(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Each of the four moves what can be moved without waiting. False when its connection is over. */
static bool move(struct call *l, const struct pollfd polled[2])
{
    br_ssl_engine_context *engine = &l->tls.eng;
    unsigned char *at;
    size_t len;
    ssize_t n;

    at = br_ssl_engine_sendrec_buf(engine, &len);
    if (at && (polled[0].revents & ~POLLIN)) {
        n = send(l->far, at, len, MSG_NOSIGNAL);
        if (n > 0)
            br_ssl_engine_sendrec_ack(engine, (size_t)n);
        else if (!passes(n))
            return false;
    }
    at = br_ssl_engine_recvrec_buf(engine, &len);
    if (at && (polled[0].revents & ~POLLOUT)) {
        n = recv(l->far, at, len, 0);
        if (n > 0)
            br_ssl_engine_recvrec_ack(engine, (size_t)n);
        else if (!passes(n))
            return false;
    }
    at = br_ssl_engine_recvapp_buf(engine, &len);
    if (at && (polled[1].revents & ~POLLIN)) {
        n = send(l->near, at, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            br_ssl_engine_recvapp_ack(engine, (size_t)n);
        else if (!passes(n))
            return false;
    }
    at = br_ssl_engine_sendapp_buf(engine, &len);
    if (at && (polled[1].revents & ~POLLOUT)) {
        n = recv(l->near, at, len, MSG_DONTWAIT);
        if (n > 0) {
            br_ssl_engine_sendapp_ack(engine, (size_t)n);
            br_ssl_engine_flush(engine, 0);
        } else if (!passes(n)) {
            return false;
        }
    }
    return true;
}

/* Until one side ends. */
static void copy(struct call *l)
{
    deadline handshake = deadline_in(HANDSHAKE_TIME);

    for (;;) {
        unsigned state = br_ssl_engine_current_state(&l->tls.eng);
        if (state & BR_SSL_CLOSED)
            return;
        if (l->near < 0 && (state & (BR_SSL_SENDAPP | BR_SSL_RECVAPP)) &&
            (l->near = join_connect()) < 0)
            return;
        if (l->near < 0 && deadline_passed(handshake))
            return;

        struct pollfd p[2] = {{.fd = l->far}, {.fd = l->near}};
        p[0].events =
            (short)((state & BR_SSL_SENDREC ? POLLOUT : 0) | (state & BR_SSL_RECVREC ? POLLIN : 0));
        p[1].events =
            (short)((state & BR_SSL_RECVAPP ? POLLOUT : 0) | (state & BR_SSL_SENDAPP ? POLLIN : 0));
        int ms = l->near < 0 ? deadline_poll_ms(handshake) : -1;
        if (poll(p, 2, ms) < 0 && errno != EINTR)
            return;
        for (int i = 0; i < 2; i++)
            if ((p[i].revents & (POLLERR | POLLHUP)) && !(p[i].events & POLLIN) &&
                !(p[i].revents & POLLOUT))
                return; /* over, and there is no room to hear the rest */
        if (!move(l, p))
            return;
    }
}

/* ---- one call after another ---- */

/* The end of the box is the caller's own. */
static void follow(int parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent)
        _exit(0);
}

static _Noreturn void call_once(const struct caller *c)
{
    static struct call l;

    l = (struct call){.near = -1};
    l.far = connect_far(c);
    if (l.far < 0)
        _exit(CALL_FAILED);
    set_up(&l, c);
    copy(&l);
    _exit(l.near < 0 ? CALL_FAILED : 0);
}

void caller_run(const struct caller *c, int parent)
{
    uint64_t pause = PAUSE_LEAST;

    follow(parent);
    (void)signal(SIGCHLD, SIG_DFL);
    (void)signal(SIGPIPE, SIG_IGN);
    for (;;) {
        pid_t own = getpid(), pid = fork();
        int status = 0;
        if (pid == 0) {
            follow(own);
            call_once(c);
        }
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        bool was_up = pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        pause = was_up ? PAUSE_LEAST : pause;
        poll(NULL, 0, deadline_poll_ms(deadline_in(pause)));
        pause = was_up || pause * 2 < PAUSE_MOST ? pause * 2 : PAUSE_MOST;
    }
}

#else

#include <unistd.h>

bool caller_can(void)
{
    return false;
}

void caller_run(const struct caller *c, int parent)
{
    (void)c, (void)parent;
    _exit(1);
}

#endif
