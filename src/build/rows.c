/* Rows of builds: their way to the store and back, and the tags in them.
 *
 * A row that says "building" at the start of a daemon is a build that was interrupted: it has
 * failed then, and its sandbox, which is known by its template's name, is ended. */
#include "build/templates_in.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/snapshots.h"
#include "store/store.h"
#include "telemetry/log.h"

#include <stdlib.h>

/* ---- tags ---- */

/* The next line of the list: its length, 0 at the end. */
size_t tag_next(const char **at)
{
    while (**at == '\n')
        ++*at;
    return strcspn(*at, "\n");
}

bool build_has_tag(const struct build_info *i, const char *tag)
{
    size_t len;
    for (const char *at = i->tags; (len = tag_next(&at)); at += len)
        if (strlen(tag) == len && !memcmp(at, tag, len))
            return true;
    return false;
}

void tag_remove(struct build_info *i, const char *tag)
{
    char left[BUILD_TAGS_SIZE] = "";
    size_t len, end = 0;
    for (const char *at = i->tags; (len = tag_next(&at)); at += len)
        if (strlen(tag) != len || memcmp(at, tag, len) != 0)
            end += (size_t)snprintf(left + end, sizeof left - end, "%.*s\n", (int)len, at);
    memcpy(i->tags, left, end + 1);
}

int tag_add(struct build_info *i, const char *tag, struct pd_err *e)
{
    size_t end = strlen(i->tags);
    unsigned count = 0;
    for (const char *at = i->tags; *at; at++)
        count += *at == '\n';

    if (!plan_is_name(tag, strlen(tag)))
        return pd_fail(e, PD_INVALID,
                       "'%.80s' is no tag: letters, digits and '._-', at most 63, none of '._-' in "
                       "front",
                       tag);
    if (build_has_tag(i, tag))
        return 0;
    if (count == BUILD_TAGS_MAX)
        return pd_fail(e, PD_CAPACITY, "a build has at most %u tags", BUILD_TAGS_MAX);
    snprintf(i->tags + end, sizeof i->tags - end, "%s\n", tag);
    return 0;
}

/* ---- rows ---- */

int build_put(struct templates *t, const struct build *b, struct pd_err *e)
{
    const struct build_info *i = &b->info;
    struct build_row row = {.id = i->id,
                            .template_id = i->template_id,
                            .tenant = i->tenant,
                            .name = i->name,
                            .tags = i->tags,
                            .made_by = i->made_by,
                            .provider = i->provider,
                            .base = i->base,
                            .settings = b->settings,
                            .snapshot = i->snapshot,
                            .step = i->step,
                            .message = i->message,
                            .state = (int)i->state,
                            .profile = (int)i->profile,
                            .cpu_milli = i->cpu_milli,
                            .memory = i->memory,
                            .size = i->size,
                            .created_ms = i->created_ms,
                            .updated_ms = i->updated_ms,
                            .finished_ms = i->finished_ms};
    return t->c.store->put_build(t->c.store, &row, e);
}

void build_put_or_log(struct templates *t, const struct build *b)
{
    struct pd_err e;
    if (build_put(t, b, &e) < 0)
        log_warn("build.store", "id=%s error=%s", b->info.id, e.msg);
}

void build_free(struct build *b)
{
    if (b)
        free(b->settings);
    free(b);
}

/* Takes it out of the list, and its row and log away. What it has left is swept later. */
void build_forget(struct templates *t, struct build *b)
{
    struct pd_err e;
    for (struct build **at = &t->builds; *at; at = &(*at)->next)
        if (*at == b) {
            *at = b->next;
            break;
        }
    if (t->c.store->delete_build(t->c.store, b->info.id, &e) < 0)
        log_warn("build.forget", "id=%s error=%s", b->info.id, e.msg);
    build_log_remove(t->dir, b->info.id);
    build_free(b);
}

static void copy(char *out, size_t size, const char *from)
{
    snprintf(out, size, "%s", from);
}
#define COPY(to, from) copy(to, sizeof(to), from)

static int load(const struct build_row *r, void *arg)
{
    struct templates *t = arg;
    struct build *b = calloc(1, sizeof *b);
    if (!b)
        return -1;

    struct build_info *i = &b->info;
    COPY(i->id, r->id);
    COPY(i->template_id, r->template_id);
    COPY(i->tenant, r->tenant);
    COPY(i->name, r->name);
    COPY(i->tags, r->tags);
    COPY(i->made_by, r->made_by);
    COPY(i->provider, r->provider);
    COPY(i->base, r->base);
    COPY(i->snapshot, r->snapshot);
    COPY(i->step, r->step);
    COPY(i->message, r->message);
    i->state = (unsigned)r->state <= BUILD_FAILED ? (enum build_state)r->state : BUILD_FAILED;
    i->profile = (unsigned)r->profile < PROFILE_COUNT ? (enum profile)r->profile : PROFILE_STRICT;
    i->cpu_milli = r->cpu_milli;
    i->memory = r->memory;
    i->size = r->size;
    i->created_ms = r->created_ms;
    i->updated_ms = r->updated_ms;
    i->finished_ms = r->finished_ms;
    b->settings = strdup(r->settings);

    b->next = t->builds; /* rows come oldest first */
    t->builds = b;
    return 0;
}

/* The sandboxes of builds of earlier daemons. */
static int end_left(struct session *s, void *arg)
{
    const struct templates *t = arg;
    struct session_info i;
    struct pd_err e;

    session_get(s, &i);
    if (strncmp(i.template_name, "build/", 6) != 0)
        return 0;
    for (const struct build *b = t->builds; b; b = b->next)
        if (b->info.state == BUILD_BUILDING && !strcmp(b->info.id, i.template_name + 6) &&
            session_end(s, END_KILLED, "its build was interrupted", &e) < 0)
            log_warn("build.end", "id=%s error=%s", i.id, e.msg);
    return 0;
}

int templates_adopt(struct templates *t, struct pd_err *e)
{
    if (t->c.store->each_build(t->c.store, load, t, e) < 0)
        return -1;

    sessions_each(t->c.sessions, end_left, t);
    for (struct build *b = t->builds; b; b = b->next) {
        if (b->info.state != BUILD_BUILDING)
            continue;
        b->info.state = BUILD_FAILED;
        b->info.finished_ms = b->info.updated_ms = time_now_ms();
        snprintf(b->info.message, sizeof b->info.message,
                 "the server ended while it was built: build it again");
        build_put_or_log(t, b);
    }
    return 0;
}
