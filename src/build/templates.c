/* How this works: what is known of builds is a list and rows of the store, under one lock (rows.c).
 * A build that is under way is a job as well (jobs.c). What builds leave are layers of the session
 * layer; which of them somebody needs follows from the list. */
#include "build/templates_in.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/snapshots.h"
#include "store/store.h"
#include "telemetry/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const char *build_state_name(enum build_state s)
{
    static const char *const names[] = {"waiting", "building", "ready", "error"};
    return names[s];
}

static void copy(char *out, size_t size, const char *from)
{
    snprintf(out, size, "%s", from);
}
#define COPY(to, from) copy(to, sizeof(to), from)

/* ---- what is left of builds ---- */

static bool is_needed(const struct templates *t, const char *layer)
{
    for (const struct build *b = t->builds; b; b = b->next)
        if (!strcmp(b->info.snapshot, layer))
            return true;
    for (const struct job *j = t->jobs; j; j = j->next)
        if (!strcmp(j->layer, layer) || (j->plan && !strcmp(j->plan->snapshot, layer)))
            return true;
    return false;
}

bool templates_is_going(const struct templates *t, const char *layer)
{
    for (const struct sweeping *w = t->sweeping; w; w = w->next)
        for (unsigned i = 0; i < w->count; i++)
            if (!strcmp(w->layers[i].id, layer))
                return true;
    return false;
}

/* Layers that no build needs, but for the youngest. Which ones is decided under the lock, and a
 * build takes none of these up any more; they are deleted without it. */
void templates_sweep(struct templates *t, const char *tenant, unsigned keep)
{
    struct snapshot_info *all = calloc(LAYERS_MAX, sizeof *all);
    struct pd_err e;
    unsigned kept = 0, going = 0;
    if (!all)
        return; /* the next build's end tries again */

    lock_take(&t->lock);
    unsigned count = layers_list(t->c.sessions, tenant, all);
    for (unsigned i = 0; i < count; i++)
        if (!is_needed(t, all[i].id) && kept++ >= keep && !templates_is_going(t, all[i].id))
            all[going++] = all[i];
    struct sweeping own = {.next = t->sweeping, .layers = all, .count = going};
    t->sweeping = &own;
    lock_release(&t->lock);

    for (unsigned i = 0; i < going; i++)
        if (layer_delete(t->c.sessions, tenant, all[i].id, &e) < 0 && e.code != PD_NOT_FOUND)
            log_warn("build.sweep", "layer=%s error=%s", all[i].id, e.msg);

    lock_take(&t->lock);
    struct sweeping **at = &t->sweeping;
    while (*at != &own)
        at = &(*at)->next;
    *at = own.next;
    lock_release(&t->lock);
    free(all);
}

/* Older builds of this template that nothing leads to. With the lock held. */
void templates_prune(struct templates *t, const struct build *newest)
{
    unsigned failed = 0;
    for (struct build *b = t->builds, *next; b; b = next) {
        next = b->next;
        if (b == newest || b->job || strcmp(b->info.template_id, newest->info.template_id) != 0)
            continue;
        bool lost =
            b->info.state == BUILD_READY && !b->info.tags[0] && newest->info.state == BUILD_READY;
        failed += b->info.state == BUILD_FAILED;
        if (lost || (b->info.state == BUILD_FAILED && failed > BUILDS_FAILED))
            build_forget(t, b);
    }
}

/* ---- finding ---- */

static bool is_of(const struct build *b, const char *tenant, const char *id_or_name)
{
    return !strcmp(b->info.tenant, tenant) &&
           (!strcmp(b->info.template_id, id_or_name) || !strcmp(b->info.name, id_or_name));
}

static struct build *find_newest(struct templates *t, const char *tenant, const char *id_or_name)
{
    for (struct build *b = t->builds; b; b = b->next)
        if (is_of(b, tenant, id_or_name))
            return b;
    return NULL;
}

struct build *build_find_in(struct templates *t, const char *tenant, const char *id_or_name,
                            const char *build, struct pd_err *e)
{
    for (struct build *b = t->builds; b; b = b->next)
        if (!strcmp(b->info.id, build) && is_of(b, tenant, id_or_name))
            return b;
    pd_fail(e, PD_NOT_FOUND, "there is no build '%.40s' of a template '%.80s'", build, id_or_name);
    return NULL;
}

static int template_fail(const char *text, struct pd_err *e)
{
    return pd_fail(e, PD_NOT_FOUND, "there is no template '%.80s'", text);
}

static struct build *find_tagged(struct templates *t, const char *tenant, const char *text,
                                 struct pd_err *e)
{
    char name[64];
    size_t len = strcspn(text, ":");
    const char *tag = text[len] ? text + len + 1 : "default";
    auto_buf tags = BUF_INIT(200);
    bool known = false;

    if (len >= sizeof name) {
        template_fail(text, e);
        return NULL;
    }
    snprintf(name, sizeof name, "%.*s", (int)len, text);

    for (struct build *b = t->builds; b; b = b->next) {
        if (!is_of(b, tenant, name))
            continue;
        known = true;
        if (b->info.state != BUILD_READY)
            continue;
        if (build_has_tag(&b->info, tag))
            return b;
        size_t n;
        for (const char *at = b->info.tags; (n = tag_next(&at)); at += n)
            buf_printf(&tags, "%s%.*s", tags.len ? ", " : "", (int)n, at);
    }

    if (!known)
        template_fail(text, e);
    else if (tags.len)
        pd_fail(e, PD_NOT_FOUND, "template '%.63s' has no tag '%.63s'; it has %s", name, tag,
                buf_cstr(&tags) ? buf_cstr(&tags) : "");
    else
        pd_fail(e, PD_NOT_FOUND, "template '%.63s' has no build that is ready", name);
    return NULL;
}

unsigned builds_list(struct templates *t, const char *tenant, const char *template_id,
                     struct build_info *ret, unsigned limit)
{
    unsigned count = 0;
    lock_take(&t->lock);
    for (const struct build *b = t->builds; b && count < limit; b = b->next)
        if (!strcmp(b->info.tenant, tenant) &&
            (!template_id || !strcmp(b->info.template_id, template_id)))
            ret[count++] = b->info;
    lock_release(&t->lock);
    return count;
}

int template_newest(struct templates *t, const char *tenant, const char *id_or_name,
                    struct build_info *ret, struct pd_err *e)
{
    lock_take(&t->lock);
    const struct build *b = find_newest(t, tenant, id_or_name);
    if (b)
        *ret = b->info;
    lock_release(&t->lock);
    return b ? 0 : template_fail(id_or_name, e);
}

int build_find(struct templates *t, const char *tenant, const char *id_or_name, const char *build,
               struct build_info *ret, struct pd_err *e)
{
    lock_take(&t->lock);
    const struct build *b = build_find_in(t, tenant, id_or_name, build, e);
    if (b)
        *ret = b->info;
    lock_release(&t->lock);
    return b ? 0 : -1;
}

int template_resolve(struct templates *t, const char *tenant, const char *text,
                     struct build_info *ret, struct pd_err *e)
{
    lock_take(&t->lock);
    const struct build *b = find_tagged(t, tenant, text, e);
    if (b)
        *ret = b->info;
    lock_release(&t->lock);
    return b ? 0 : -1;
}

void template_use_done(struct template_use *u)
{
    build_context_done(&u->context);
    free(u->start);
    free(u->ready);
    *u = (struct template_use){0};
}

static int read_settings(const char *text, struct template_use *u)
{
    json_auto_t *all = json_loads(text ? text : "", 0, NULL);
    const char *start = json_string_value(json_object_get(all, "start"));
    const char *ready = json_string_value(json_object_get(all, "ready"));
    u->disk = (uint64_t)json_integer_value(json_object_get(all, "disk"));
    u->files = (uint64_t)json_integer_value(json_object_get(all, "files"));

    if (!all || build_context_read(&u->context, text) < 0 ||
        (start && !(u->start = strdup(start))) || (ready && !(u->ready = strdup(ready))))
        return -1;
    return 0;
}

int template_use(struct templates *t, const char *tenant, const char *text,
                 struct template_use *ret, struct pd_err *e)
{
    struct template_use u = {.context = BUILD_CONTEXT_INIT};

    lock_take(&t->lock);
    const struct build *b = find_tagged(t, tenant, text, e);
    if (b)
        u.build = b->info;
    int r = !b ? -1
            : read_settings(b->settings, &u) < 0
                ? pd_fail(e, PD_INTERNAL, "the settings of build %s cannot be read", u.build.id)
                : 0;
    lock_release(&t->lock);

    if (r < 0)
        template_use_done(&u);
    else
        *ret = u;
    return r;
}

/* ---- changing ---- */

static void new_uuid(char out[BUILD_ID_LEN + 1])
{
    uint8_t r[16];
    random_bytes(r, sizeof r);
    r[6] = (uint8_t)((r[6] & 0x0f) | 0x40);
    r[8] = (uint8_t)((r[8] & 0x3f) | 0x80);
    snprintf(out, BUILD_ID_LEN + 1,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", r[0], r[1],
             r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], r[14],
             r[15]);
}

/* Room for one more row: the oldest that nothing leads to goes. With the lock held. */
static int make_room(struct templates *t, const char *tenant, struct pd_err *e)
{
    struct build *oldest = NULL;
    unsigned count = 0;
    for (struct build *b = t->builds; b; b = b->next) {
        if (strcmp(b->info.tenant, tenant) != 0)
            continue;
        count++;
        if (!b->job && !(b->info.state == BUILD_READY && b->info.tags[0]))
            oldest = b;
    }
    if (count < BUILDS_MAX)
        return 0;
    if (!oldest)
        return pd_fail(e, PD_CAPACITY, "there are %u builds of templates: delete some", count);
    build_forget(t, oldest);
    return 0;
}

int build_new(struct templates *t, const char *tenant, const char *made_by, const char *name,
              const struct msg_list *tags, uint64_t cpu_milli, uint64_t memory,
              struct build_info *ret, struct pd_err *e)
{
    struct build *b = calloc(1, sizeof *b);
    uint32_t pos = 0;
    int r = 0;
    if (!b)
        return pd_fail(e, PD_CAPACITY, "no memory for a build");
    if (!plan_is_name(name, strlen(name)))
        r = pd_fail(e, PD_INVALID,
                    "'%.80s' is no name of a template: letters, digits and '._-', at most 63, none "
                    "of '._-' in front",
                    name);

    struct build_info *i = &b->info;
    for (const char *tag; r == 0 && (tag = msg_list_next(tags, &pos));)
        r = tag_add(i, tag, e);
    if (r == 0 && !i->tags[0])
        r = tag_add(i, "default", e);
    if (r < 0) {
        build_free(b);
        return -1;
    }

    new_uuid(i->id);
    id_sandbox(i->template_id);
    COPY(i->tenant, tenant);
    COPY(i->made_by, made_by);
    COPY(i->name, name);
    i->cpu_milli = cpu_milli;
    i->memory = memory;
    i->created_ms = i->updated_ms = time_now_ms();

    lock_take(&t->lock);
    r = make_room(t, tenant, e);
    const struct build *known = find_newest(t, tenant, name);
    if (r == 0 && known)
        memcpy(i->template_id, known->info.template_id, sizeof i->template_id);
    if (r == 0 && known && strcmp(known->info.name, name) != 0)
        r = pd_fail(e, PD_CONFLICT, "'%.63s' is the id of another template", name);
    if (r == 0)
        r = build_put(t, b, e);
    if (r == 0) {
        b->next = t->builds;
        t->builds = b;
        *ret = *i;
    }
    lock_release(&t->lock);

    if (r < 0)
        build_free(b);
    return r;
}

int tags_assign(struct templates *t, const char *tenant, const char *target,
                const struct msg_list *tags, struct build_info *ret, struct pd_err *e)
{
    uint32_t pos = 0;

    lock_take(&t->lock);
    struct build *b = find_tagged(t, tenant, target, e);
    struct build_info next = {0};
    int r = !b ? -1 : 0;
    if (b)
        next = b->info;
    for (const char *tag; r == 0 && (tag = msg_list_next(tags, &pos));)
        r = tag_add(&next, tag, e);

    if (r == 0) {
        next.updated_ms = time_now_ms();
        struct build_info before = b->info;
        b->info = next;
        r = build_put(t, b, e);
        if (r < 0)
            b->info = before;
    }
    pos = 0;
    for (const char *tag; r == 0 && (tag = msg_list_next(tags, &pos));)
        for (struct build *o = t->builds; o; o = o->next)
            if (o != b && o->info.state == BUILD_READY && build_has_tag(&o->info, tag) &&
                !strcmp(o->info.template_id, b->info.template_id)) {
                tag_remove(&o->info, tag);
                build_put_or_log(t, o);
            }
    if (r == 0)
        *ret = b->info;
    lock_release(&t->lock);
    return r;
}

int tags_remove(struct templates *t, const char *tenant, const char *name,
                const struct msg_list *tags, struct pd_err *e)
{
    lock_take(&t->lock);
    bool known = find_newest(t, tenant, name) != NULL;
    for (struct build *b = t->builds; b; b = b->next) {
        uint32_t pos = 0;
        bool changed = false;
        if (!is_of(b, tenant, name))
            continue;
        for (const char *tag; (tag = msg_list_next(tags, &pos));)
            if (build_has_tag(&b->info, tag)) {
                tag_remove(&b->info, tag);
                changed = true;
            }
        if (changed)
            build_put_or_log(t, b);
    }
    lock_release(&t->lock);
    return known ? 0 : template_fail(name, e);
}

int template_delete(struct templates *t, const char *tenant, const char *id_or_name,
                    struct pd_err *e)
{
    bool known = false;
    char id[SESSION_ID_LEN + 1] = "";

    lock_take(&t->lock);
    struct build *first = find_newest(t, tenant, id_or_name);
    if (first)
        memcpy(id, first->info.template_id, sizeof id);
    for (struct build *b = t->builds, *next; b; b = next) {
        next = b->next;
        if (!id[0] || strcmp(b->info.tenant, tenant) != 0 || strcmp(b->info.template_id, id) != 0)
            continue;
        known = true;
        struct job *j = b->job;
        b->job = NULL;
        if (j)
            job_forget(t, j, "its template was deleted");
        build_forget(t, b);
    }
    lock_release(&t->lock);

    if (!known)
        return template_fail(id_or_name, e);
    templates_sweep(t, tenant, LAYERS_KEPT);
    return 0;
}

/* ---- the whole ---- */

struct templates *templates_new(const struct templates_config *c, struct pd_err *e)
{
    struct templates *t = calloc(1, sizeof *t);
    char path[SPEC_PATH_MAX + 16];
    if (!t) {
        pd_fail(e, PD_CAPACITY, "no memory for templates");
        return NULL;
    }

    t->c = *c;
    t->dir = -1;
    lock_init(&t->lock, LOCK_TEMPLATES);
    cond_init(&t->idle);
    snprintf(path, sizeof path, "%s/builds", c->state_dir);
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        t->dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (t->dir < 0)
        pd_fail_sys(e, "open %s", path);
    else if ((t->files = files_new(t->dir, e)))
        return t;

    templates_free(t);
    return NULL;
}

void templates_free(struct templates *t)
{
    if (!t)
        return;
    while (t->builds) {
        struct build *next = t->builds->next;
        build_free(t->builds);
        t->builds = next;
    }
    files_free(t->files);
    fd_done(&t->dir);
    pthread_cond_destroy(&t->idle);
    lock_done(&t->lock);
    free(t);
}

struct files *templates_files(struct templates *t)
{
    return t->files;
}

unsigned build_log_entries(struct templates *t, const char *build, unsigned from, unsigned limit,
                           void (*each)(void *arg, uint64_t ms, const char *level, const char *step,
                                        const char *text),
                           void *arg)
{
    return build_log_read(t->dir, build, from, limit, each, arg);
}

void templates_forget_cache(struct templates *t, const char *tenant)
{
    templates_sweep(t, tenant, 0);
}
