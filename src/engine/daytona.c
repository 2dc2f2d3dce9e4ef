/* Daytona. How a box is made:
 *
 *   a sandbox of our name, from a snapshot or an image, without a network, which is stopped when
 *   nobody was there for the length of the lease, and deleted when it is stopped
 *   paddock-box and the key of its link are put into it by the toolbox's files
 *   `paddock-box start` is run there by the toolbox's processes, and listens at a port
 *   the port is dialled as a WebSocket by its preview address, with the preview's token
 *
 * Names are unique in an organization: a request whose answer got lost is said again, and what is
 * there already is told from an older one by the link's id, which is a label. Where a repository is
 * to be cloned the sandbox reaches its host alone until that is done, and nothing of a tenant's
 * runs before it reaches nothing. */
#include "engine/daytona.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "engine/daytona_api.h"
#include "engine/rented.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHO        "Daytona"
#define SETTING    "daytona_api_key_file"
#define API        "https://app.daytona.io/api"
#define PUT        "/tmp/.paddock" /* whoever the toolbox is there may write here */
#define PLACE      "/opt/paddock"
#define STEP       (60 * NS_PER_S)
#define EXECUTE_S  30u
#define CLONE      (300 * NS_PER_S)
#define BEAT       (500 * NS_PER_MS)
#define MAKE_TRIES 4
#define SOON_TRIES 20 /* the toolbox of one that was just made may not be reached at once */
#define PAGES_MOST 100u

struct daytona {
    struct remote remote;
    struct rented rented;
    struct http *api;
    struct rented_url url;
    uint64_t life, cpu, memory, disk;
    char key[RENTED_TOKEN], key_header[RENTED_TOKEN + 32];
};

static struct daytona *of(struct remote *r)
{
    return (struct daytona *)r;
}

/* ---- calls ---- */

static int ask_api(struct daytona *d, struct rented_call *c, struct pd_err *e)
{
    rented_header(c, d->key_header);
    rented_header(c, "X-Daytona-Source: paddock");
    return rented_ask(&d->rented, d->api, c, e);
}

/* False when nobody waits any more, or it is too late. */
static bool wait_a_beat(struct daytona *d, deadline until)
{
    if (deadline_in(BEAT) >= until || !remote_is_wanted(&d->remote))
        return false;
    poll(NULL, 0, (int)(BEAT / NS_PER_MS));
    return remote_is_wanted(&d->remote);
}

static int gave_up(const char *what, struct pd_err *e)
{
    return pd_fail(e, PD_TIMEOUT, WHO ": %s takes too long, or nobody waits for it", what);
}

/* A call of the toolbox's, behind its base and the sandbox's id. */
static int ask_toolbox(struct daytona *d, const struct daytona_sandbox *s, const char *target,
                       struct rented_call *c, struct pd_err *e)
{
    if (!s->toolbox.base[0])
        return pd_fail(e, PD_PROTOCOL, "Daytona does not say where the toolbox of %s is", s->id);
    struct http *h = rented_server(&d->rented, s->toolbox.base, e);
    if (!h)
        return -1;
    buf_clear(&c->target);
    buf_printf(&c->target, "%s/%s%s", s->toolbox.path, s->id, target);
    rented_header(c, d->key_header);
    int r = rented_ask(&d->rented, h, c, e);
    http_free(h);
    return r;
}

/* ---- what there is ---- */

static int not_there(struct pd_err *e)
{
    return pd_fail(e, PD_NOT_FOUND,
                   "Daytona has no such sandbox any more: it was idle for too long, its longest "
                   "life was over, or somebody ended it");
}

/* By its id or its name. PD_NOT_FOUND also for one that is about to be deleted. */
static int get_one(struct daytona *d, const char *id, struct daytona_sandbox *ret, deadline t,
                   struct pd_err *e)
{
    auto_rented c = RENTED_CALL("GET", t);

    c.again = true;
    buf_printf(&c.target, "%s/sandbox/%s", d->url.path, id);
    if (ask_api(d, &c, e) < 0)
        return -1;
    if (c.status == 404)
        return not_there(e);
    if (c.status != 200)
        return rented_call_refused(&d->rented, &c, "look for the sandbox", e);
    if (daytona_read_sandbox(c.out.data, c.out.len, ret, e) < 0)
        return -1;
    return ret->state == DAYTONA_GONE ? not_there(e) : 0;
}

static bool is_ours(const struct daytona_sandbox *s, const char *instance, const char *box)
{
    return !strcmp(s->owner, instance) && !strcmp(s->box, box);
}

static int get_named(struct daytona *d, const char *instance, const char *box,
                     struct daytona_sandbox *ret, deadline t, struct pd_err *e)
{
    char name[REMOTE_NAME_MAX + 1];

    remote_name(instance, box, name);
    if (get_one(d, name, ret, t, e) < 0)
        return -1;
    return is_ours(ret, instance, box) ? 0 : not_there(e);
}

static void tell_state(const struct daytona_sandbox *s, struct remote_state *ret)
{
    *ret = (struct remote_state){.running = s->state == DAYTONA_RUNS || s->state == DAYTONA_COMES};
    snprintf(ret->place, sizeof ret->place, "%s", s->id);
    snprintf(ret->box, sizeof ret->box, "%s", s->box);
    if (s->state == DAYTONA_STOPPED)
        snprintf(ret->why, sizeof ret->why,
                 "Daytona has stopped it: it was idle for too long, or somebody stopped it");
    else if (s->state == DAYTONA_FAILED)
        snprintf(ret->why, sizeof ret->why, "Daytona: %.140s",
                 s->why[0] ? s->why : "it failed, without a word why");
}

static int find(struct remote *r, const char *instance, const char *box, struct remote_state *ret,
                deadline t, struct pd_err *e)
{
    struct daytona_sandbox s;

    if (get_named(of(r), instance, box, &s, t, e) < 0)
        return -1;
    tell_state(&s, ret);
    return 0;
}

struct search {
    const char *instance;
    remote_each *each;
    void *context;
};

static int take_one(void *context, const struct daytona_sandbox *s, struct pd_err *e)
{
    struct search *w = context;
    struct remote_state state;

    /* A filter that a server does not know must not end somebody else's sandboxes. */
    if (strcmp(s->owner, w->instance) != 0 || s->state == DAYTONA_GONE ||
        strlen(s->box) >= sizeof state.box)
        return 0;
    tell_state(s, &state);
    return w->each(w->context, &state, e);
}

static int each(struct remote *r, const char *instance, remote_each *call, void *context,
                deadline t, struct pd_err *e)
{
    struct daytona *d = of(r);
    struct search w = {.instance = instance, .each = call, .context = context};
    char cursor[DAYTONA_CURSOR] = "", next[DAYTONA_CURSOR];

    for (unsigned page = 0; page < PAGES_MOST; page++) {
        auto_rented c = RENTED_CALL("GET", t);
        c.again = true;
        buf_puts(&c.target, d->url.path);
        daytona_list_target(&c.target, instance, cursor);
        if (ask_api(d, &c, e) < 0)
            return -1;
        if (c.status != 200)
            return rented_call_refused(&d->rented, &c, "list sandboxes", e);
        if (daytona_read_list(c.out.data, c.out.len, take_one, &w, next, e) < 0)
            return -1;
        if (!next[0] || !strcmp(next, cursor))
            return 0;
        memcpy(cursor, next, sizeof cursor);
    }
    return 0;
}

/* One whose state is just changing is refused with 409 until it has changed. */
static int remove_one(struct daytona *d, const char *id, deadline t, struct pd_err *e)
{
    for (;;) {
        auto_rented c = RENTED_CALL("DELETE", t);
        c.again = true;
        buf_printf(&c.target, "%s/sandbox/%s", d->url.path, id);
        if (ask_api(d, &c, e) < 0)
            return -1;
        if (c.status == 200 || c.status == 204 || c.status == 404)
            return 0;
        if (c.status != 409 || !wait_a_beat(d, t))
            return rented_call_refused(&d->rented, &c, "end the sandbox", e);
    }
}

static int end(struct remote *r, const char *instance, const char *box, deadline t,
               struct pd_err *e)
{
    struct daytona_sandbox s;
    struct pd_err why;

    if (get_named(of(r), instance, box, &s, t, &why) < 0)
        return why.code == PD_NOT_FOUND ? 0 : pd_fail(e, why.code, "%s", why.msg);
    return remove_one(of(r), s.id, t, e);
}

/* ---- making one ---- */

static uint32_t gigabytes(uint64_t bytes)
{
    return (uint32_t)((bytes + (1u << 30) - 1) >> 30);
}

static int refuse_make(struct daytona *d, const struct rented_call *c, const char *image,
                       struct pd_err *e)
{
    struct pd_err why;

    (void)rented_call_refused(&d->rented, c, "make a sandbox", &why);
    if (c->status != 400 && c->status != 404 && c->status != 422)
        return pd_fail(e, why.code, "%s", why.msg);
    return image[0]
               ? pd_fail(e, PD_INVALID, "%.150s; the image was '%.60s'", why.msg, image)
               : pd_fail(e, PD_INVALID, "%.150s; see daytona_snapshot and daytona_target", why.msg);
}

/* The name is taken, or nobody knows. 1: by this very attempt, 0: it is free, or will be. */
static int look_for(struct daytona *d, const struct remote_plan *p, struct daytona_sandbox *ret,
                    deadline t, struct pd_err *e)
{
    struct daytona_sandbox s;
    struct pd_err why;

    if (get_one(d, p->name, &s, t, &why) < 0)
        return why.code == PD_NOT_FOUND ? 0 : pd_fail(e, why.code, "%s", why.msg);
    if (!is_ours(&s, p->instance, p->box))
        return pd_fail(e, PD_CONFLICT, "Daytona has a sandbox '%s' that is not this server's",
                       p->name);
    if (strcmp(s.link, p->link) != 0)
        return remove_one(d, s.id, t, e); /* of an earlier attempt */
    *ret = s;
    return 1;
}

static int make(struct daytona *d, const struct remote_plan *p, const char *git_host,
                struct daytona_sandbox *ret, deadline t, struct pd_err *e)
{
    const struct broker_config *c = d->remote.config;
    struct daytona_plan plan = {.name = p->name,
                                .owner = p->instance,
                                .box = p->box,
                                .link = p->link,
                                .image = p->spec->image,
                                .snapshot = broker_setting(c, "snapshot"),
                                .target = broker_setting(c, "target"),
                                .git_host = git_host,
                                .stop_min = daytona_minutes(p->lease),
                                .life_min = daytona_minutes(d->life),
                                .cpu = (uint32_t)d->cpu,
                                .memory_gb = gigabytes(d->memory),
                                .disk_gb = gigabytes(d->disk)};
    const char *region = getenv("DAYTONA_TARGET");

    if (!plan.target[0] && region)
        plan.target = region;
    for (int tries = 0;; tries++) {
        auto_rented call = RENTED_CALL("POST", t);
        buf_printf(&call.target, "%s/sandbox", d->url.path);
        daytona_create_body(&call.in, &plan);
        int asked = ask_api(d, &call, e);
        if (asked < 0 && e->code == PD_CONFLICT)
            return -1; /* nobody waits any more */
        bool made = asked == 0 && (call.status == 200 || call.status == 201);
        if (made && daytona_read_sandbox(call.out.data, call.out.len, ret, e) == 0)
            return 0;
        if (asked == 0 && !made && call.status < 500 && call.status != 409)
            return refuse_make(d, &call, plan.image, e);
        if (asked == 0 && !made)
            (void)rented_call_refused(&d->rented, &call, "make a sandbox", e);

        struct pd_err why;
        int there = look_for(d, p, ret, t, &why);
        if (there > 0)
            return 0;
        if (there < 0)
            return pd_fail(e, why.code, "%s", why.msg);
        if (tries + 1 == MAKE_TRIES || !wait_a_beat(d, t))
            return -1; /* *e has why it was not made */
    }
}

/* An image may have to be built there first. */
static int await_start(struct daytona *d, const struct remote_plan *p, struct daytona_sandbox *s,
                       deadline t, struct pd_err *e)
{
    char id[RENTED_ID];

    snprintf(id, sizeof id, "%s", s->id);
    while (s->state == DAYTONA_COMES) {
        if (!wait_a_beat(d, t))
            return gave_up("the start of the sandbox", e);
        if (get_one(d, id, s, t, e) < 0)
            return -1;
    }
    if (s->state == DAYTONA_RUNS)
        return 0;

    struct remote_state state;
    tell_state(s, &state);
    if (s->state == DAYTONA_FAILED && p->spec->image[0])
        return pd_fail(e, PD_INVALID, "image '%.100s': %s", p->spec->image, state.why);
    return pd_fail(e, PD_LOST, "%s", state.why[0] ? state.why : "Daytona has ended the sandbox");
}

/* Lines of sh, in the sandbox. With `again` they may be run twice. */
static int execute(struct daytona *d, const struct daytona_sandbox *s, const char *lines,
                   const char *what, bool again, deadline t, struct pd_err *e)
{
    for (int tries = 0;; tries++) {
        auto_rented c = RENTED_CALL("POST", t);
        c.again = again;
        daytona_execute_body(&c.in, lines, EXECUTE_S);
        if (ask_toolbox(d, s, "/process/execute", &c, e) < 0)
            return -1;
        if (c.status == 200)
            return daytona_read_executed(c.out.data, c.out.len, what, e);
        if (!again || c.status < 502 || tries == SOON_TRIES || !wait_a_beat(d, t))
            return rented_call_refused(&d->rented, &c, what, e);
    }
}

/* Begins each script: `power` is what makes a command root's where the toolbox is somebody else
 * who may become root; `is_root` is empty where nobody may. */
#define POWER                                                                                      \
    "set -e\n"                                                                                     \
    "power= is_root=\n"                                                                            \
    "if [ \"$(id -u)\" = 0 ]; then is_root=1\n"                                                    \
    "elif sudo -n true 2>/dev/null; then is_root=1 power='sudo -n'; fi\n"

static int put_files(struct daytona *d, const struct daytona_sandbox *s,
                     const struct remote_plan *p, deadline t, struct pd_err *e)
{
    static const char *const names[] = {"box", "key"};
    auto_buf program = BUF_INIT(REMOTE_PROGRAM);

    if (remote_read_program(p->program, &program, e) < 0)
        return -1;
    if (!rented_form_fits(program.data, program.len))
        return pd_fail(e, PD_INTERNAL, "paddock-box has the boundary of a form in it");

    const struct {
        const void *data;
        size_t len;
    } files[] = {{program.data, program.len}, {p->key, sizeof p->key}};
    auto_rented c = RENTED_CALL("POST", t);
    c.again = true;
    for (unsigned i = 0; i < 2; i++) {
        char field[32], path[64];
        snprintf(path, sizeof path, PUT "/%s", names[i]);
        snprintf(field, sizeof field, "files[%u].path", i);
        rented_form_text(&c.in, field, path);
        snprintf(field, sizeof field, "files[%u].file", i);
        rented_form_file(&c.in, field, names[i], files[i].data, files[i].len);
    }
    rented_form_end(&c.in);
    rented_header(&c, RENTED_FORM_TYPE);
    int r = ask_toolbox(d, s, "/files/bulk-upload", &c, e);
    if (c.in.data)
        explicit_bzero(c.in.data, c.in.len); /* the key */
    if (r < 0)
        return -1;
    return c.status == 200
               ? 0
               : rented_call_refused(&d->rented, &c, "put paddock-box into the sandbox", e);
}

/* Is anybody at the port of the link? */
static int is_listening(struct daytona *d, const struct daytona_sandbox *s, bool *ret, deadline t,
                        struct pd_err *e)
{
    char target[48];
    auto_rented c = RENTED_CALL("GET", t);

    c.again = true;
    snprintf(target, sizeof target, "/port/%u/in-use", RENTED_PORT);
    if (ask_toolbox(d, s, target, &c, e) < 0)
        return -1;
    return c.status == 200 ? daytona_read_port(c.out.data, c.out.len, ret, e)
                           : rented_call_refused(&d->rented, &c, "ask for the link's port", e);
}

static int start_box(struct daytona *d, const struct daytona_sandbox *s,
                     const struct remote_plan *p, deadline t, struct pd_err *e)
{
    auto_buf lines = BUF_INIT(4000);
    struct remote_words words;
    bool is_dev = p->spec->profile == PROFILE_DEV, listens = false;

    remote_run_words(p, "\"$at/key\"", &words);
    buf_puts(&lines,
             POWER "at=" PUT "\nchmod 0555 $at/box\nchmod 0400 $at/key\n"
                   "if [ -n \"$is_root\" ]; then\n"
                   "  $power mkdir -p " PLACE "/bin\n"
                   "  $power mv -f $at/box $at/key " PLACE "\n"
                   "  at=" PLACE "\n"
                   "  $power chown 0:0 $at/box $at/key\n"
                   "  if [ -d /workspace ]; then $power chown -R 1000:1000 /workspace; fi\n");
    if (is_dev)
        buf_puts(&lines, "  $power ln -f $at/box $at/bin/sudo\n");
    buf_printf(&lines, "fi\nexec $power $at/box start listen=%u", RENTED_PORT);
    for (unsigned i = 0; i < words.count; i++)
        buf_printf(&lines, " %s", words.text[i]);
    buf_puts(&lines, "\n");

    /* Not said twice: the key is gone when it has been read. */
    int r = execute(d, s, buf_cstr(&lines), "start paddock-box", false, t, e);
    struct pd_err ignored;
    if (r < 0 && e->code == PD_BAD_GATEWAY && is_listening(d, s, &listens, t, &ignored) == 0 &&
        listens)
        return 0; /* it was the answer that got lost */
    return r;
}

/* ---- a repository ---- */

/* Without one its URL is "". */
static int plan_git(const struct daytona *d, const struct spec *s, struct daytona_git *ret,
                    struct pd_err *e)
{
    char url[DAYTONA_URL];
    const char *hosts = broker_setting(d->remote.config, "git_hosts");

    *ret = (struct daytona_git){.url = ""};
    if (daytona_options_read(s->options, url, e) < 0)
        return -1;
    if (!url[0])
        return 0;
    if (daytona_git_read(url, ret, e) < 0)
        return -1;
    if (!daytona_git_allowed(ret, hosts))
        return pd_fail(e, PD_DENIED,
                       "git_url '%.100s': the operator lets sandboxes clone from '%.60s'; see "
                       "daytona_git_hosts",
                       url, hosts[0] ? hosts : "nowhere");
    return 0;
}

/* Takes the way to the repository's host away again. */
static int block(struct daytona *d, struct daytona_sandbox *s, deadline t, struct pd_err *e)
{
    char id[RENTED_ID];
    auto_rented c = RENTED_CALL("POST", t);

    c.again = true;
    buf_printf(&c.target, "%s/sandbox/%s/network-settings", d->url.path, s->id);
    buf_puts(&c.in, "{\"networkBlockAll\":true}");
    if (ask_api(d, &c, e) < 0)
        return -1;
    if (c.status != 200 && c.status != 201)
        return rented_call_refused(&d->rented, &c, "take the network away", e);

    snprintf(id, sizeof id, "%s", s->id);
    return get_one(d, id, s, t, e);
}

static int clone(struct daytona *d, struct daytona_sandbox *s, const struct daytona_git *g,
                 deadline t, struct pd_err *e)
{
    static const char prepare[] = POWER "$power mkdir -p /workspace\n"
                                        "$power chown \"$(id -u)\" /workspace\n";

    if (execute(d, s, prepare, "make /workspace", true, t, e) < 0)
        return -1;
    auto_rented c = RENTED_CALL("POST", t);
    daytona_clone_body(&c.in, g);
    if (ask_toolbox(d, s, "/git/clone", &c, e) < 0)
        return -1;
    if (c.status == 200)
        return block(d, s, t, e);

    struct pd_err why;
    (void)rented_call_refused(&d->rented, &c, "clone the repository", &why);
    return pd_fail(e, c.status < 500 ? PD_INVALID : PD_BAD_GATEWAY, "git_url '%.80s': %.140s",
                   g->url, why.msg);
}

/* ---- all of it ---- */

static deadline step(uint64_t ns, deadline t)
{
    deadline s = deadline_in(ns);
    return s < t ? s : t;
}

static int furnish(struct daytona *d, const struct remote_plan *p, const struct daytona_git *g,
                   struct daytona_sandbox *s, deadline t, struct pd_err *e)
{
    if (await_start(d, p, s, t, e) < 0)
        return -1;
    if (g->url[0] && clone(d, s, g, step(CLONE, t), e) < 0)
        return -1;
    if (!s->is_blocked)
        return pd_fail(e, PD_PROTOCOL,
                       "Daytona does not say that the sandbox %s has no network: none is made "
                       "that might have one",
                       s->id);
    if (put_files(d, s, p, step(STEP, t), e) < 0)
        return -1;
    return start_box(d, s, p, step(STEP, t), e);
}

static int create(struct remote *r, const struct remote_plan *p, struct remote_state *ret,
                  deadline t, struct pd_err *e)
{
    struct daytona *d = of(r);
    struct daytona_sandbox s;
    struct daytona_git g;
    char host[sizeof g.host];

    if (plan_git(d, p->spec, &g, e) < 0)
        return -1;
    snprintf(host, sizeof host, "%s", g.host);
    host[strcspn(host, ":")] = 0; /* Daytona goes by names alone */
    if (make(d, p, host, &s, step(STEP, t), e) < 0)
        return -1;
    if (furnish(d, p, &g, &s, t, e) < 0) {
        (void)remove_one(d, s.id, deadline_in(STEP), NULL);
        return -1;
    }

    *ret = (struct remote_state){.running = true};
    snprintf(ret->place, sizeof ret->place, "%s/%s", s.id, p->link);
    snprintf(ret->box, sizeof ret->box, "%s", p->box);
    return 0;
}

static int check_spec(const struct remote *r, const struct spec *s, struct pd_err *e)
{
    struct daytona_git g;

    if (s->image[0] && !daytona_is_image(s->image))
        return pd_fail(e, PD_INVALID,
                       "image '%.100s': provider daytona takes a name such as debian:12", s->image);
    return plan_git((const struct daytona *)r, s, &g, e);
}

/* ---- its link ---- */

static int preview(struct daytona *d, const char *id, struct daytona_preview *ret, deadline t,
                   struct pd_err *e)
{
    auto_rented c = RENTED_CALL("GET", t);

    c.again = true;
    buf_printf(&c.target, "%s/sandbox/%s/ports/%u/preview-url", d->url.path, id, RENTED_PORT);
    if (ask_api(d, &c, e) < 0)
        return -1;
    if (c.status == 404)
        return not_there(e);
    if (c.status != 200)
        return rented_call_refused(&d->rented, &c, "say where the link's port is", e);
    return daytona_read_preview(c.out.data, c.out.len, ret, e);
}

/* Whoever is between has not let us through: is there still anybody to be reached? Keeps *e where
 * there is, or nobody knows. */
static void explain(struct daytona *d, const char *id, deadline t, struct pd_err *e)
{
    struct daytona_sandbox s;
    struct remote_state state;
    struct pd_err why;
    bool listens = true;

    if (get_one(d, id, &s, t, &why) < 0) {
        if (why.code == PD_NOT_FOUND)
            pd_fail(e, PD_NOT_FOUND, "%s", why.msg);
        return;
    }
    tell_state(&s, &state);
    if (!state.running)
        pd_fail(e, PD_LOST, "%s", state.why);
    else if (s.state == DAYTONA_RUNS && is_listening(d, &s, &listens, t, &why) == 0 && !listens)
        pd_fail(e, PD_LOST, "paddock-box does not run any more in the sandbox at Daytona");
}

static struct byte_stream *reach(struct remote *r, const char *place, deadline t, struct pd_err *e)
{
    struct daytona *d = of(r);
    char id[RENTED_ID], link[33], token[RENTED_TOKEN + 32];
    struct daytona_preview p;
    struct ws_refusal refusal;

    if (rented_place_read(place, id, link, e) < 0 || preview(d, id, &p, t, e) < 0)
        return NULL;
    snprintf(token, sizeof token, "X-Daytona-Preview-Token: %s", p.token);
    const char *headers[] = {"X-Daytona-Skip-Preview-Warning: true", p.token[0] ? token : NULL,
                             NULL};
    struct byte_stream *stream = rented_dial(&d->rented, &p.url, link, headers, t, &refusal, e);
    if (stream || !refusal.status)
        return stream;

    (void)rented_refused(
        &(struct rented_refusal){.who = WHO,
                                 .what = "dial the sandbox",
                                 .remedy = SETTING,
                                 .secret = p.token,
                                 .wait = "",
                                 .status = refusal.status == 404 ? 500 : refusal.status,
                                 .body = refusal.text,
                                 .len = strlen(refusal.text)},
        e);
    explain(d, id, t, e);
    return NULL;
}

/* Its proxy counts an open link as somebody who is there; this does not depend on it. */
static int renew(struct remote *r, const char *place, deadline t, struct pd_err *e)
{
    struct daytona *d = of(r);
    char id[RENTED_ID], link[33];
    auto_rented c = RENTED_CALL("POST", t);

    if (rented_place_read(place, id, link, e) < 0)
        return -1;
    c.again = true;
    buf_printf(&c.target, "%s/sandbox/%s/last-activity", d->url.path, id);
    buf_puts(&c.in, "{}");
    if (ask_api(d, &c, e) < 0)
        return -1;
    return c.status >= 200 && c.status < 300
               ? 0
               : rented_call_refused(&d->rented, &c, "prolong the sandbox", e);
}

static int check_one(void *context, const struct remote_state *s, struct pd_err *e)
{
    (void)context, (void)s, (void)e;
    return 0;
}

static int check(struct remote *r, remote_tell *tell, void *context, deadline t, struct pd_err *e)
{
    struct daytona *d = of(r);
    const char *snapshot = broker_setting(r->config, "snapshot");
    char api[sizeof d->url.base + sizeof d->url.path];

    snprintf(api, sizeof api, "%s%s", d->url.base, d->url.path);
    tell(context, "api", api);
    tell(context, "snapshot", snapshot[0] ? snapshot : "Daytona's own");
    if (each(r, "check", check_one, NULL, t, e) < 0)
        return -1;
    tell(context, "key", "is accepted");
    return 0;
}

/* ---- the row ---- */

static void close_daytona(struct remote *r)
{
    if (!r)
        return;
    http_free(of(r)->api);
    explicit_bzero(of(r), sizeof *of(r));
    free(r);
}

/* A number that the server has read already; "" is 0. */
static int read_number(const struct broker_config *c, const char *word, uint64_t most,
                       uint64_t *ret, struct pd_err *e)
{
    const char *text = broker_setting(c, word);
    char what[64];

    *ret = 0;
    snprintf(what, sizeof what, "daytona_%s", word);
    return text[0] ? parse_u64(what, text, 0, most, ret, e) : 0;
}

/* A text that becomes a part of a request's body. */
static int check_word(const struct broker_config *c, const char *word, struct pd_err *e)
{
    const char *text = broker_setting(c, word);

    if (!text[0] || daytona_is_image(text))
        return 0;
    return pd_fail(e, PD_INVALID, "daytona_%s '%.80s': use letters, digits and ._:/@- only", word,
                   text);
}

static int read_settings(struct daytona *d, const struct broker_config *c, struct pd_err *e)
{
    const char *at = broker_setting(c, "api_url"), *more = getenv("DAYTONA_API_URL"),
               *old = getenv("DAYTONA_SERVER_URL");

    if (!at[0])
        at = more && more[0] ? more : old && old[0] ? old : API;
    if (rented_url_read("daytona_api_url", at, &d->url, e) < 0 ||
        check_word(c, "snapshot", e) < 0 || check_word(c, "target", e) < 0)
        return -1;
    return read_number(c, "max_life_s", 365ull * 24 * 3600, &d->life, e) < 0 ||
                   read_number(c, "cpu", 1024, &d->cpu, e) < 0 ||
                   read_number(c, "memory_bytes", SPEC_MEMORY_MAX, &d->memory, e) < 0 ||
                   read_number(c, "disk_bytes", SPEC_DISK_MAX, &d->disk, e) < 0
               ? -1
               : 0;
}

static struct remote *open_daytona(const struct broker_config *c, struct pd_err *e)
{
    struct daytona *d = calloc(1, sizeof *d);

    if (!d) {
        pd_fail(e, PD_CAPACITY, "no memory for a backend");
        return NULL;
    }
    d->rented = (struct rented){.who = WHO,
                                .remedy = SETTING,
                                .secret = d->key,
                                .ca_file = broker_setting(c, "ca_file"),
                                .remote = &d->remote};
    if (rented_secret(SETTING, broker_setting(c, "api_key_file"), "DAYTONA_API_KEY", d->key,
                      sizeof d->key, e) == 0 &&
        read_settings(d, c, e) == 0 && (d->api = rented_server(&d->rented, d->url.base, e))) {
        snprintf(d->key_header, sizeof d->key_header, "Authorization: Bearer %s", d->key);
        return &d->remote;
    }
    close_daytona(&d->remote);
    return NULL;
}

static const char *const settings[] = {"api_key_file", "api_url",    "target",     "snapshot",
                                       "git_hosts",    "ca_file",    "max_life_s", "cpu",
                                       "memory_bytes", "disk_bytes", NULL};

const struct remote_kind daytona_remote = {.name = "daytona",
                                           .rung = RUNG_BASIC,
                                           .settings = settings,
                                           .open = open_daytona,
                                           .close = close_daytona,
                                           .check_spec = check_spec,
                                           .create = create,
                                           .find = find,
                                           .end = end,
                                           .each = each,
                                           .reach = reach,
                                           .renew = renew,
                                           .check = check};
