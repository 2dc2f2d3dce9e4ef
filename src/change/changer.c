/* How this works: the main thread hears the gate, and each connection that is lent has a thread of
 * its own, which ends with it. When the gate is gone the process ends at once: its sockets reset
 * what was on its way, and the next changer comes to the next gate. */
#include "change/changer.h"

#include "access/seal.h"
#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/nobody.h"
#include "change/changes.h"
#include "net/conn.h"
#include "net/exchange.h"
#include "wire/gate_msg.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define CONNECTIONS_MAX  (GATE_LOANS_MAX + 64) /* the gate shares out fewer */
#define STACK            (512u << 10)
#define CONNECT_PATIENCE (20 * NS_PER_S)
#define SEND_PATIENCE    (10 * NS_PER_S)
#define TELL_EVERY       (256u << 10) /* bytes */

struct changer {
    int gate;
    struct seal_key key;
    struct tls_context *hosts; /* for connections to hosts */
    atomic_uint connections;
};

/* One connection. */
struct loan {
    struct changer *all;
    struct gate_lend m; /* points into the frame */
    struct frame frame;
    struct buf text; /* what it may do; `changes` points into it */
    struct changes changes;
    struct blank blank;
    uint64_t up, down; /* that the gate was not told of */
    uint64_t began, moved;
    bool failed; /* a header or an answer could not be seen to */
};

static void loan_free(struct loan *l)
{
    blank_done(&l->blank);
    if (l->text.data)
        explicit_bzero(l->text.data, l->text.cap);
    buf_done(&l->text);
    frame_done(&l->frame);
    free(l);
}

static void tell_gate(struct loan *l, enum gate_type type, enum gate_result result, const char *why)
{
    auto_buf out = BUF_INIT(1024);
    struct wire_head head = {.type = (uint16_t)type};
    struct gate_moved m = {
        .flow = l->m.flow, .up = l->up, .down = l->down, .result = result, .why = why};

    l->up = l->down = 0;
    gate_moved_encode(&out, &m);
    (void)wire_send(l->all->gate, &head, &out, NULL, 0, deadline_in(SEND_PATIENCE));
}

/* ---- what the exchange asks for ---- */

static enum exchange_header on_header(void *arg, const struct http_header *h, struct buf *out)
{
    struct loan *l = arg;

    if (changes_sets(&l->changes, l->m.host, l->m.port, h->name.at, h->name.len))
        return EXCHANGE_LEFT_OUT;
    if (!changes_apply(&l->changes, l->m.host, l->m.port, h->value.at, h->value.len, out))
        return EXCHANGE_AS_IS;
    /* Credentials were encoded anew: in that form they are no value that is known yet. */
    size_t skip = out->len > 6 && !memcmp(out->data, "Basic ", 6) ? 6 : 0;
    if (skip && blank_add(&l->blank, (const char *)out->data + skip, out->len - skip) < 0)
        l->failed = true;
    return l->failed ? EXCHANGE_LEFT_OUT : EXCHANGE_CHANGED;
}

/* Those that rules set. */
static int on_more(void *arg, struct client *far, struct pd_err *e)
{
    const struct loan *l = arg;
    const struct header_set *n;
    unsigned at = 0;

    while ((n = changes_next_set(&l->changes, l->m.host, l->m.port, &at)))
        if (client_header(far, slice_of(n->name), slice_of(n->value), e) < 0)
            return -1;
    return 0;
}

static void on_answer(void *arg, const void *data, size_t len, int last, struct buf *out)
{
    struct loan *l = arg;
    if (!blank_pass(&l->blank, data, len, last != 0, out))
        out->overflow = 1;
}

/* No faster than the sandbox may be. */
static void pace(struct loan *l, uint64_t bytes)
{
    l->moved += bytes;
    if (!l->m.rate)
        return;
    uint64_t due = l->began + (uint64_t)((double)l->moved / (double)l->m.rate * (double)NS_PER_S);
    uint64_t now = clock_now();
    if (due > now + NS_PER_S)
        usleep((useconds_t)((due - now - NS_PER_S) / 1000 % 10000000));
}

static int on_moved(void *arg, uint64_t up, uint64_t down)
{
    struct loan *l = arg;

    l->up += up;
    l->down += down;
    if (l->up + l->down >= TELL_EVERY)
        tell_gate(l, GATE_MOVED, GATE_OK, "");
    pace(l, up > down ? up : down);
    return l->failed;
}

/* ---- a connection ---- */

/* The client's side: TLS with a certificate of the sandbox's own authority, or plain. */
static struct conn *near_side(struct loan *l, struct pd_err *e)
{
    auto_buf cert = BUF_INIT(16u << 10), key = BUF_INIT(16u << 10);
    struct tls_context *tls = NULL;

    if (l->m.is_tls && (authority_leaf(l->changes.authority, l->m.host, &cert, &key, e) < 0 ||
                        !(tls = tls_server_of(&cert, &key, e))))
        return NULL;
    if (key.data)
        explicit_bzero(key.data, key.cap);

    struct conn *c = conn_new(frame_take_fd(&l->frame, 0), tls, e);
    tls_context_free(tls); /* the connection has its own share of it */
    if (c && conn_unread(c, l->m.first, l->m.first_len, e) < 0) {
        conn_free(c);
        return NULL;
    }
    return c;
}

static struct client *far_side(struct loan *l, struct pd_err *e)
{
    char host[300];
    struct tls_context *tls = l->m.is_plain ? NULL : l->all->hosts;
    unsigned usual = tls ? 443 : 80;
    struct conn *c = conn_new(frame_take_fd(&l->frame, 1), tls, e);

    if (c && tls && conn_set_host(c, l->m.host, e) < 0) {
        conn_free(c);
        c = NULL;
    }
    snprintf(host, sizeof host, l->m.port == usual ? "%s" : "%s:%u", l->m.host, l->m.port);
    return c ? client_new(c, host, e) : NULL;
}

static int open_sealed(struct loan *l, struct pd_err *e)
{
    if (seal_open(&l->all->key, l->m.id, l->m.sealed, strlen(l->m.sealed), &l->text, e) < 0)
        return -1;
    char *text = (char *)(uintptr_t)buf_cstr(&l->text);
    if (!text || changes_parse(text, &l->changes, e) < 0)
        return text ? -1 : pd_fail(e, PD_CAPACITY, "out of memory");
    if (!changes_has(&l->changes, l->m.host, l->m.port))
        return pd_fail(e, PD_NOT_FOUND, "there is no such secret any more");
    /* A secret never leaves in clear text. */
    if (l->m.is_plain && changes_has_secrets(&l->changes, l->m.host, l->m.port))
        return pd_fail(e, PD_DENIED, "a host with secrets is spoken to by TLS alone");
    return blank_add_all(&l->blank, &l->changes, l->m.host, l->m.port) < 0
               ? pd_fail(e, PD_CAPACITY, "out of memory")
               : 0;
}

static int serve(struct loan *l, struct pd_err *e)
{
    if (open_sealed(l, e) < 0)
        return -1;
    struct conn *near = near_side(l, e);
    struct client *far = near ? far_side(l, e) : NULL;
    bool has_secrets = changes_has_secrets(&l->changes, l->m.host, l->m.port);
    int r = -1;

    if (far) {
        struct exchange x = {.near = near,
                             .far = far,
                             .host = l->m.host,
                             .header = on_header,
                             .more = on_more,
                             .answer = has_secrets ? on_answer : NULL,
                             .moved = on_moved,
                             .arg = l};
        r = exchange_run(&x, e);
        conn_end_writing(near);
        if (r == 0)
            conn_end_writing(client_conn(far));
    }
    client_free(far);
    conn_free(near);
    return r;
}

/* The text of an error may be of a stranger, and goes into the audit log: some of it will do. */
static void *loan_main(void *arg)
{
    struct loan *l = arg;
    struct changer *all = l->all;
    struct pd_err e = {0};
    char why[160];

    l->began = clock_now();
    int r = serve(l, &e);
    snprintf(why, sizeof why, "%.150s", r < 0 ? e.msg : "");
    tell_gate(l, GATE_BACK, r == 0 ? GATE_OK : GATE_BROKEN, why);
    loan_free(l);
    atomic_fetch_sub(&all->connections, 1);
    return NULL;
}

static void take_loan(struct changer *all, struct frame *f)
{
    struct loan *l = calloc(1, sizeof *l);
    pthread_attr_t how;
    pthread_t thread;
    if (!l)
        return; /* its descriptors are closed with the frame; the gate sees that nobody answers */

    l->all = all;
    l->frame = *f;
    *f = FRAME_INIT;
    l->text = BUF_INIT(64u << 10);
    if (l->frame.head.type != GATE_LEND || l->frame.fd_count != 2 ||
        gate_lend_decode(&l->frame.payload, &l->m, NULL) < 0) {
        loan_free(l);
        return;
    }

    pthread_attr_init(&how);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&how, STACK);
    bool fits = atomic_fetch_add(&all->connections, 1) < CONNECTIONS_MAX;
    if (!fits || pthread_create(&thread, &how, loan_main, l) != 0) {
        atomic_fetch_sub(&all->connections, 1);
        tell_gate(l, GATE_BACK, GATE_FAILED, "too many connections use secrets now");
        loan_free(l);
    }
    pthread_attr_destroy(&how);
}

static void hear(struct changer *all, int until)
{
    auto_frame f = FRAME_INIT;
    struct pd_err e;

    for (;;) {
        struct pollfd p[2] = {{all->gate, POLLIN, 0}, {until, POLLIN, 0}};
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return;
        if (p[1].revents)
            return;

        frame_reset(&f);
        int r = wire_recv(all->gate, &f, deadline_in(NS_PER_S), &e);
        if (r > 0)
            take_loan(all, &f);
        else if (r == 0 || (e.code != PD_TIMEOUT && e.code != PD_CAPACITY))
            return;
    }
}

/* ---- the start ---- */

/* By this lock a guardian finds the one that runs. It is held as long as we live. */
static int take_lock(const char *path, struct pd_err *e)
{
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return pd_fail_sys(e, "open %.100s", path);
    if (fcntl(fd, F_SETLK, &mine) < 0) {
        fd_done(&fd);
        return pd_fail(e, PD_CONFLICT, "there is a changer: %.100s is locked", path);
    }
    return 0;
}

/* The gate may be on its way. */
static int connect_gate(const char *path, struct pd_err *e)
{
    deadline d = deadline_in(CONNECT_PATIENCE);
    int fd;

    while ((fd = wire_connect(path)) < 0) {
        if (deadline_passed(d))
            return pd_fail_sys(e, "connect to the gate at %.100s", path);
        usleep(20000);
    }
    return fd;
}

int changer_run(const struct changer_config *c, struct pd_err *e)
{
    struct changer all = {.gate = -1};

    (void)fd_limit_raise(0);
    signal(SIGPIPE, SIG_IGN);
    if (take_lock(c->lock, e) < 0 ||
        seal_key_load(c->key_file, geteuid(), getegid(), &all.key, e) < 0 ||
        !(all.hosts = tls_client_new(c->ca_file, e)) || (all.gate = connect_gate(c->gate, e)) < 0 ||
        nobody_become(e) < 0)
        return -1;
    int r = c->filter();
    errno = -r;
    if (r < 0)
        return pd_fail_sys(e, "load the changer's filter");

    hear(&all, c->until);
    /* Threads may be in the middle of something: the kernel ends them with all that they have. */
    _exit(0);
}
