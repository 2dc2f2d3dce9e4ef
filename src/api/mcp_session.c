/* A client's session of MCP: the sandbox behind it, and what runs in it for the client just now. */
#include "api/mcp.h"
#include "api/sandbox.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/fd.h"
#include "base/lock.h"
#include "config/config.h"

#define USER       "mcp"
#define ENDED_MAX  256u /* sessions that are remembered as ended */
#define WANTED_MAX (256u << 10)

struct ended {
    char tenant[ID_TENANT_MAX + 1], thread[SESSION_NAME_MAX + 1];
};

struct mcp {
    struct lock lock;
    struct mcp_request *running;
    struct ended ended[ENDED_MAX];
    unsigned ended_at; /* where the next one goes */
};

struct mcp *mcp_new(void)
{
    struct mcp *m = calloc(1, sizeof *m);
    if (m)
        lock_init(&m->lock, LOCK_MCP);
    return m;
}

/* ---- what is running ---- */

void mcp_begin(struct mcp_request *m)
{
    struct mcp *all = m->c->api->mcp;

    lock_take(&all->lock);
    m->next = all->running;
    all->running = m;
    lock_release(&all->lock);
}

void mcp_end(struct mcp_request *m)
{
    struct mcp *all = m->c->api->mcp;

    lock_take(&all->lock);
    struct mcp_request **at = &all->running;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    lock_release(&all->lock);
}

/* A command that is only about to start would not hear a stop: its pid is waited for. */
static void stop(struct process *p)
{
    struct pd_err e;
    (void)process_await_pid(p, &e);
    (void)process_stop(p, STOP_KILLED, &e);
}

void mcp_note_running(struct mcp_request *m, struct process *p)
{
    struct mcp *all = m->c->api->mcp;

    lock_take(&all->lock);
    m->process = p;
    bool cancelled = p && m->cancelled;
    lock_release(&all->lock);

    if (cancelled)
        stop(p);
}

bool mcp_is_cancelled(struct mcp_request *m)
{
    struct mcp *all = m->c->api->mcp;

    lock_take(&all->lock);
    bool is = m->cancelled;
    lock_release(&all->lock);
    return is;
}

/* The next process of a request with that id that is not cancelled yet, held. Ids are the client's
 * business: if it uses one twice at a time, both are meant. */
static struct process *cancel_one(struct mcp *all, const struct mcp_request *m, const char *id)
{
    struct process *found = NULL;

    lock_take(&all->lock);
    for (struct mcp_request *r = all->running; r && !found; r = r->next) {
        if (r->cancelled || strcmp(r->id, id) != 0 || strcmp(r->thread, m->thread) != 0 ||
            strcmp(r->client, m->client) != 0 || strcmp(r->c->who.tenant, m->c->who.tenant) != 0)
            continue;
        r->cancelled = true;
        if (r->process)
            found = process_ref(r->process);
    }
    lock_release(&all->lock);
    return found;
}

void mcp_cancel(struct mcp_request *m)
{
    struct process *p;

    auto_buf id = BUF_INIT(MCP_ID_MAX + 1);
    if (!fields_json(m->params, "requestId", FIELD_REQUIRED, MCP_ID_MAX, &id) || !buf_cstr(&id))
        return;

    while ((p = cancel_one(m->c->api->mcp, m, (const char *)id.data))) {
        stop(p);
        process_unref(p);
    }
}

/* ---- the thread ---- */

static bool is_ended(struct mcp *all, const char *tenant, const char *thread)
{
    int found = 0;

    lock_take(&all->lock);
    for (unsigned i = 0; i < ENDED_MAX && !found; i++)
        found = !strcmp(all->ended[i].thread, thread) && !strcmp(all->ended[i].tenant, tenant);
    lock_release(&all->lock);
    return found;
}

static void note_ended(struct mcp *all, const char *tenant, const char *thread)
{
    lock_take(&all->lock);
    struct ended *to = &all->ended[all->ended_at++ % ENDED_MAX];
    snprintf(to->tenant, sizeof to->tenant, "%s", tenant);
    snprintf(to->thread, sizeof to->thread, "%s", thread);
    lock_release(&all->lock);
}

/* The session id of the header, if there is one: into `client`. */
static int read_session(struct mcp_request *m, struct pd_err *e)
{
    const struct slice *h = http_find(&m->c->r->head, "Mcp-Session-Id");
    if (!h)
        return 0;
    if (h->len == 0 || h->len > SESSION_NAME_MAX)
        return pd_fail(e, PD_NOT_FOUND, "there is no such session: initialize again");

    for (size_t i = 0; i < h->len; i++)
        if (h->at[i] < 0x21 || h->at[i] > 0x7e)
            return pd_fail(e, PD_INVALID, "Mcp-Session-Id: only visible ASCII characters");

    memcpy(m->client, h->at, h->len);
    m->client[h->len] = 0;

    if (is_ended(m->c->api->mcp, m->c->who.tenant, m->client))
        return pd_fail(e, PD_NOT_FOUND, "this session has been ended: initialize again");
    return 1;
}

int mcp_find_thread(struct mcp_request *m, int begins, struct pd_err *e)
{
    struct call *c = m->c;

    int named = call_query(c, "thread", m->thread, sizeof m->thread, e);
    if (named < 0)
        return -1;
    if (named && !m->thread[0])
        return pd_fail(e, PD_INVALID, "thread: is empty");

    /* A client that cannot set headers says so here. */
    int known = call_query(c, "client", m->client, sizeof m->client, e);
    if (known < 0)
        return -1;

    if (begins && !known) {
        uint8_t random[16];
        random_bytes(random, sizeof random);
        hex_encode(random, sizeof random, m->client);
        reply_header(c->r, "Mcp-Session-Id", m->client);
        known = 1;
    } else if (!known && (known = read_session(m, e)) < 0) {
        return -1;
    }

    if (!named && !known)
        return pd_fail(e, PD_INVALID,
                       "the header Mcp-Session-Id is missing: the answer to initialize has it");

    if (!named)
        memcpy(m->thread, m->client, sizeof m->thread);
    return 0;
}

/* ---- the sandbox ---- */

/* Held, or NULL. */
static struct session *find(struct mcp_request *m)
{
    struct pd_err e;
    return sessions_find_thread(m->c->api->sessions, m->c->who.tenant, USER, m->thread, &e);
}

int mcp_find(struct mcp_request *m)
{
    struct session *s = find(m);
    session_unref(s);
    return s != NULL;
}

struct telling {
    struct mcp_request *m;
    uint64_t last; /* that was told */
};

/* How far the image of the sandbox is. Who does not hear it any more gets the sandbox later. */
static void tell_pull(void *arg, struct session *s, const char *image,
                      const struct msg_progress *now)
{
    char text[400];
    struct pd_err ignored;

    struct telling *t = arg;

    (void)s;
    if (now->bytes_done <= t->last) /* progress that is told increases */
        return;
    t->last = now->bytes_done;
    snprintf(text, sizeof text, "pulling %.200s: %u of %u layers, %.1f of %.1f MB", image,
             now->layers_done, now->layers, (double)now->bytes_done / 1e6,
             (double)now->bytes / 1e6);
    (void)mcp_progress(t->m, (double)now->bytes_done, text, &ignored);
}

/* Finds the thread's sandbox, or makes it as `wanted` says. */
static int find_or_make(struct mcp_request *m, struct fields *wanted, bool *ret_created,
                        struct pd_err *e)
{
    struct call *c = m->c;
    struct create_request r;
    struct queue_place place;
    struct session_info i;
    struct telling telling = {.m = m};
    bool created = false;

    int failed = create_request_read(c, wanted, &r, 1, e);
    r.request.user_id = USER;
    r.request.thread_id = m->thread;
    r.request.auto_retry = true;
    r.request.pull_watch = (struct pull_watch){.told = tell_pull, .arg = &telling};

    /* Finding one is no creation, and asked for often. */
    if (failed == 0 && !mcp_find(m))
        failed = call_may_create(c, e);

    if (failed == 0) {
        failed =
            sessions_get_or_create(c->api->sessions, &r.request, &c->session, &created, &place, e);
        if (failed < 0 || created)
            call_count_create(c, failed, c->session, &place);
    }

    create_request_done(&r);
    if (failed == 0 && created)
        failed = recipe_set_up(c, c->session, e);
    if (failed < 0)
        return -1;

    session_get(c->session, &i);
    if (i.state == SESSION_PAUSED && session_resume(c->session, e) < 0)
        return -1;

    m->made_anew = created && i.recreated;
    snprintf(c->sandbox, sizeof c->sandbox, "%s", i.id);
    *ret_created = created;
    return 0;
}

int mcp_open(struct mcp_request *m, struct pd_err *e)
{
    auto_fields nothing = {0};
    bool created;

    if (m->c->session)
        return 0;
    return fields_parse(&nothing, "{}", 2, 0, e) < 0 ? -1 : find_or_make(m, &nothing, &created, e);
}

/* The arguments are the body of a creation over HTTP, and are read by the same function: as an
 * object of their own, so that it can refuse what it does not know, at any depth. */
int mcp_create_sandbox(struct mcp_request *m, struct fields *args, struct mcp_result *ret,
                       struct pd_err *e)
{
    auto_buf text = BUF_INIT(WANTED_MAX + 1);
    auto_fields wanted = {0};
    bool created;

    if (args && !fields_json(m->params, "arguments", FIELD_OPTIONAL, WANTED_MAX, &text))
        return fields_finish(m->message, e);
    if (fields_parse(&wanted, text.data, text.len, FIELDS_MAY_BE_EMPTY, e) < 0 ||
        find_or_make(m, &wanted, &created, e) < 0)
        return -1;

    if (!created)
        return pd_fail(e, PD_CONFLICT,
                       "this session has sandbox %s already, whose limits stay as they are: use "
                       "it, or begin another session",
                       m->c->sandbox);
    return mcp_session_info(m, NULL, ret, e);
}

/* A client that goes ends its session; the sandbox of a thread with a name is not its alone, and
 * stays. */
int mcp_close(struct mcp_request *m, struct pd_err *e)
{
    struct call *c = m->c;
    struct session_info i;

    if (m->client[0])
        note_ended(c->api->mcp, c->who.tenant, m->client);
    if (m->client[0] && strcmp(m->client, m->thread) != 0)
        return 0;

    c->session = find(m);
    if (!c->session) /* no tool was called yet */
        return 0;

    session_get(c->session, &i);
    snprintf(c->sandbox, sizeof c->sandbox, "%s", i.id);
    if (i.state != SESSION_GONE &&
        session_end(c->session, END_KILLED, "its client has ended the session", e) < 0)
        return -1;

    session_forget_thread(c->session);
    return 0;
}
