/* How this works: one thread has the link to the gate.
 *
 *   1. It connects, tells the gate every sandbox (OPEN, with its two sockets) and then SYNC, upon
 *      which the gate closes what it was not told of: sandboxes that ended while nobody was
 *      listening.
 *   2. It hears the gate: answers wake whoever waits for them, records are passed on.
 *   3. When the gate is gone it closes the link, and begins anew.
 *
 * Others send to the gate themselves, under the lock. A change of rules is an OPEN, too: of a
 * sandbox that the gate knows it takes the rules alone. Whoever waits for a change is answered by
 * the last OPEN of that sandbox, be it one that a new gate was sent meanwhile. */
#include "core/egress.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/lock.h"
#include "gate/rules.h"
#include "telemetry/log.h"
#include "wire/msg.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#define SEND_PATIENCE   (2 * NS_PER_S)
#define RECONNECT_AFTER (50 * NS_PER_MS)
#define HEAR_PATIENCE   (3600 * NS_PER_S)
#define BUCKETS         1024u

struct entry {
    struct entry *next;
    char id[GATE_ID_MAX + 1];
    char *tenant, *rules;
    int fds[2];
};

/* A thread that waits until the gate has the rules of a sandbox; on its stack. */
struct waiting {
    struct waiting *next;
    const char *id;
    struct wire_id request; /* the last OPEN of that sandbox */
    bool sent, done, was_refused;
    struct pd_err why;
};

struct egress {
    struct egress_config c;
    char socket[sizeof((struct sockaddr_un *)NULL)->sun_path];
    pthread_t thread;
    bool started;
    struct lock lock; /* of all that follows, and around every use of the socket but receiving */
    pthread_cond_t changed;
    bool stopping;
    int sock; /* closed by the thread alone */
    struct entry *entries[BUCKETS];
    struct waiting *waiting;
};

static struct entry **place(struct egress *g, const char *id)
{
    uint32_t hash = 2166136261u;
    for (const char *c = id; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;

    struct entry **at = &g->entries[hash % BUCKETS];
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    return at;
}

static void entry_free(struct entry *n)
{
    fd_done(&n->fds[0]);
    fd_done(&n->fds[1]);
    free(n->tenant);
    free(n->rules);
    free(n);
}

/* ---- policies ---- */

int egress_check_rules(const char *rules, struct pd_err *e)
{
    struct egress_policy *p;
    size_t len = strlen(rules);

    if (len > EGRESS_RULES_MAX)
        return pd_fail(e, PD_INVALID, "the rules are %zu bytes long: at most %u", len,
                       EGRESS_RULES_MAX);
    if (egress_parse(rules, len, &p, e) < 0)
        return -1;

    /* The rest is the operator's. */
    int r = p->layer_count == 1 && !p->private_count && !p->host_count && !p->resolver_count &&
                    !p->tenant[0]
                ? 0
                : pd_fail(e, PD_INVALID, "the rules are not those of one sandbox");
    egress_free_policy(p);
    return r;
}

/* The lower of two limits, of which 0 is none. */
static uint64_t lower(uint64_t a, uint64_t b)
{
    return !a || (b && b < a) ? b : a;
}

/* What a sandbox has asked for cannot be more than the operator lets it have. */
static void put_limits(struct buf *out, const struct egress_limits *a,
                       const struct egress_limits *b)
{
    const struct {
        const char *name;
        uint64_t value;
    } limits[] = {
        {"connections", lower(a->connections, b->connections)},
        {"tenant_connections", b->tenant_connections},
        {"loans", b->loans},
        {"starts", lower(a->starts, b->starts)},
        {"questions", lower(a->questions, b->questions)},
        {"rate", lower(a->rate, b->rate)},
        {"bytes", lower(a->bytes, b->bytes)},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        buf_printf(out, "limit %s %ju\n", limits[i].name, (uintmax_t)limits[i].value);
}

/* "proxy HOST:PORT SEALED" with what is sealed, as the gate has to know it. */
static int put_proxy(struct egress *g, const char *tenant, const char *line, size_t len,
                     struct buf *out, struct pd_err *e)
{
    const char *sealed = memchr(line + 6, ' ', len - 6);
    size_t head = sealed ? (size_t)(sealed - line) : len;
    auto_buf plain = BUF_INIT(4096);
    int bad = 0;

    buf_put(out, line, head);
    if (sealed && !g->c.open_rule)
        bad = pd_fail(e, PD_UNSUPPORTED, "this server has no secrets");
    else if (sealed)
        bad = g->c.open_rule(g->c.arg, tenant, sealed + 1, len - head - 1, &plain, e);
    if (sealed && bad == 0) {
        buf_putc(out, ' ');
        (void)base64_encode(out, plain.data, plain.len);
    }
    buf_putc(out, '\n');
    if (plain.data)
        explicit_bzero(plain.data, plain.cap);
    return bad;
}

/* The sandbox's rules as the gate gets them: of headers it has to know the hosts. */
static int put_rules(struct egress *g, const struct entry *n, struct buf *out, struct pd_err *e)
{
    for (const char *line = n->rules; *line;) {
        size_t len = strcspn(line, "\n");

        if (!strncmp(line, "proxy ", 6)) {
            if (put_proxy(g, n->tenant, line, len, out, e) < 0)
                return -1;
        } else {
            size_t head = !strncmp(line, "header ", 7) ? 7 + strcspn(line + 7, " \n") : len;
            buf_put(out, line, head);
            buf_putc(out, '\n');
        }
        line += len + (line[len] == '\n');
    }
    return 0;
}

/* The sandbox's layer, the operator's, and the lower limits of both: the last word counts. */
static int put_policy(struct egress *g, const struct entry *n, struct buf *out, struct pd_err *e)
{
    struct egress_policy *own = NULL, *ceiling = NULL;
    auto_buf above = BUF_INIT(POLICY_TEXT_MAX);

    if (g->c.ceiling(g->c.arg, n->tenant, &above) < 0 || above.overflow)
        return pd_fail(e, PD_INTERNAL, "the server's own rules are too long");
    if (egress_parse(n->rules, strlen(n->rules), &own, e) < 0)
        return -1;
    if (egress_parse((const char *)above.data, above.len, &ceiling, e) < 0) {
        egress_free_policy(own);
        return -1;
    }

    int bad = put_rules(g, n, out, e);
    buf_put(out, above.data, above.len);
    if (n->tenant[0]) /* one in the pool is nobody's */
        buf_printf(out, "tenant %s\n", n->tenant);
    put_limits(out, &own->limits, &ceiling->limits);
    egress_free_policy(own);
    egress_free_policy(ceiling);
    if (bad < 0)
        return -1;
    return out->overflow ? pd_fail(e, PD_TOO_LARGE, "the rules are too long") : 0;
}

/* ---- telling the gate; all with the lock held ---- */

static int send_to_gate(struct egress *g, enum gate_type type, const struct gate_open *m,
                        const int *fds, struct wire_id request)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct wire_head head = {.type = (uint16_t)type, .id = request};

    if (m)
        gate_open_encode(&out, m);
    int r = wire_send(g->sock, &head, &out, fds, fds ? 2 : 0, deadline_in(SEND_PATIENCE));
    if (r < 0) /* the thread sees it, and begins anew */
        (void)shutdown(g->sock, SHUT_RDWR);
    return r;
}

static void tell_entry(struct egress *g, const struct entry *n)
{
    auto_buf text = BUF_INIT(POLICY_TEXT_MAX), sealed = BUF_INIT(GATE_SEALED_MAX);
    struct wire_id request = wire_id_new();
    struct pd_err e;
    struct gate_open m = {.id = n->id, .policy = "layer off\n"};

    if (g->sock < 0)
        return;
    if (put_policy(g, n, &text, &e) == 0 &&
        (!g->c.secrets || g->c.secrets(g->c.arg, n->id, n->tenant, n->rules, &sealed, &e) == 0)) {
        m.policy = buf_cstr(&text);
        m.sealed = sealed.len ? buf_cstr(&sealed) : "";
    } else
        log_error("egress.policy", "sandbox=%s error=%s", n->id, e.msg);

    for (struct waiting *w = g->waiting; w; w = w->next)
        if (!strcmp(w->id, n->id)) {
            w->request = request;
            w->sent = true;
        }
    (void)send_to_gate(g, GATE_OPEN, &m, n->fds, request);
}

/* Of one tenant, or with NULL of all. */
static void tell_all(struct egress *g, const char *tenant)
{
    for (unsigned b = 0; b < BUCKETS; b++)
        for (const struct entry *n = g->entries[b]; n; n = n->next)
            if (!tenant || !strcmp(tenant, n->tenant))
                tell_entry(g, n);
}

/* ---- the thread ---- */

static void take_answer(struct egress *g, struct frame *f)
{
    struct pd_err why;
    if (f->head.type == WIRE_ERROR) {
        (void)msg_error_raise(f, &why);
        log_warn("egress.gate", "error=%s", why.msg);
    }

    lock_take(&g->lock);
    for (struct waiting *w = g->waiting; w; w = w->next)
        if (w->sent && wire_id_equal(w->request, f->head.id)) {
            w->done = true;
            w->was_refused = f->head.type == WIRE_ERROR;
            if (w->was_refused)
                w->why = why;
        }
    pthread_cond_broadcast(&g->changed);
    lock_release(&g->lock);
}

static void take_record(struct egress *g, const struct frame *f)
{
    struct gate_record r;
    struct pd_err e;
    char sandbox[GATE_ID_MAX + 1];

    if (gate_record_decode(&f->payload, &r, &e) < 0) {
        log_warn("egress.record", "error=%s", e.msg);
        return;
    }
    snprintf(sandbox, sizeof sandbox, "%.*s", (int)strcspn(r.id, "."), r.id);
    g->c.told(g->c.arg, sandbox, &r);
}

/* Until the gate is gone, or talks nonsense. */
static void hear(struct egress *g)
{
    auto_frame f = FRAME_INIT;
    struct pd_err e;

    for (;;) {
        frame_reset(&f);
        int r = wire_recv_plain(g->sock, &f, deadline_in(HEAR_PATIENCE), &e);
        if (r < 0 && e.code == PD_TIMEOUT)
            continue;
        if (r <= 0)
            return;
        if (f.head.type == GATE_RECORD)
            take_record(g, &f);
        else if (f.head.type == WIRE_DONE || f.head.type == WIRE_ERROR)
            take_answer(g, &f);
    }
}

static void *thread_main(void *arg)
{
    struct egress *g = arg;

    lock_take(&g->lock);
    while (!g->stopping) {
        g->sock = wire_connect(g->socket);
        if (g->sock < 0) {
            (void)lock_wait(&g->changed, &g->lock, deadline_in(RECONNECT_AFTER));
            continue;
        }
        tell_all(g, NULL);
        (void)send_to_gate(g, GATE_SYNC, NULL, NULL, wire_id_new());
        lock_release(&g->lock);

        log_info("egress.gate", "result=connected");
        hear(g);

        lock_take(&g->lock);
        fd_done(&g->sock);
        if (!g->stopping)
            log_warn("egress.gate", "error=%s", "the gate is gone: connections wait for the next");
    }
    lock_release(&g->lock);
    return NULL;
}

/* ---- calls ---- */

struct egress *egress_new(const struct egress_config *c, struct pd_err *e)
{
    struct egress *g = calloc(1, sizeof *g);
    if (!g || strlen(c->socket) >= sizeof g->socket) {
        free(g);
        pd_fail(e, PD_INVALID, "run_dir: the path of the gate's socket is too long: %.150s",
                c->socket);
        return NULL;
    }

    g->c = *c;
    snprintf(g->socket, sizeof g->socket, "%s", c->socket);
    g->sock = -1;
    lock_init(&g->lock, LOCK_EGRESS);
    cond_init(&g->changed);
    return g;
}

int egress_start(struct egress *g, struct pd_err *e)
{
    errno = pthread_create(&g->thread, NULL, thread_main, g);
    if (errno)
        return pd_fail_sys(e, "start a thread for the gate");
    g->started = true;
    return 0;
}

void egress_free(struct egress *g)
{
    if (!g)
        return;

    lock_take(&g->lock);
    g->stopping = true;
    if (g->sock >= 0)
        (void)shutdown(g->sock, SHUT_RDWR);
    pthread_cond_broadcast(&g->changed);
    lock_release(&g->lock);
    if (g->started)
        pthread_join(g->thread, NULL);

    for (unsigned b = 0; b < BUCKETS; b++)
        while (g->entries[b]) {
            struct entry *n = g->entries[b];
            g->entries[b] = n->next;
            entry_free(n);
        }
    pthread_cond_destroy(&g->changed);
    lock_done(&g->lock);
    free(g);
}

int egress_add(struct egress *g, const char *id, const char *tenant, const char *rules, int tcp,
               int dns, struct pd_err *e)
{
    auto_fd accepts = tcp, questions = dns;
    struct entry *n = calloc(1, sizeof *n);
    if (n) {
        snprintf(n->id, sizeof n->id, "%s", id);
        n->fds[0] = n->fds[1] = -1;
        n->tenant = strdup(tenant);
        n->rules = strdup(rules);
    }
    if (!n || !n->tenant || !n->rules) {
        if (n)
            entry_free(n);
        return pd_fail(e, PD_CAPACITY, "no memory for a sandbox's way out");
    }
    n->fds[0] = fd_take(&accepts);
    n->fds[1] = fd_take(&questions);

    lock_take(&g->lock);
    struct entry **at = place(g, id), *before = *at;
    n->next = before ? before->next : NULL;
    *at = n;
    tell_entry(g, n);
    lock_release(&g->lock);
    if (before)
        entry_free(before);
    return 0;
}

int egress_give(struct egress *g, const char *id, const char *tenant, const char *rules,
                struct pd_err *e)
{
    char *owner = strdup(tenant), *text = strdup(rules);
    if (!owner || !text) {
        free(owner);
        free(text);
        return pd_fail(e, PD_CAPACITY, "no memory for a sandbox's way out");
    }

    lock_take(&g->lock);
    struct entry *n = *place(g, id);
    if (n) {
        char *owner_before = n->tenant, *text_before = n->rules;
        n->tenant = owner;
        n->rules = text;
        owner = owner_before;
        text = text_before;
        tell_entry(g, n);
    }
    lock_release(&g->lock);
    free(owner);
    free(text);
    return n ? 0 : pd_fail(e, PD_LOST, "its way out has ended");
}

/* With the lock held. */
static void stop_waiting(struct egress *g, const struct waiting *w)
{
    struct waiting **at = &g->waiting;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
}

int egress_change(struct egress *g, const char *id, const char *rules, deadline d, struct pd_err *e)
{
    struct waiting w = {.id = id};
    char *text = strdup(rules);
    if (!text)
        return pd_fail(e, PD_CAPACITY, "no memory for the rules");

    lock_take(&g->lock);
    struct entry *n = *place(g, id);
    if (!n) { /* it sleeps, or ends: its next box is told */
        lock_release(&g->lock);
        free(text);
        return 0;
    }
    free(n->rules);
    n->rules = text;

    w.next = g->waiting;
    g->waiting = &w;
    tell_entry(g, n);
    while (!w.done && lock_wait(&g->changed, &g->lock, d))
        ;
    stop_waiting(g, &w);
    lock_release(&g->lock);

    if (!w.done)
        return pd_fail(e, PD_CAPACITY,
                       "the rules are stored, but the gate has not said that it has them: ask "
                       "again");
    return w.was_refused ? pd_fail(e, w.why.code, "%s", w.why.msg) : 0;
}

/* The gate answers in the order in which things happen: its answer comes behind its news. */
void egress_settle(struct egress *g, deadline d)
{
    struct waiting w = {.id = "", .request = wire_id_new(), .sent = true};

    lock_take(&g->lock);
    if (g->sock >= 0 && send_to_gate(g, GATE_SYNC, NULL, NULL, w.request) == 0) {
        w.next = g->waiting;
        g->waiting = &w;
        while (!w.done && lock_wait(&g->changed, &g->lock, d))
            ;
        stop_waiting(g, &w);
    }
    lock_release(&g->lock);
}

void egress_remove(struct egress *g, const char *id)
{
    lock_take(&g->lock);
    struct entry **at = place(g, id), *n = *at;
    if (n) {
        *at = n->next;
        if (g->sock >= 0)
            (void)send_to_gate(g, GATE_CLOSE, &(struct gate_open){.id = id, .policy = ""}, NULL,
                               wire_id_new());
    }
    lock_release(&g->lock);
    if (n)
        entry_free(n);
}

void egress_reload(struct egress *g, const char *tenant)
{
    lock_take(&g->lock);
    tell_all(g, tenant);
    lock_release(&g->lock);
}
