/* Chores: what clients ask for and a worker does, because it reads or writes files that may make it
 * wait. A first-in-first-out list; a removal that fails (its root is still in use) is tried again
 * some times. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/container_group.h"
#include "jail/promises.h"
#include "jail/store.h"

#include <fcntl.h>
#include <sys/vfs.h>

static int set(char *to, size_t size, const char *from, struct pd_err *e)
{
    if (!from[0] || strlen(from) >= size || strchr(from, '/') || from[0] == '.')
        return pd_fail(e, PD_INVALID, "'%.60s' is no name of a root or of a command's group", from);
    memcpy(to, from, strlen(from) + 1);
    return 0;
}

int root_is_servers(const char *name)
{
    return !strncmp(name, KEEPER_OWNED_ROOT, strlen(KEEPER_OWNED_ROOT)) ||
           !strncmp(name, KEEPER_OWNED_COPY, strlen(KEEPER_OWNED_COPY));
}

/* Only a backend whose boxes somebody else makes has something to look at. */
static int fill_check(struct keeper *k, const struct frame *f, struct chore *c, struct pd_err *e)
{
    struct msg_destroy m;
    if (msg_destroy_decode(&f->payload, &m, e) < 0)
        return -1;
    if (!k->kind->is_foreign)
        return pd_fail(e, PD_UNSUPPORTED, "provider %s has no images", k->kind->name);

    const struct kjail *j = jail_find(k, m.jail);
    if (!j || j->state != JAIL_RUNNING)
        return pd_fail(e, PD_NOT_FOUND, "there is no such jail");
    return set(c->jail, sizeof c->jail, j->name, e);
}

static int fill(struct keeper *k, const struct frame *f, int limited, struct chore *c,
                struct pd_err *e)
{
    if (c->type == WIRE_CHECK)
        return fill_check(k, f, c, e);
    if (c->type != WIRE_KILL) {
        struct msg_key m;
        if (msg_key_decode(&f->payload, &m, e) < 0)
            return -1;
        if (limited && !root_is_servers(m.key))
            return pd_fail(e, PD_DENIED, "only root may remove or keep root '%.63s'", m.key);
        /* It may become a part of a path in an engine's API, not only a directory. */
        return spec_check_root_name(m.key, e) < 0 ? -1 : set(c->what, sizeof c->what, m.key, e);
    }

    struct msg_kill m;
    if (msg_kill_decode(&f->payload, &m, e) < 0 || set(c->what, MSG_NAME_MAX + 1, m.group, e) < 0)
        return -1;

    const struct kjail *j = jail_find(k, m.jail);
    if (!j || j->state != JAIL_RUNNING)
        return pd_fail(e, PD_NOT_FOUND, "there is no such jail");

    return set(c->jail, sizeof c->jail, j->name, e);
}

static void chore_again(struct keeper *k, struct chore *c)
{
    struct chore **at = &k->chores;
    while (*at)
        at = &(*at)->next;

    c->next = NULL;
    c->not_before = deadline_in(CHORE_RETRY);
    *at = c;
    k->chore_count++;
}

void chore_add(struct keeper *k, struct chore *c)
{
    chore_again(k, c);
    c->not_before = 0;
}

/* The removal of a root that an engine keeps. */
static bool is_promise(const struct keeper *k, const struct chore *c)
{
    return c->type == WIRE_REMOVE_ROOT && k->kind->is_foreign;
}

static int chore_new(struct keeper *k, const struct client *c, const struct frame *f,
                     struct pd_err *e)
{
    if (k->chore_count >= CHORES_MAX)
        return pd_fail(e, PD_CAPACITY, "%u chores are waiting", k->chore_count);

    struct chore *n = calloc(1, sizeof *n);
    if (!n)
        return pd_fail(e, PD_CAPACITY, "no memory");

    n->type = f->head.type;
    n->client = c->serial;
    n->request = f->head.id;
    if (fill(k, f, c->limited, n, e) < 0) {
        free(n);
        return -1;
    }

    /* Should this keeper die before it is done, the next one takes the root for a leftover. */
    if (n->type == WIRE_REMOVE_ROOT)
        store_unkeep_root(k->config->state_dir, n->what);

    /* The client is answered before the root is gone, and does not ask again. */
    struct pd_err ignored;
    if (is_promise(k, n))
        promise_make(k->config->state_dir, n->what);
    else if (n->type == WIRE_REMOVE_ROOT && root_is_servers(n->what))
        (void)store_doom_root(k->config->state_dir, n->what, &ignored);

    chore_add(k, n);
    return 0;
}

static void remove_promised(const char *name, void *arg)
{
    struct keeper *k = arg;
    struct pd_err e;

    struct chore *n = k->chore_count < CHORES_MAX ? calloc(1, sizeof *n) : NULL;
    if (!n)
        return;

    n->type = WIRE_REMOVE_ROOT;
    n->request = wire_id_new();
    if (set(n->what, sizeof n->what, name, &e) < 0) {
        free(n);
        return;
    }

    chore_add(k, n);
}

static void remove_old(const char *name, const char *kind, void *arg)
{
    const struct keeper *k = arg;

    (void)kind;
    const char *state_dir = k->config->state_dir;
    int forgotten = !strncmp(name, KEEPER_OWNED_ROOT, strlen(KEEPER_OWNED_ROOT)) &&
                    !store_is_kept(state_dir, name);
    int doomed = root_is_servers(name) && store_is_doomed(state_dir, name);
    if (forgotten || doomed)
        remove_promised(name, arg);
}

void chores_for_old_roots(struct keeper *k)
{
    struct pd_err e;

    /* A private keeper shares the directory with others, whose business they are. One that is in
     * use stays: it is locked. */
    if (!k->config->socket_path)
        return;
    if (k->kind->is_jail)
        (void)store_list_roots(k->config->state_dir, remove_old, k, &e);
    if (k->kind->is_foreign)
        promises_each(k->config->state_dir, remove_promised, k);
}

/* Is the root that is to be removed still mounted for a jail that has died? Its sweep comes first.
 */
static bool is_mounted(const struct keeper *k, const struct chore *c)
{
    if (c->type != WIRE_REMOVE_ROOT)
        return false;
    for (const struct kjail *j = k->watched; j; j = j->watched_next)
        if (j->state == JAIL_DEAD && j->root_name && !strcmp(j->root_name, c->what))
            return true;
    return false;
}

struct chore *chore_take(struct keeper *k, const struct worker *w)
{
    for (struct chore **at = &k->chores; *at; at = &(*at)->next) {
        struct chore *c = *at;
        if ((c->type == WIRE_REMOVE_ROOT && !w->sweeps) ||
            (c->type == WIRE_COPY_ROOT) != (w->copies != 0) ||
            (c->not_before && !deadline_passed(c->not_before)) || is_mounted(k, c) ||
            steer_is_begun(k, c))
            continue;
        *at = c->next;
        k->chore_count--;
        return c;
    }

    return NULL;
}

deadline chore_next_due(const struct keeper *k)
{
    deadline next = DEADLINE_NONE;
    for (const struct chore *c = k->chores; c; c = c->next)
        if (c->not_before && c->not_before < next && !deadline_passed(c->not_before))
            next = c->not_before;
    return next;
}

static void chore_encode(const struct chore *c, struct buf *out)
{
    struct msg_sweep strike = {.name = c->jail, .group = c->what};
    struct msg_key root = {.key = c->what};

    if (c->type == WIRE_THAW || c->type == WIRE_CHECK)
        strike.group = "";
    if (c->type == WIRE_KILL || c->type == WIRE_THAW || c->type == WIRE_CHECK)
        msg_sweep_encode(out, &strike);
    else
        msg_key_encode(out, &root);
}

void chore_free(struct chore *c)
{
    free(c);
}

/* Size and use of the jail's root, as its init sees them. A directory without a quota tells of the
 * whole disk, which is nobody's business. */
static void read_disk(const struct keeper *k, const struct kjail *j, struct msg_usage *u)
{
    char path[40];
    struct statfs fs;

    snprintf(path, sizeof path, "/proc/%d/root", (int)j->pid);
    if (j->pid <= 0 || !k->kind->is_jail || (k->rootless && j->root_name) || statfs(path, &fs) < 0)
        return;

    u->disk_total = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
    u->disk_used = (uint64_t)(fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
}

/* Children of an init that are looked at: the one that waits is among the last. */
#define NEWEST 8

static uint32_t uid_of(const char *pid)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%.20s/status", pid);
    const char *line =
        fd_read_file(AT_FDCWD, path, text, sizeof text) > 0 ? strstr(text, "\nUid:") : NULL;
    return line ? (uint32_t)strtoul(line + sizeof "\nUid:" - 1, NULL, 10) : 0;
}

/* The children of an init that wait for the next command (init/runner.c) have its uid, as no
 * command has. They are its own doing, and not counted. */
static unsigned count_waiting(pid_t init)
{
    char path[64], text[4096], number[16];
    snprintf(number, sizeof number, "%d", (int)init);
    snprintf(path, sizeof path, "/proc/%s/task/%s/children", number, number);
    ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof text);
    uint32_t uid = n > 0 ? uid_of(number) : 0;
    unsigned waiting = 0;

    for (unsigned i = 0; i < NEWEST && n > 1 && uid; i++) {
        text[n - 1] = 0; /* a space ends each */
        while (n > 1 && text[n - 2] != ' ')
            n--;
        n--;
        waiting += uid_of(text + n) == uid;
    }
    return waiting;
}

void stats_request(struct keeper *k, struct client *c, const struct frame *f)
{
    struct pd_err e;
    struct msg_destroy m;
    const struct kjail *j = NULL;

    if (msg_destroy_decode(&f->payload, &m, &e) == 0 && !(j = jail_find(k, m.jail)))
        pd_fail(&e, PD_NOT_FOUND, "there is no such jail");
    if (!j) {
        client_send_error(k, c, f->head.id, &e);
        return;
    }

    struct cgroup_stats st = {0};
    if (j->is_far)
        ; /* the stand-in's numbers would be of this machine */
    else if (k->kind->is_foreign)
        container_usage(j->pid, keeper_cgroups(k)->layout, &st);
    else
        cgroup_read_stats(keeper_cgroups(k), j->name, &st);
    if (st.pids_now > 1 && k->kind->is_jail && !k->rootless && j->pid > 0)
        st.pids_now -= count_waiting(j->pid);

    struct msg_usage u = {.memory = st.memory_now,
                          .memory_peak = st.memory_peak,
                          .cpu_usec = st.cpu_usec,
                          .pids = st.pids_now,
                          .oom_kills = st.oom_kills,
                          .pids_refused = st.pids_refused};
    u.frozen =
        k->kind->is_foreign && !j->is_far && container_is_frozen(j->pid, keeper_cgroups(k)->layout);
    read_disk(k, j, &u);

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_usage_encode(&out, &u);
    client_send(k, c, (struct wire_head){.type = WIRE_USAGE, .id = f->head.id}, &out, NULL, 0);
}

/* Queues a chore. A removal is answered at once, everything else when a worker has done it. */
void chore_request(struct keeper *k, struct client *c, const struct frame *f)
{
    struct pd_err e;
    if (chore_new(k, c, f, &e) < 0)
        client_send_error(k, c, f->head.id, &e);
    else if (f->head.type == WIRE_REMOVE_ROOT)
        client_send_done(k, c, f->head.id);
}

/* Whether a chore that failed is. An engine may be away for long; what a keeper that ends leaves is
 * the next one's. */
static bool is_tried_again(const struct keeper *k, struct chore *c)
{
    bool last = k->stopping && k->jail_count <= k->undead_count;
    if (!last && is_promise(k, c))
        return true;
    return ++c->tries < (last ? CHORE_TRIES_LAST : CHORE_TRIES);
}

void chore_done(struct keeper *k, struct worker *w, struct frame *f)
{
    struct pd_err e;
    struct chore *done = w->chore;

    w->chore = NULL;
    int failed = !f || (f->head.type != WIRE_DONE && f->head.type != WIRE_STEERED);
    if (!f)
        pd_fail(&e, PD_LOST, "the worker died; try again");
    else if (failed)
        msg_error_raise(f, &e);

    if (done->type == WIRE_COPY_ROOT) {
        copy_done(k, done, failed ? &e : NULL, !f);
    } else if (done->type == WIRE_STEER) {
        steer_done(k, done, f, failed ? &e : NULL);
    } else if (done->type == WIRE_KILL || done->type == WIRE_KEEP_ROOT ||
               done->type == WIRE_CHECK) {
        struct client *c = client_find(k, done->client);
        if (c && failed)
            client_send_error(k, c, done->request, &e);
        else if (c)
            client_send_done(k, c, done->request);
        chore_free(done);
    } else if (failed && e.code != PD_NOT_FOUND && is_tried_again(k, done)) {
        chore_again(k, done);
    } else {
        if (is_promise(k, done) && (!failed || e.code == PD_NOT_FOUND))
            promise_keep(k->config->state_dir, done->what);
        chore_free(done);
    }
}

int chores_pending(const struct keeper *k)
{
    for (unsigned i = 0; i < k->worker_count; i++)
        if (k->workers[i].chore)
            return 1;

    return k->chores != NULL;
}

void chore_send(struct keeper *k, struct worker *w, struct chore *c)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);

    chore_encode(c, &out);
    w->chore = c;
    if (c->type == WIRE_COPY_ROOT || c->type == WIRE_STEER) {
        int r = c->type == WIRE_STEER ? steer_send(k, w, c) : copy_send(k, w, c);
        if (r < 0)
            w->chore = NULL;
        return;
    }

    if (worker_send(w, c->type == WIRE_KILL ? WIRE_STRIKE : c->type, c->request, &out, NULL, 0) <
        0) {
        w->chore = NULL;
        chore_again(k, c);
    }
}
