/* How this works: a build that was given its plan is a job. Jobs wait in a list, the oldest first;
 * one that has its turn has a thread of its own, which holds no lock while it works, comes back
 * with what has become of it, and gives the next its turn. */
#include "build/templates_in.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/snapshots.h"
#include "store/store.h"
#include "telemetry/log.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STOP_PATIENCE (10 * NS_PER_S)

static void copy(char *out, size_t size, const char *from)
{
    snprintf(out, size, "%s", from);
}
#define COPY(to, from) copy(to, sizeof(to), from)

static void job_free(struct job *j)
{
    if (!j)
        return;
    plan_free(j->plan);
    build_context_done(&j->context);
    build_log_done(&j->log);
    fd_done(&j->wake);
    free(j);
}

static void start_next(struct templates *t);

/* With the lock held. */
static void settle(struct job *j, int failed, const struct pd_err *why, struct buf *settings)
{
    struct templates *t = j->all;
    struct build *b = t->builds;
    struct pd_err ignored;

    while (b && b->job != j)
        b = b->next;
    if (!b)
        return; /* it was deleted */

    struct build_info *i = &b->info;
    b->job = NULL;
    i->updated_ms = i->finished_ms = time_now_ms();
    COPY(i->provider, j->provider);

    if (!failed) {
        i->state = BUILD_READY;
        memcpy(i->snapshot, j->layer, sizeof i->snapshot);
        i->size = j->size;
        for (const struct build *o = t->builds; o && !i->size; o = o->next)
            if (o != b && !strcmp(o->info.snapshot, i->snapshot))
                i->size = o->info.size;
        b->settings = strdup(buf_cstr(settings) ? buf_cstr(settings) : "");
        size_t len;
        for (const char *at = i->tags; (len = tag_next(&at)); at += len) {
            char tag[64];
            snprintf(tag, sizeof tag, "%.*s", (int)len, at);
            for (struct build *o = t->builds; o; o = o->next)
                if (o != b && o->info.state == BUILD_READY &&
                    !strcmp(o->info.template_id, i->template_id) && build_has_tag(&o->info, tag)) {
                    tag_remove(&o->info, tag);
                    build_put_or_log(t, o);
                }
        }
    } else {
        i->state = BUILD_FAILED;
        COPY(i->step, j->step);
        COPY(i->message, why->msg);
    }

    /* Written down before anybody is told. */
    if (build_put(t, b, &ignored) < 0)
        log_warn("build.store", "id=%s error=%s", i->id, ignored.msg);
    templates_prune(t, b);
}

static void *job_main(void *arg)
{
    struct job *j = arg;
    struct templates *t = j->all;
    struct pd_err e = {0};
    auto_buf settings = BUF_INIT(2 * PLAN_TEXT_MAX);
    char tenant[64];

    log_info("build.start", "id=%s template=%s tenant=%s", j->info.id, j->info.name,
             j->info.tenant);
    int failed = job_run(j, &e) < 0;
    if (!failed && job_settings(j, &settings) < 0)
        failed = pd_fail(&e, PD_TOO_LARGE, "the settings of the template are too long") < 0;
    if (failed && atomic_load(&j->cancelled)) {
        lock_take(&t->lock);
        pd_fail(&e, PD_LOST, "%s", j->why);
        lock_release(&t->lock);
    }
    if (failed)
        build_log_printf(&j->log, "error", j->step, "%s", e.msg);
    log_info("build.end", "id=%s result=%s error=%s", j->info.id, failed ? "failed" : "ready",
             failed ? e.msg : "");

    COPY(tenant, j->info.tenant);
    lock_take(&t->lock);
    settle(j, failed, &e, &settings);
    struct job **at = &t->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    start_next(t);
    lock_release(&t->lock);
    job_free(j);

    templates_sweep(t, tenant, LAYERS_KEPT);
    lock_take(&t->lock);
    t->threads--;
    pthread_cond_broadcast(&t->idle);
    lock_release(&t->lock);
    return NULL;
}

static unsigned running(const struct templates *t, const char *tenant)
{
    unsigned count = 0;
    for (const struct job *j = t->jobs; j; j = j->next)
        count += j->running && (!tenant || !strcmp(j->info.tenant, tenant));
    return count;
}

/* Gives threads to those whose turn it is. With the lock held. */
static void start_next(struct templates *t)
{
    for (struct job *j = t->jobs; j && !t->stopping; j = j->next) {
        pthread_attr_t how;
        pthread_t thread;
        if (running(t, NULL) >= BUILDS_AT_ONCE)
            return;
        if (j->running || running(t, j->info.tenant) >= BUILDS_OF_TENANT)
            continue;

        pthread_attr_init(&how);
        pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
        j->running = pthread_create(&thread, &how, job_main, j) == 0;
        pthread_attr_destroy(&how);
        t->threads += j->running;
        if (!j->running)
            return; /* the next that ends tries again */
    }
}

static void cancel(struct job *j, const char *why)
{
    uint64_t one = 1;
    COPY(j->why, why);
    atomic_store(&j->cancelled, true);
    (void)!write(j->wake, &one, sizeof one);
}

/* ---- from outside ---- */

/* With the lock held. Takes the plan. */
static int enqueue(struct templates *t, struct build *b, struct job *j, struct pd_err *e)
{
    unsigned count = 0;
    struct job **end = &t->jobs;
    for (; *end; end = &(*end)->next)
        count += !strcmp((*end)->info.tenant, b->info.tenant);

    if (t->stopping)
        return pd_fail(e, PD_SHUTTING_DOWN, "the server is stopping");
    if (b->job || b->info.state != BUILD_WAITING)
        return pd_fail(e, PD_CONFLICT, "build %s was started already", b->info.id);
    if (count >= BUILDS_QUEUED)
        return pd_fail(e, PD_RATE, "%u builds are under way or wait for their turn: wait for one",
                       count);

    b->info.state = BUILD_BUILDING;
    b->info.updated_ms = time_now_ms();
    b->info.profile = j->plan->profile;
    COPY(b->info.base, j->plan->base);
    if (build_put(t, b, e) < 0) {
        b->info.state = BUILD_WAITING;
        return -1;
    }

    j->info = b->info;
    b->job = j;
    *end = j;
    start_next(t);
    return 0;
}

int build_start(struct templates *t, const char *tenant, const char *id_or_name, const char *build,
                struct build_plan *plan, struct pd_err *e)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j) {
        plan_free(plan);
        return pd_fail(e, PD_CAPACITY, "no memory for a build");
    }
    *j = (struct job){.all = t,
                      .plan = plan,
                      .wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                      .log = {.fd = -1},
                      .context = BUILD_CONTEXT_INIT};
    snprintf(j->step, sizeof j->step, "base");

    lock_take(&t->lock);
    struct build *b = build_find_in(t, tenant, id_or_name, build, e);
    int r = !b ? -1 : 0;
    if (r == 0 && j->wake < 0)
        r = pd_fail_sys(e, "make an eventfd");
    if (r == 0)
        r = enqueue(t, b, j, e);
    lock_release(&t->lock);

    if (r < 0)
        job_free(j);
    return r;
}

/* A job without a thread ends here. With the lock held. */
static void drop_waiting(struct templates *t, struct job *j, const char *why)
{
    struct pd_err e;
    auto_buf none = BUF_INIT(16);
    pd_fail(&e, PD_LOST, "%s", why);
    settle(j, 1, &e, &none);

    struct job **at = &t->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    job_free(j);
}

static void unlink_job(struct templates *t, struct job *j)
{
    struct job **at = &t->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
}

void job_forget(struct templates *t, struct job *j, const char *why)
{
    if (j->running) {
        cancel(j, why);
    } else {
        unlink_job(t, j);
        job_free(j);
    }
}

void job_end(struct templates *t, struct job *j, const char *why)
{
    if (j->running)
        cancel(j, why);
    else
        drop_waiting(t, j, why);
}

int build_cancel(struct templates *t, const char *tenant, const char *id_or_name, const char *build,
                 struct pd_err *e)
{
    lock_take(&t->lock);
    struct build *b = build_find_in(t, tenant, id_or_name, build, e);
    int r = !b ? -1 : 0;
    if (b && b->job)
        job_end(t, b->job, "the build was cancelled");
    else if (b && b->info.state == BUILD_WAITING)
        build_forget(t, b);
    else if (b)
        r = pd_fail(e, PD_CONFLICT, "build %s has ended: it is %s", build,
                    build_state_name(b->info.state));
    lock_release(&t->lock);
    return r;
}

void templates_stop(struct templates *t)
{
    deadline d = deadline_in(STOP_PATIENCE);

    lock_take(&t->lock);
    t->stopping = true;
    for (struct job *j = t->jobs, *next; j; j = next) {
        next = j->next;
        job_end(t, j, "the server was stopped");
    }
    while (t->threads && lock_wait(&t->idle, &t->lock, d))
        ;
    lock_release(&t->lock);
}
