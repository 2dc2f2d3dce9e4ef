/* How a build is made.
 *
 * The keys of all steps are computed first. The last of them under which a layer is known is where
 * the build begins, unless a step before it is forced; without one it begins with the image, the
 * template or the profile that the plan names. Then a sandbox is made there and the steps are done
 * in it, one after the other. A layer is taken when steps have taken LAYER_AFTER since the last
 * one, because doing them again would take longer than the copy does, and at the end; of the last
 * one, with what start and ready have left, sandboxes are made. The sandbox is ended in any case.
 *
 * Everything that a step does, it does inside. What comes out is text for the log, the values of
 * variables, and how a command ended. */
#include "build/templates_in.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "build/steps.h"
#include "core/snapshots.h"
#include "telemetry/log.h"

#include <stdlib.h>

#define LAYER_AFTER (2 * NS_PER_S)
#define READY_REST  (200 * NS_PER_MS)
#define END_TRIES   3

struct keys {
    char base[SHA256_HEX_SIZE];
    char step[PLAN_STEPS_MAX][SHA256_HEX_SIZE];
    char end[SHA256_HEX_SIZE];
};

static bool has_end(const struct build_plan *p)
{
    return p->start || p->ready;
}

/* Under which the result is known. */
static const char *last_key(const struct build_plan *p, const struct keys *k)
{
    return has_end(p) || !p->count ? k->end : k->step[p->count - 1];
}

static void enter_step(struct job *j, unsigned n)
{
    snprintf(j->step, sizeof j->step, "%u", n + 1);
}

/* Of all steps, with the digests of what they copy. */
static int make_keys(struct job *j, struct keys *k, struct pd_err *e)
{
    struct build_plan *p = j->plan;
    plan_key_base(p, k->base);

    for (unsigned i = 0; i < p->count; i++) {
        struct build_step *s = &p->steps[i];
        enter_step(j, i);
        if (s->kind == STEP_COPY) {
            auto_fd file = files_open(j->all->files, j->info.tenant, s->files, s->digest, e);
            if (file < 0)
                return -1;
        }
        plan_key_step(s, i ? k->step[i - 1] : k->base, k->step[i]);
    }

    plan_key_end(p, p->count ? k->step[p->count - 1] : k->base, k->end);
    snprintf(j->step, sizeof j->step, "base");
    return 0;
}

/* Takes up a layer of an earlier build. */
static bool take_layer(struct job *j, const char *key)
{
    struct snapshot_info found;
    auto_buf note = BUF_INIT(2 * PLAN_ENV_MAX + 8192);
    struct pd_err ignored;

    lock_take(&j->all->lock);
    bool there =
        layer_find(j->all->c.sessions, j->info.tenant, key, &found, &note, &ignored) == 0 &&
        !templates_is_going(j->all, found.id) && buf_cstr(&note) &&
        build_context_read(&j->context, (const char *)note.data) == 0;
    if (there)
        memcpy(j->layer, found.id, sizeof j->layer);
    lock_release(&j->all->lock);
    if (!there)
        return false;

    snprintf(j->provider, sizeof j->provider, "%s", found.provider);
    return true;
}

/* How many steps need not be done. */
static unsigned find_start(struct job *j, const struct keys *k)
{
    const struct build_plan *p = j->plan;
    unsigned most = p->count;

    for (unsigned i = 0; i < p->count && most == p->count; i++)
        if (p->steps[i].force)
            most = i;
    if (p->force)
        return 0;
    for (unsigned n = most; n; n--)
        if (take_layer(j, k->step[n - 1]))
            return n;
    return 0;
}

static int copy_context(struct build_context *to, const struct build_context *from,
                        struct pd_err *e)
{
    struct msg_list env = msg_list_of(&from->env);
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(&env, &pos));)
        if (msg_list_add(&to->env, v) < 0)
            return pd_fail(e, PD_CAPACITY, "no memory for the variables");
    snprintf(to->user, sizeof to->user, "%s", from->user);
    snprintf(to->workdir, sizeof to->workdir, "%s", from->workdir);
    return 0;
}

/* The first provider that has roots which can be copied, and images if there is one. */
static const char *choose_provider(struct job *j, struct pd_err *e)
{
    const struct provider_table *all = j->all->c.providers;
    for (unsigned i = 0; i < all->count; i++) {
        const struct provider *p = all->list[i];
        if (provider_has(p, PROVIDER_SNAPSHOT) && !p->needs_image &&
            (!j->plan->image[0] || provider_has(p, PROVIDER_IMAGE)))
            return p->name;
    }
    pd_fail(e, PD_UNSUPPORTED,
            "templates are built in sandboxes whose files can be copied: that needs the provider "
            "jail, which this server does not have");
    return NULL;
}

static int make_sandbox(struct job *j, struct pd_err *e)
{
    const struct build_plan *p = j->plan;
    char name[64];
    struct queue_place place;
    bool known;
    const char *provider = NULL;
    const char *files = j->layer[0] ? j->layer : p->snapshot[0] ? p->snapshot : NULL;

    snprintf(name, sizeof name, "build/%s", j->info.id);
    if (!files && !(provider = choose_provider(j, e)))
        return -1;
    struct session_request r = {.tenant = j->info.tenant,
                                .made_by = j->info.made_by[0] ? j->info.made_by : NULL,
                                .template_name = name,
                                .provider = provider,
                                .snapshot = files,
                                .cwd = "/",
                                .network = p->network,
                                .image_from = p->image_from,
                                .image_login = p->image_login,
                                .spec = SPEC_DEFAULT,
                                .idle_timeout_ms = BUILD_TIME_NS / NS_PER_MS,
                                .max_life_ms = BUILD_TIME_NS / NS_PER_MS,
                                .queue_timeout_ms = BUILD_TIME_NS / NS_PER_MS};
    r.spec.profile = p->profile;
    r.spec.limits = p->limits;
    r.spec.network = p->network ? NETWORK_GATE : NETWORK_NONE;
    r.spec.image = files ? "" : p->image;

    if (sessions_create(j->all->c.sessions, &r, &j->session, &known, &place, e) < 0)
        return -1;
    struct session_info i;
    session_get(j->session, &i);
    snprintf(j->provider, sizeof j->provider, "%s", i.provider);
    return 0;
}

static void measure(struct job *j)
{
    struct session_sample s;
    if (session_samples(j->session, 0, 0, &s, 1))
        j->size = s.disk_used;
}

static int make_layer(struct job *j, const char *key, struct pd_err *e)
{
    struct snapshot_info made;
    auto_buf note = BUF_INIT(2 * PLAN_ENV_MAX + 8192);

    if (build_context_write(&j->context, &note) < 0 || !buf_cstr(&note))
        return pd_fail(e, PD_TOO_LARGE, "the variables are too long");
    measure(j);
    if (session_layer(j->session, key, (const char *)note.data, &made, e) < 0)
        return pd_wrap(e, "keep the layer");

    lock_take(&j->all->lock);
    memcpy(j->layer, made.id, sizeof j->layer);
    lock_release(&j->all->lock);
    return 0;
}

static int do_steps(struct job *j, const struct keys *k, unsigned from, struct pd_err *e)
{
    const struct build_plan *p = j->plan;
    uint64_t since = clock_now();

    for (unsigned i = from; i < p->count; i++) {
        enter_step(j, i);
        if (step_run(j, &p->steps[i], e) < 0)
            return -1;
        bool last = i + 1 == p->count;
        if (last ? has_end(p) && clock_now() - since < LAYER_AFTER
                 : clock_now() - since < LAYER_AFTER)
            continue; /* the layer of the end is near, or doing it again is quick */
        if (make_layer(j, k->step[i], e) < 0)
            return -1;
        since = clock_now();
    }
    return 0;
}

/* Runs what the sandboxes are to run, and waits until it is ready. */
static int do_end(struct job *j, const struct keys *k, struct pd_err *e)
{
    const struct build_plan *p = j->plan;
    struct process *started = NULL;
    int r = 0;

    snprintf(j->step, sizeof j->step, "finalize");
    if (p->start) {
        build_log_printf(&j->log, "info", j->step, "start: %.800s", p->start);
        r = step_start(j, p->start, &started, e);
    }
    if (r == 0 && p->ready) {
        build_log_printf(&j->log, "info", j->step, "wait until ready: %.800s", p->ready);
        while ((r = step_line(j, p->ready, "debug", e)) > 0)
            if (step_rest(j, READY_REST, e) < 0)
                break;
    }
    if (r == 0)
        r = make_layer(j, k->end, e);
    if (started)
        process_unref(started);
    return r;
}

static int work(struct job *j, const struct keys *k, struct pd_err *e)
{
    const struct build_plan *p = j->plan;
    bool forced = p->force;
    for (unsigned i = 0; i < p->count; i++)
        forced |= p->steps[i].force;
    if (!forced && take_layer(j, last_key(p, k))) {
        build_log_printf(&j->log, "info", "finalize", "all of it was built before");
        return 0;
    }

    unsigned done = find_start(j, k);
    for (unsigned i = 0; i < done; i++) {
        enter_step(j, i);
        build_log_printf(&j->log, "info", j->step, "%s: as it was built before",
                         step_kind_name(p->steps[i].kind));
    }
    snprintf(j->step, sizeof j->step, "base");
    if (!done && copy_context(&j->context, &p->context, e) < 0)
        return -1;
    build_log_printf(&j->log, "info", "base", "begin with %.300s", done ? "a layer" : p->base);
    if (make_sandbox(j, e) < 0 || (!done && p->image[0] && step_provision(j, e) < 0))
        return -1;

    if (do_steps(j, k, done, e) < 0)
        return -1;
    if (has_end(p))
        return do_end(j, k, e);
    snprintf(j->step, sizeof j->step, "finalize");
    return p->count ? 0 : make_layer(j, k->end, e);
}

static void end_sandbox(struct job *j)
{
    struct pd_err e;
    for (unsigned i = 0; j->session && i < END_TRIES; i++)
        if (session_end(j->session, END_KILLED, "its build is done", &e) == 0)
            break;
    session_unref(j->session);
    j->session = NULL;
}

int job_run(struct job *j, struct pd_err *e)
{
    struct keys *k = calloc(1, sizeof *k);
    if (!k)
        return pd_fail(e, PD_CAPACITY, "no memory for a build");

    j->until = deadline_in(BUILD_TIME_NS);
    int r = build_log_open(&j->log, j->all->dir, j->info.id, e);
    if (r == 0)
        r = make_keys(j, k, e);
    if (r == 0)
        r = work(j, k, e);
    if (j->session)
        end_sandbox(j);
    free(k);
    if (r == 0)
        build_log_printf(&j->log, "info", "finalize", "the template is ready");
    return r;
}

int job_settings(const struct job *j, struct buf *out)
{
    const struct build_plan *p = j->plan;
    struct json rest = JSON_INIT(out);

    if (build_context_write(&j->context, out) < 0 || !out->len)
        return -1;
    out->len--; /* its brace, for two members more */
    rest.need_comma = 1;
    json_member_uint(&rest, "disk", p->limits.disk);
    json_member_uint(&rest, "files", p->limits.files);
    if (p->start)
        json_member_cstr(&rest, "start", p->start);
    if (p->ready)
        json_member_cstr(&rest, "ready", p->ready);
    json_close(&rest, '}');
    return out->overflow ? -1 : 0;
}
