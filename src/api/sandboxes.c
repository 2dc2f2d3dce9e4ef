/* Sandboxes of the v1 API: making, listing, showing, pausing, extending and ending them, by their
 * id, or by the user and the thread that they belong to. */
#include "api/handlers.h"
#include "api/sandbox.h"

#include "access/ids.h"
#include "access/quota.h"
#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "router/decide.h"
#include "telemetry/metrics.h"

#define LIST_MAX 1000u

int call_may_create(struct call *c, struct pd_err *e)
{
    if (quota_take(c->api->quota, c->who.tenant, QUOTA_CREATES, &c->retry_after, e) == 0)
        return 0;

    metrics_add(c->api->metrics, METRIC_LIMITS, METRICS_LIMIT_RATE, 0, 1);
    return -1;
}

void call_count_create(struct call *c, int made, struct session *s, const struct queue_place *place)
{
    struct session_info i;

    metrics_add(c->api->metrics, METRIC_CREATES, made < 0 ? METRICS_FAILED : METRICS_OK, 0, 1);
    if (made < 0)
        return;

    session_get(s, &i);
    memcpy(c->sandbox, i.id, sizeof c->sandbox);
    if (!c->session)
        c->session = session_ref(s);

    metrics_observe(c->api->metrics, METRIC_CREATE_SECONDS,
                    i.from_pool ? METRICS_POOL : METRICS_COLD,
                    (clock_now() - c->began) / 1000 - place->waited_ms * 1000);
    metrics_observe(c->api->metrics, METRIC_QUEUE_SECONDS, 0, place->waited_ms * 1000);
}

int sandboxes_create(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    char key[API_KEY_MAX + 1];
    struct create_request q;
    struct pull_stream stream;
    struct queue_place place;
    struct session *s = NULL;
    bool known = false;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    int r = create_request_read(c, &f, &q, 0, e);
    pull_stream_init(&stream, c, &q.request);
    if (r == 0)
        r = call_key(c, &body, key, &q.request.key, &q.request.key_hash, e);
    if (r == 0)
        r = call_may_create(c, e);

    if (r == 0) {
        r = sessions_create(c->api->sessions, &q.request, &s, &known, &place, e);
        call_count_create(c, r, s, &place);
        if (r == 0 && q.is_built && !known)
            template_start(s, &q.use);
    }

    create_request_done(&q);
    if (r == 0 && !known)
        r = recipe_set_up(c, s, e);
    if (r < 0) {
        session_unref(s);
        return stream.begun ? pull_stream_end(&stream, NULL, NULL, e) : -1;
    }

    if (known)
        reply_header(c->r, "Idempotent-Replayed", "true");
    r = stream.begun ? pull_stream_end(&stream, s, &place, e) : call_sandbox(c, 201, s, &place);
    session_unref(s);
    return r;
}

static int read_states(struct call *c, const char *text, int *ret, struct pd_err *e)
{
    for (int s = 0; s < SESSION_STATE_COUNT; s++)
        if (!strcmp(text, session_state_name((enum session_state)s))) {
            *ret = 1 << s;
            return 0;
        }

    if (!strcmp(text, "all")) {
        *ret = (1 << SESSION_STATE_COUNT) - 1;
        return 0;
    }

    snprintf(c->field, sizeof c->field, "state");
    return pd_fail(e, PD_INVALID, "state=%.40s: creating, running, paused, stopping, gone or all",
                   text);
}

/* metadata.KEY=VALUE, any number of them. */
static int read_metadata(struct call *c, struct session_filter *f, char names[8][URL_NAME_SIZE],
                         char values[8][512], struct pd_err *e)
{
    struct slice query = c->r->query, value;
    char name[URL_NAME_SIZE];
    int r;

    while ((r = url_query_next(&query, name, &value, e)) > 0) {
        if (strncmp(name, "metadata.", 9) != 0)
            continue;
        snprintf(c->field, sizeof c->field, "%.100s", name);
        if (f->metadata_count == 8)
            return pd_fail(e, PD_INVALID, "at most 8 metadata filters");

        unsigned n = f->metadata_count;
        memcpy(names[n], name, sizeof name);
        if (url_decode(name, value, values[n], sizeof values[n], e) < 0)
            return -1;

        f->metadata_key[n] = names[n] + 9;
        f->metadata_value[n] = values[n];
        f->metadata_count++;
    }
    return r;
}

int session_list_read(struct call *c, const struct session_filter *f, struct session_list *ret,
                      struct pd_err *e)
{
    struct session_list l = {.at = calloc(f->limit, sizeof *l.at)};
    if (!l.at)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");

    if (sessions_list(c->api->sessions, f, l.at, &l.count, l.next, e) < 0) {
        free(l.at);
        if (e->code == PD_INVALID)
            snprintf(c->field, sizeof c->field, "cursor");
        return -1;
    }

    *ret = l;
    return 0;
}

void session_list_done(struct session_list *l)
{
    for (unsigned i = 0; i < l->count; i++)
        session_unref(l->at[i]);
    free(l->at);
    *l = (struct session_list){0};
}

static int read_order(struct call *c, bool *ret_newest_first, struct pd_err *e)
{
    char order[16];

    int given = call_query(c, "order", order, sizeof order, e);
    if (given <= 0)
        return given;

    *ret_newest_first = !strcmp(order, "newest");
    if (*ret_newest_first || !strcmp(order, "oldest"))
        return 0;
    snprintf(c->field, sizeof c->field, "order");
    return pd_fail(e, PD_INVALID, "order '%.15s': there are 'oldest' and 'newest'", order);
}

static int read_members(struct call *c, uint64_t *ret, struct pd_err *e)
{
    char text[512];
    int given = call_query(c, "fields", text, sizeof text, e);
    if (given <= 0)
        return given;
    if (sandbox_members_read(text, ret, e) == 0)
        return 0;
    snprintf(c->field, sizeof c->field, "fields");
    return -1;
}

int sandboxes_list(struct call *c, struct pd_err *e)
{
    static const char *const allowed[] = {"state",  "user_id", "thread_id", "metadata.",
                                          "q",      "limit",   "cursor",    "order",
                                          "fields", "count",   NULL};
    char state[32], user[SESSION_NAME_MAX + 1], thread[SESSION_NAME_MAX + 1], cursor[64];
    char names[8][URL_NAME_SIZE], values[8][512], words[256];
    struct session_filter f = {.tenant = c->who.tenant};
    uint64_t limit = 100, members = SANDBOX_WHOLE;
    size_t total = 0;
    bool counts = false;
    int has_user, has_thread, has_state, has_cursor, has_words;

    if (call_query_check(c, allowed, e) < 0 ||
        (has_state = call_query(c, "state", state, sizeof state, e)) < 0 ||
        (has_user = call_query(c, "user_id", user, sizeof user, e)) < 0 ||
        (has_thread = call_query(c, "thread_id", thread, sizeof thread, e)) < 0 ||
        (has_words = call_query(c, "q", words, sizeof words, e)) < 0 ||
        (has_cursor = call_query(c, "cursor", cursor, sizeof cursor, e)) < 0 ||
        call_query_u64(c, "limit", 1, LIST_MAX, &limit, e) < 0 ||
        call_query_bool(c, "count", &counts, e) < 0 || read_members(c, &members, e) < 0 ||
        read_metadata(c, &f, names, values, e) < 0 || read_order(c, &f.newest_first, e) < 0 ||
        (has_state && read_states(c, state, &f.states, e) < 0))
        return -1;

    f.user_id = has_user ? user : NULL;
    f.thread_id = has_thread ? thread : NULL;
    f.words = has_words ? words : NULL;
    f.cursor = has_cursor ? cursor : NULL;
    f.limit = (unsigned)limit;
    f.ret_total = counts ? &total : NULL;

    auto_list found = {0};
    if (session_list_read(c, &f, &found, e) < 0)
        return -1;

    auto_buf out = BUF_INIT(64u << 20);
    struct json j = JSON_INIT(&out);
    json_open(&j, '{');
    json_key(&j, "sandboxes");
    json_open(&j, '[');
    for (unsigned i = 0; i < found.count; i++)
        sandbox_json_some(&j, found.at[i], members);
    json_close(&j, ']');
    json_member_str(&j, "next_cursor", found.next);
    if (counts)
        json_member_uint(&j, "total", total);
    json_close(&j, '}');
    return call_json(c, 200, &out);
}

int sandbox_get(struct call *c, struct pd_err *e)
{
    return call_no_query(c, e) < 0 ? -1 : call_sandbox(c, 200, c->session, NULL);
}

int sandbox_delete(struct call *c, struct pd_err *e)
{
    if (call_no_query(c, e) < 0 || session_end(c->session, END_KILLED, "deleted by the API", e) < 0)
        return -1;
    return call_empty(c);
}

int sandbox_pause(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0 || session_pause(c->session, e) < 0)
        return -1;
    return call_sandbox(c, 200, c->session, NULL);
}

int sandbox_resume(struct call *c, struct pd_err *e)
{
    if (call_no_fields(c, e) < 0 || session_resume(c->session, e) < 0)
        return -1;
    return call_sandbox(c, 200, c->session, NULL);
}

/* May the caller have such a sandbox at that provider? As for a new one. */
static struct provider *find_target(struct call *c, const char *name, struct pd_err *e)
{
    struct session_info i;
    struct decision decision;
    session_get(c->session, &i);
    /* One that was made with mode local, or auto, may go where its owner wants it. */
    struct session_request r = {.tenant = c->who.tenant,
                                .provider = name,
                                .mode = i.mode == MODE_SANDBOX ? MODE_SANDBOX : MODE_NONE,
                                .spec = i.spec};

    snprintf(c->field, sizeof c->field, "provider");
    if (sessions_explain(c->api->sessions, &r, &decision, NULL, e) < 0)
        return NULL;
    return c->api->providers->list[decision.provider];
}

int sandbox_move(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const char *name = NULL;
    bool give_up = false;
    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    fields_str(&f, "provider", FIELD_REQUIRED, 1, PROVIDER_NAME_MAX, &name);
    fields_bool(&f, "give_up", FIELD_OPTIONAL, &give_up);
    if (call_finish(c, &f, e) < 0)
        return -1;

    struct provider *to = find_target(c, name, e);
    if (!to)
        return -1;
    c->field[0] = 0;
    struct session_goal goal = {
        .to = to, .flags = give_up ? MOVE_GIVE_UP : 0, .reason = "moved by the API"};
    if (session_move(c->session, &goal, e) < 0)
        return -1;
    return call_sandbox(c, 200, c->session, NULL);
}

int sandbox_extend(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    const struct ceilings ceilings = config_ceilings(c->config, c->who.tenant);
    uint64_t idle = 0, expires = 0;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    fields_seconds_ms(&f, "idle_timeout_s", FIELD_OPTIONAL, 1000, 30ull * 86400000, &idle);
    fields_seconds_ms(&f, "expires_in_s", FIELD_OPTIONAL, 1000, CEILING_LIFE_MAX, &expires);
    if (expires > ceilings.life_ms)
        fields_refuse(
            &f, "expires_in_s",
            "%.15g is above the ceiling of %.15g; ask for less, or have max_life_s raised",
            (double)expires / 1000, (double)ceilings.life_ms / 1000);
    if (call_finish(c, &f, e) < 0 || session_extend(c->session, idle, expires, e) < 0)
        return -1;
    return call_sandbox(c, 200, c->session, NULL);
}

/* ---- by user and thread ---- */

static int check_names(struct call *c, struct pd_err *e)
{
    static const char *const names[] = {"user_id", "thread_id"};

    if (call_no_query(c, e) < 0)
        return -1;

    for (int i = 0; i < 2; i++)
        if (strlen(c->var[i]) > SESSION_NAME_MAX) {
            snprintf(c->field, sizeof c->field, "%s", names[i]);
            return pd_fail(e, PD_INVALID, "%s: at most %u bytes", names[i], SESSION_NAME_MAX);
        }
    return 0;
}

int session_put(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX);
    auto_fields f = {0};
    char user[SESSION_NAME_MAX + 1], thread[SESSION_NAME_MAX + 1];
    struct create_request q;
    struct pull_stream stream;
    struct queue_place place;
    struct session *s = NULL;
    bool created = false;

    if (check_names(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    snprintf(user, sizeof user, "%.*s", SESSION_NAME_MAX, c->var[0]);
    snprintf(thread, sizeof thread, "%.*s", SESSION_NAME_MAX, c->var[1]);

    int r = create_request_read(c, &f, &q, 1, e);
    pull_stream_init(&stream, c, &q.request);
    if (r == 0) {
        /* Finding one is no creation, and asked for often. */
        struct session *there =
            sessions_find_thread(c->api->sessions, c->who.tenant, user, thread, e);
        r = there ? 0 : call_may_create(c, e);
        session_unref(there);
    }

    if (r == 0) {
        q.request.user_id = user;
        q.request.thread_id = thread;
        r = sessions_get_or_create(c->api->sessions, &q.request, &s, &created, &place, e);
        if (r < 0 || created)
            call_count_create(c, r, s, &place);
        if (r == 0 && q.is_built && created)
            template_start(s, &q.use);
    }

    create_request_done(&q);
    if (r == 0 && created)
        r = recipe_set_up(c, s, e);
    if (r < 0) {
        session_unref(s);
        return stream.begun ? pull_stream_end(&stream, NULL, NULL, e) : -1;
    }

    const struct queue_place *waited = created ? &place : NULL;
    r = stream.begun ? pull_stream_end(&stream, s, waited, e)
                     : call_sandbox(c, created ? 201 : 200, s, waited);
    session_unref(s);
    return r;
}

int session_get_thread(struct call *c, struct pd_err *e)
{
    if (check_names(c, e) < 0)
        return -1;
    c->session = sessions_find_thread(c->api->sessions, c->who.tenant, c->var[0], c->var[1], e);
    return c->session ? call_sandbox(c, 200, c->session, NULL) : -1;
}

int session_delete(struct call *c, struct pd_err *e)
{
    if (check_names(c, e) < 0)
        return -1;

    struct session *s =
        sessions_find_thread(c->api->sessions, c->who.tenant, c->var[0], c->var[1], e);
    if (!s)
        return -1;

    int r = session_end(s, END_KILLED, "deleted by the API", e);
    session_forget_thread(s);
    session_unref(s);
    return r < 0 ? -1 : call_empty(c);
}
