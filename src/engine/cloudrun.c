/* Google Cloud Run: a box is an execution of a job. How one is made:
 *
 *   jobs:run with overrides: paddock-box's words, the key of its link, the longest life
 *   nobody can connect to an execution, so the box calls, by TLS (switchboard.h, box/caller.h)
 *   it is made when it has called once; then the carrier waits for its calls
 *
 * Or, where no network leads here, it does not call: with cloudrun_bucket its link goes through
 * objects of a bucket, which the job mounts and this machine reaches by Google's API
 * (box/letters.h). It is made when it has written its first.
 *
 * The job is the operator's: its image has paddock-box as its entry point, and says how large a box
 * is. Google knows no token that would make a run that is said twice one execution, nor a name of
 * ours for it: whose an execution is stands among its arguments (cloudrun_api.h). So :run is said
 * once; when its answer gets lost the executions are listed, and of several only one stays.
 *
 * Ending a box is cancelling its execution, and removing the record when it is over: what is left
 * of either is found by the next look for orphans. An execution also ends by itself: at the end of
 * its lease, and of the life that it was run with. */
#include "engine/cloudrun.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "box/key.h"
#include "engine/cloudrun_state.h"
#include "engine/switchboard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REGION       "us-central1"
#define ENDPOINT     "https://run.googleapis.com"
#define LIFE_S       86400u
#define LIFE_MOST_S  604800u /* of a task there */
#define LIFE_LEAST_S 60u
#define DOUBLES_MOST 16u
#define PAGES_MOST   100u
#define LOST_WAIT    (10 * NS_PER_S) /* a list may not have a new execution at once */
#define GONE_WAIT    (15 * NS_PER_S) /* one that was cancelled has 10 s to end */
#define CLEAR_WAIT   (60 * NS_PER_S)
#define PAUSE_MS     500

static struct cloudrun *self(struct remote *r)
{
    return (struct cloudrun *)r;
}

/* ---- calls ---- */

static int ask(struct cloudrun *b, struct rented_call *c, struct pd_err *e)
{
    return google_ask(&b->rented, &b->login, b->api, c, e);
}

static int refused(struct cloudrun *b, const struct rented_call *c, const char *what,
                   struct pd_err *e)
{
    return rented_call_refused(&b->rented, c, what, e);
}

static int read_job(struct cloudrun *b, deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("GET", t);

    if (b->job.containers)
        return 0;
    c.again = true;
    cloudrun_job_target(&c.target, &b->place, "");
    if (ask(b, &c, e) < 0)
        return -1;
    if (c.status == 404)
        return pd_fail(e, PD_NOT_FOUND,
                       "Cloud Run has no job '%s' in %s of %s: see cloudrun_job, cloudrun_region "
                       "and cloudrun_project",
                       b->place.job, b->place.region, b->place.project);
    if (c.status != 200)
        return refused(b, &c, "read the job", e);

    struct cloudrun_job job;
    if (cloudrun_read_job(c.out.data, c.out.len, &job, e) < 0)
        return -1;
    if (job.retries)
        return pd_fail(e, PD_INVALID,
                       "the job '%s' tries a task again %llu times, which would start a box that "
                       "has ended: set its maxRetries to 0",
                       b->place.job, (unsigned long long)job.retries);
    if (job.containers > 1 && !b->container[0])
        return pd_fail(e, PD_INVALID,
                       "the job '%s' has %u containers: say with cloudrun_container which is a "
                       "box's",
                       b->place.job, job.containers);
    if (b->bucket[0] &&
        cloudrun_read_mount(c.out.data, c.out.len, b->bucket, b->container, b->mount, e) < 0)
        return -1;
    b->job = job;
    return 0;
}

/* ---- what there is ---- */

static int each_execution(struct cloudrun *b, cloudrun_each *each, void *context, deadline t,
                          struct pd_err *e)
{
    char next[CLOUDRUN_NEXT] = "";

    for (unsigned page = 0; page < PAGES_MOST; page++) {
        auto_rented c = RENTED_CALL("GET", t);
        c.again = true;
        cloudrun_list_target(&c.target, &b->place, next);
        if (ask(b, &c, e) < 0)
            return -1;
        if (c.status != 200)
            return refused(b, &c, "list executions", e);
        int r = cloudrun_read_list(c.out.data, c.out.len, next, each, context, e);
        if (r || !next[0])
            return r;
    }
    return 0;
}

struct search {
    const char *instance, *box;
    struct cloudrun_execution found[DOUBLES_MOST];
    unsigned count;
};

static int match(void *context, const struct cloudrun_execution *x, struct pd_err *e)
{
    struct search *s = context;

    (void)e;
    if (!strcmp(x->owner, s->instance) && !strcmp(x->box, s->box) && s->count < DOUBLES_MOST)
        s->found[s->count++] = *x;
    return 0;
}

static int search(struct cloudrun *b, struct search *s, deadline t, struct pd_err *e)
{
    s->count = 0;
    return each_execution(b, match, s, t, e);
}

static void note_made(struct cloudrun *b, const struct remote_plan *p, const char *id)
{
    struct made *m = &b->made[b->made_count++ % MADE_MOST];

    snprintf(m->instance, sizeof m->instance, "%s", p->instance);
    snprintf(m->box, sizeof m->box, "%s", p->box);
    snprintf(m->id, sizeof m->id, "%s", id);
}

/* Adds what was run here and no list has yet. */
static void add_made(struct cloudrun *b, struct search *s)
{
    for (unsigned i = 0; i < MADE_MOST && i < b->made_count; i++) {
        struct made *m = &b->made[i];
        unsigned k = 0;
        if (strcmp(m->instance, s->instance) != 0 || strcmp(m->box, s->box) != 0)
            continue;
        while (k < s->count && strcmp(s->found[k].id, m->id) != 0)
            k++;
        if (k == s->count && s->count < DOUBLES_MOST) {
            s->found[k] = (struct cloudrun_execution){.id = ""};
            snprintf(s->found[k].id, sizeof s->found[k].id, "%s", m->id);
            s->count++;
        }
        *m = (struct made){.box = ""};
    }
}

int cloudrun_read_one(struct cloudrun *b, const char *id, struct cloudrun_execution *ret,
                      deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("GET", t);

    c.again = true;
    cloudrun_job_target(&c.target, &b->place, "/executions/");
    buf_puts(&c.target, id);
    if (ask(b, &c, e) < 0)
        return -1;
    if (c.status == 404)
        return pd_fail(e, PD_NOT_FOUND, "Cloud Run does not know the execution any more");
    if (c.status != 200)
        return refused(b, &c, "read an execution", e);
    return cloudrun_read_execution(c.out.data, c.out.len, ret, e);
}

/* ---- ending ---- */

/* Says a word about an execution. Fine when it is over, or gone. */
static int tell_one(struct cloudrun *b, const char *method, const char *id, const char *word,
                    const char *what, deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL(method, t);

    c.again = true;
    cloudrun_job_target(&c.target, &b->place, "/executions/");
    buf_printf(&c.target, "%s%s", id, word);
    if (word[0])
        buf_puts(&c.in, "{}");
    if (ask(b, &c, e) < 0)
        return -1;
    return c.status == 200 || c.status == 404 || c.status == 400 || c.status == 409
               ? 0
               : refused(b, &c, what, e);
}

/* Until those of a search are over, or the time is. */
static void await_ends(struct cloudrun *b, struct search *s, deadline t)
{
    for (unsigned i = 0; i < s->count; i++)
        while (!s->found[i].over && !deadline_passed(t)) {
            struct pd_err e;
            struct cloudrun_execution now;
            if (cloudrun_read_one(b, s->found[i].id, &now, t, &e) == 0)
                s->found[i].over = now.over;
            else if (e.code == PD_NOT_FOUND)
                s->found[i].over = true;
            if (!s->found[i].over)
                poll(NULL, 0, PAUSE_MS);
        }
}

/* All that were found but the first `keep`. */
static int end_found(struct cloudrun *b, struct search *s, unsigned keep, deadline t,
                     struct pd_err *e)
{
    for (unsigned i = keep; i < s->count; i++)
        if (!s->found[i].over &&
            tell_one(b, "POST", s->found[i].id, ":cancel", "cancel an execution", t, e) < 0)
            return -1;
    return 0;
}

/* An execution that has ended is listed until its record is removed, and every look for orphans has
 * it ended again: one process for a box is enough. */
static bool is_being_removed(const struct cloudrun *b, const struct search *s)
{
    for (unsigned i = 0; i < REMOVERS_MOST; i++) {
        const struct remover *r = &b->removers[i];
        struct pollfd end = {.fd = r->process, .events = POLLIN};
        if (r->process > 0 && !strcmp(r->box, s->box) && !strcmp(r->instance, s->instance) &&
            poll(&end, 1, 0) == 0)
            return true;
    }
    return false;
}

static void note_remover(struct cloudrun *b, const struct search *s, pid_t pid)
{
    struct remover *r = &b->removers[b->remover_count++ % REMOVERS_MOST];

    if (r->process > 0)
        close(r->process);
    *r = (struct remover){.process = (int)syscall(SYS_pidfd_open, pid, 0)};
    snprintf(r->instance, sizeof r->instance, "%s", s->instance);
    snprintf(r->box, sizeof r->box, "%s", s->box);
}

/* Removes what it has left in the bucket, and then the records (with them there is somebody who
 * asks for the rest again), when what was cancelled is over: in a process of its own, since nobody
 * is to wait for that, least of all the next box that is to be ended. What it does not come to is
 * found by the next look for orphans. */
static void remove_later(struct cloudrun *b, struct search *s)
{
    deadline t = deadline_in(GONE_WAIT);
    struct pd_err e;
    pid_t pid = fork();

    if (pid > 0)
        note_remover(b, s, pid);
    if (pid != 0)
        return;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; fd++)
        (void)dup2(null, fd);
    syscall(SYS_close_range, 3, ~0u, 0); /* locks say that their holder lives */
    struct remote *fresh = remote_open(b->remote.config, &e);
    if (fresh) {
        await_ends(self(fresh), s, t);
        t = deadline_in(CLEAR_WAIT);
        bool clear = cloudrun_way_clear(self(fresh), s->instance, s->box, t);
        for (unsigned i = 0; i < s->count && clear; i++)
            if (s->found[i].over)
                (void)tell_one(self(fresh), "DELETE", s->found[i].id, "", "remove an execution", t,
                               &e);
    }
    _exit(0);
}

static int cloudrun_end(struct remote *r, const char *instance, const char *box, deadline t,
                        struct pd_err *e)
{
    struct cloudrun *b = self(r);
    struct search s = {.instance = instance, .box = box};

    if (search(b, &s, t, e) < 0)
        return -1;
    add_made(b, &s);
    if (end_found(b, &s, 0, t, e) < 0)
        return -1;
    if (s.count && !is_being_removed(b, &s))
        remove_later(b, &s);
    return 0;
}

/* ---- making ---- */

/* The answer got lost: what runs is used, and of several only the first stays. */
static int look_for(struct cloudrun *b, const struct remote_plan *p, char ret_id[CLOUDRUN_ID],
                    deadline t, struct pd_err *e)
{
    deadline wait = deadline_in(LOST_WAIT);
    struct pd_err why;

    while (!deadline_passed(wait) && !deadline_passed(t) && remote_is_wanted(&b->remote)) {
        struct search s = {.instance = p->instance, .box = p->box};
        if (search(b, &s, t, &why) == 0 && s.count) {
            snprintf(ret_id, CLOUDRUN_ID, "%s", s.found[0].id);
            return end_found(b, &s, 1, t, e);
        }
        poll(NULL, 0, PAUSE_MS);
    }
    return -1; /* *e has why the answer got lost */
}

/* Over a connection of its own: libcurl says a request again by itself when one that it kept turns
 * out to be dead, and this one must not be said twice. */
static int renew_connection(struct cloudrun *b, struct pd_err *e)
{
    struct http *fresh = rented_server(&b->rented, b->url.base, e);

    if (!fresh)
        return -1;
    http_free(b->api);
    b->api = fresh;
    return 0;
}

static void write_hex(const uint8_t key[REMOTE_KEY], char out[2 * REMOTE_KEY + 1])
{
    for (unsigned i = 0; i < REMOTE_KEY; i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", key[i]);
}

static void write_run(struct cloudrun *b, const struct remote_plan *p,
                      const struct cloudrun_sign *sign, struct buf *out)
{
    struct remote_words words;
    char way[CLOUDRUN_WAY], pin[CLOUDRUN_WAY], label[160], key[2 * REMOTE_KEY + 1],
        more[2 * REMOTE_KEY + 1];
    const char *list[REMOTE_WORDS + 5] = {"run", label, way};
    unsigned count = 3;

    cloudrun_way_words(b, sign, way, pin);
    if (pin[0])
        list[count++] = pin;
    snprintf(label, sizeof label, "label=%s/%s", p->instance, p->box);
    remote_run_words(p, "env", &words);
    for (unsigned i = 0; i < words.count; i++)
        list[count++] = words.text[i];
    write_hex(p->key, key);
    write_hex(sign->root, more);

    struct cloudrun_plan plan = {.container = b->container[0] ? b->container : b->job.container,
                                 .words = list,
                                 .variable = KEY_VARIABLE,
                                 .value = key,
                                 .more = b->bucket[0] ? SEAL_VARIABLE : NULL,
                                 .more_value = more,
                                 .timeout_s = b->life};
    cloudrun_run_body(out, &plan);
    explicit_bzero(key, sizeof key);
    explicit_bzero(more, sizeof more);
}

/* The execution that an operation is about, when it did not say so at once. */
static int await_operation(struct cloudrun *b, struct cloudrun_operation *o, deadline t,
                           struct pd_err *e)
{
    while (!o->execution[0]) {
        auto_rented c = RENTED_CALL("GET", t);
        if (o->done)
            return pd_fail(e, PD_PROTOCOL, "Cloud Run has run the job, and names no execution");
        if (!remote_is_wanted(&b->remote) || deadline_passed(t))
            return pd_fail(e, PD_TIMEOUT, "Cloud Run does not run the job in time");
        poll(NULL, 0, PAUSE_MS);
        c.again = true;
        cloudrun_operation_target(&c.target, &b->place, o->id);
        if (ask(b, &c, e) < 0)
            return -1;
        if (c.status != 200)
            return refused(b, &c, "ask for an operation", e);
        if (cloudrun_read_operation(c.out.data, c.out.len, o, e) < 0)
            return -1;
    }
    return 0;
}

static int run(struct cloudrun *b, const struct remote_plan *p, const struct cloudrun_sign *sign,
               char ret_id[CLOUDRUN_ID], deadline t, struct pd_err *e)
{
    auto_rented c = RENTED_CALL("POST", t);
    struct cloudrun_operation o;

    cloudrun_job_target(&c.target, &b->place, ":run");
    write_run(b, p, sign, &c.in);
    if (renew_connection(b, e) < 0)
        return -1;
    int failed = ask(b, &c, e);
    if (c.in.data)
        explicit_bzero(c.in.data, c.in.len);
    if (failed)
        return e->code == PD_CONFLICT || !c.lost ? -1 : look_for(b, p, ret_id, t, e);
    if (c.status != 200) {
        (void)refused(b, &c, "run the job", e);
        return c.status >= 500 ? look_for(b, p, ret_id, t, e) : -1;
    }

    if (cloudrun_read_operation(c.out.data, c.out.len, &o, e) < 0)
        return e->code == PD_PROTOCOL ? look_for(b, p, ret_id, t, e) : -1;
    if (await_operation(b, &o, t, e) < 0)
        return -1;
    snprintf(ret_id, CLOUDRUN_ID, "%s", o.execution);
    return 0;
}

static int cloudrun_create(struct remote *r, const struct remote_plan *p, struct remote_state *ret,
                           deadline t, struct pd_err *e)
{
    struct cloudrun *b = self(r);
    struct cloudrun_sign sign __attribute__((cleanup(cloudrun_way_close))) = {.board = -1};
    char id[CLOUDRUN_ID];

    if (read_job(b, t, e) < 0 || cloudrun_way_open(b, p, &sign, t, e) < 0)
        return -1;

    /* Only here: what is made is ended whoever waits. */
    b->rented.remote = b->gcs.rented.remote = r;
    bool made = run(b, p, &sign, id, t, e) == 0;
    if (made) {
        note_made(b, p, id);
        made = cloudrun_way_await(b, id, &sign, t, e) == 0;
    }
    b->rented.remote = b->gcs.rented.remote = NULL;
    if (!made)
        return -1;
    *ret = (struct remote_state){.running = true};
    snprintf(ret->box, sizeof ret->box, "%s", p->box);
    cloudrun_way_place(b, id, p->link, &sign, ret->place);
    return 0;
}

/* ---- finding ---- */

static int cloudrun_find(struct remote *r, const char *instance, const char *box,
                         struct remote_state *ret, deadline t, struct pd_err *e)
{
    struct cloudrun *b = self(r);
    struct search s = {.instance = instance, .box = box};
    unsigned best = 0;

    if (search(b, &s, t, e) < 0)
        return -1;
    for (unsigned i = 0; i < MADE_MOST && i < b->made_count && !s.count; i++)
        if (!strcmp(b->made[i].instance, instance) && !strcmp(b->made[i].box, box) &&
            cloudrun_read_one(b, b->made[i].id, &s.found[0], t, NULL) == 0)
            s.count = 1;
    if (!s.count)
        return pd_fail(e, PD_NOT_FOUND, "Cloud Run has no execution of it");
    while (best + 1 < s.count && s.found[best].over)
        best++;
    *ret = (struct remote_state){.running = !s.found[best].over};
    snprintf(ret->box, sizeof ret->box, "%s", box);
    snprintf(ret->place, sizeof ret->place, "%s", s.found[best].id);
    snprintf(ret->why, sizeof ret->why, "%s", s.found[best].why);
    return 0;
}

struct listing {
    const char *instance;
    remote_each *each;
    void *context;
};

static int list_one(void *context, const struct cloudrun_execution *x, struct pd_err *e)
{
    struct listing *l = context;
    struct remote_state s = {.running = !x->over};

    if (strcmp(x->owner, l->instance) != 0)
        return 0;
    snprintf(s.box, sizeof s.box, "%s", x->box);
    snprintf(s.place, sizeof s.place, "%s", x->id);
    return l->each(l->context, &s, e);
}

static int cloudrun_each_box(struct remote *r, const char *instance, remote_each *each,
                             void *context, deadline t, struct pd_err *e)
{
    struct listing l = {.instance = instance, .each = each, .context = context};
    return each_execution(self(r), list_one, &l, t, e);
}

/* ---- settings ---- */

static int check_spec(const struct remote *r, const struct spec *s, struct pd_err *e)
{
    if (strcmp(broker_setting(r->config, "network"), "isolated") != 0)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider cloudrun cannot see that executions have no network: let the "
                       "job's VPC egress reach cloudrun_call and nothing else, and say "
                       "cloudrun_network = isolated");
    if (s->image[0])
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider cloudrun takes its image from cloudrun_job, not with each "
                       "sandbox ('%.60s')",
                       s->image);
    return 0;
}

static int cloudrun_check(struct remote *r, remote_tell *tell, void *context, deadline t,
                          struct pd_err *e)
{
    struct cloudrun *b = self(r);
    struct search s = {.instance = "check", .box = "check"};

    tell(context, "api", b->url.base);
    tell(context, "project", b->place.project);
    tell(context, "region", b->place.region);
    tell(context, "job", b->place.job);
    if (!google_login_header(&b->login, t, e))
        return -1;
    tell(context, "credentials", b->login.from);
    if (read_job(b, t, e) < 0)
        return -1;
    tell(context, "image", b->job.image);
    tell(context, "service_account", b->job.account[0] ? b->job.account : "the project's default");
    if (b->bucket[0])
        tell(context, "bucket", b->bucket);
    else
        tell(context, "calls", b->call);
    return search(b, &s, t, e);
}

static const char *given(const struct broker_config *c, const char *word, const char *variable,
                         const char *otherwise)
{
    const char *value = broker_setting(c, word), *other = getenv(variable);
    return value[0] ? value : other && other[0] ? other : otherwise;
}

/* The variable of older programs names a bucket that is for something else where boxes call. */
static const char *read_bucket(const struct broker_config *c)
{
    return broker_setting(c, "listen")[0] ? broker_setting(c, "bucket")
                                          : given(c, "bucket", "SANDBOX_GCS_BUCKET", "");
}

/* Where boxes call. */
static int read_call(struct cloudrun *b, struct pd_err *e)
{
    struct caller caller;
    struct pd_err why;

    if (!b->listen[0])
        return pd_fail(e, PD_INVALID,
                       "provider cloudrun needs cloudrun_listen: boxes call there, because nobody "
                       "can connect to them; use ADDRESS:PORT, such as 0.0.0.0:7443. Where no "
                       "network leads here, name a bucket instead: cloudrun_bucket");
    if (switchboard_check(b->listen, &why) < 0)
        return pd_fail(e, PD_INVALID, "cloudrun_listen: %s", why.msg);
    if (caller_read_place(b->call, &caller, NULL) < 0)
        return pd_fail(e, PD_INVALID, "cloudrun_call = %.80s: use HOST:PORT", b->call);
    if (!strcmp(caller.host, "0.0.0.0") || !strcmp(caller.host, "::"))
        return pd_fail(e, PD_INVALID,
                       "cloudrun_call: say what boxes call to reach %.80s: HOST:PORT", b->listen);
    return 0;
}

static int read_settings(struct cloudrun *b, const struct broker_config *c, struct pd_err *e)
{
    const char *life = broker_setting(c, "max_life_s");
    const char *endpoint = given(c, "endpoint", "CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN", ENDPOINT);

    b->place = (struct cloudrun_place){.project = given(c, "project", "SANDBOX_GCP_PROJECT", ""),
                                       .region = given(c, "region", "SANDBOX_GCP_REGION", REGION),
                                       .job = broker_setting(c, "job")};
    b->container = broker_setting(c, "container");
    b->listen = broker_setting(c, "listen");
    b->call = broker_setting(c, "call")[0] ? broker_setting(c, "call") : b->listen;
    b->bucket = read_bucket(c);
    b->life = LIFE_S;
    if (cloudrun_check_place(&b->place, e) < 0 ||
        rented_url_read("cloudrun_endpoint", endpoint, &b->url, e) < 0)
        return -1;
    if (b->url.path[0])
        return pd_fail(e, PD_INVALID, "cloudrun_endpoint = %.80s: use https://HOST without a path",
                       endpoint);
    if (b->bucket[0] && (b->listen[0] || b->call[0]))
        return pd_fail(e, PD_INVALID,
                       "cloudrun_bucket and cloudrun_listen or cloudrun_call: boxes either call or "
                       "use a bucket; leave one of them away");
    if (b->bucket[0] ? gcs_open(&b->gcs, b->bucket, broker_setting(c, "storage_endpoint"),
                                broker_setting(c, "ca_file"), &b->login, e) < 0
                     : read_call(b, e) < 0)
        return -1;
    return life[0] ? parse_u64("cloudrun_max_life_s", life, LIFE_LEAST_S, LIFE_MOST_S, &b->life, e)
                   : 0;
}

static void cloudrun_close(struct remote *r)
{
    struct cloudrun *b = self(r);

    if (!r)
        return;
    for (unsigned i = 0; i < REMOVERS_MOST; i++)
        if (b->removers[i].process > 0)
            close(b->removers[i].process);
    http_free(b->api);
    gcs_close(&b->gcs);
    called_keys_free(b->keys);
    fd_done(&b->board);
    google_login_close(&b->login);
    free(b);
}

static struct remote *cloudrun_open(const struct broker_config *c, struct pd_err *e)
{
    struct cloudrun *b = calloc(1, sizeof *b);

    if (!b) {
        pd_fail(e, PD_CAPACITY, "no memory for a backend");
        return NULL;
    }
    b->board = -1;
    b->rented = (struct rented){.who = "Google Cloud Run",
                                .remedy = "the roles of the service account on the job and its "
                                          "project, and cloudrun_credentials_file",
                                .secret = "",
                                .ca_file = broker_setting(c, "ca_file")};
    google_login_open(&b->login, broker_setting(c, "token_file"),
                      broker_setting(c, "credentials_file"), broker_setting(c, "ca_file"));
    if (read_settings(b, c, e) == 0 && (b->api = rented_server(&b->rented, b->url.base, e)))
        return &b->remote;
    cloudrun_close(&b->remote);
    return NULL;
}

static const char *const settings[] = {
    "project", "region",           "endpoint",   "job",     "container",  "listen",
    "call",    "network",          "max_life_s", "ca_file", "token_file", "credentials_file",
    "bucket",  "storage_endpoint", NULL};

const struct remote_kind cloudrun_remote = {
    .name = "cloudrun",
    .rung = RUNG_BASIC,
    .settings = settings,
    .open = cloudrun_open,
    .close = cloudrun_close,
    .check_spec = check_spec,
    .create = cloudrun_create,
    .find = cloudrun_find,
    .end = cloudrun_end,
    .each = cloudrun_each_box,
    .reach = cloudrun_reach,
    .check = cloudrun_check,
};
