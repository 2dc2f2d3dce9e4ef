/* Requests of clients: jails, lists of them, descriptors to be kept.
 *
 *   CREATE   a complete kit fits: ADOPT to its init, CREATED to the client
 *            else queued -> a free builder gets BUILD -> BUILT -> CREATED to the client
 *   DESTROY  SIGKILL to init -> SIGCHLD -> GONE to the client -> SWEEP -> the uid range is free */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/ceilings.h"

#include <signal.h>

/* `cgroup_dir` is not kept: with thousands of jails every descriptor counts. */
void jail_send_created(struct keeper *k, struct client *c, const struct kjail *j, int cgroup_dir)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);

    struct msg_created m = {.rung = j->rung,
                            .init_pid = j->pid,
                            .uid_base = identity_host_id(j->slot, 0),
                            .name = j->name};
    msg_created_encode(&out, &m);

    int fds[4] = {cgroup_dir >= 0 ? cgroup_dir : k->null, j->devpts, j->gate[0], j->gate[1]};
    struct wire_head head = {.type = WIRE_CREATED,
                             .flags =
                                 (j->on_image ? BUILT_ON_IMAGE : 0) | (j->is_far ? BOX_IS_FAR : 0),
                             .id = j->id};
    client_send(k, c, head, &out, fds, j->gate[0] >= 0 ? 4 : 2);
}

/* To the maker of one that was ended before he had it. */
static void send_unmade(struct keeper *k, struct kjail *j)
{
    struct client *c = client_find(k, j->client);
    struct pd_err e;

    j->owes_error = false;
    pd_fail(&e, PD_CONFLICT, "the jail was ended while it was being made");
    if (c)
        client_send_error(k, c, j->id, &e);
}

static void send_gone(struct keeper *k, struct kjail *j, enum gone_how how, const char *why)
{
    if (j->owes_error) {
        send_unmade(k, j);
        if (!j->destroy_client)
            return;
    }

    struct client *c = client_find(k, j->destroy_client ? j->destroy_client : j->client);
    if (!c)
        return;

    struct msg_gone m = {.jail = j->id, .how = how, .why = why};
    if (j->want_stats || how != GONE_DESTROYED) {
        struct cgroup_stats st = {0};
        cgroup_read_stats(keeper_cgroups(k), j->name, &st);
        m.oom_kills = st.oom_kills;
        m.pids_refused = st.pids_refused;
        m.memory_peak = st.memory_peak;
        m.cpu_usec = st.cpu_usec;
    }

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_gone_encode(&out, &m);
    struct wire_id id = j->destroy_client ? j->destroy_request : j->id;
    client_send(k, c, (struct wire_head){.type = WIRE_GONE, .id = id}, &out, NULL, 0);
}

void jail_send_gone(struct keeper *k, struct kjail *j, enum gone_how how)
{
    j->owes_gone = false;
    send_gone(k, j, how, "");
}

void jail_tell_why(struct keeper *k, struct kjail *j, const char *why)
{
    if (!j->owes_gone)
        return;
    j->owes_gone = false;
    send_gone(k, j, j->doomed ? GONE_DESTROYED : GONE_DIED, why);
}

void jail_doom(struct keeper *k, struct kjail *j)
{
    if (j->state == JAIL_QUEUED) {
        jail_forget(k, j);
        return;
    }

    if (wire_id_equal(j->id, k->newest))
        k->first_command_at = 0;

    bool news = !j->doomed;
    j->doomed = 1;
    if (j->state == JAIL_BUILDING && news)
        worker_cancel(k, j);
    if (j->state != JAIL_RUNNING && j->state != JAIL_KIT)
        return; /* still being built: ended when BUILT comes; or dying already */

    /* A root that somebody may want next: as long as init lives this is not the last reference, so
     * it is init's end that waits for the unmounting. */
    if (j->root_name && !j->root_goes)
        fd_done(&j->mntns);

    kit_leave(k, j);
    j->state = JAIL_DYING;
    jail_watch(k, j);
    j->struck = 0;
    j->deadline = deadline_in(STRIKE_AFTER);
    jail_signal_init(k, j, k->kind->ends_itself ? SIGTERM : SIGKILL);
}

static void do_hello(struct keeper *k, struct client *c, const struct wire_head *head)
{
    struct msg_welcome m = {.instance = k->instance, .layout = keeper_cgroups(k)->layout};
    char missing[256];

    m.rung = builder_best_rung(k->rootless, keeper_cgroups(k)->layout != CGROUP_NONE,
                               keeper_cgroups(k)->why, missing, sizeof missing);
    if (k->kind->rung != RUNG_COUNT) {
        m.rung = k->kind->rung;
        snprintf(missing, sizeof missing, "provider %s", k->kind->name);
    }
    m.missing = missing;
    c->epoch = ++k->epoch;
    safe_tell_self(k);

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_welcome_encode(&out, &m);
    client_send(k, c, (struct wire_head){.type = WIRE_WELCOME, .id = head->id}, &out, NULL, 0);

    c->wants_trouble = head->flags & HELLO_TELL;
    if (k->trouble[0])
        client_send_trouble(k, c);
}

/* A server without privilege may ask for less than root. */
static int may_have(const struct client *c, const struct spec *s, unsigned fds, struct pd_err *e)
{
    if (!c->limited)
        return 0;
    if (s->bind_count || s->root_dir[0] || s->network == NETWORK_HOST || fds != 2)
        return pd_fail(e, PD_DENIED, "only root may have the host's directories or network");
    if (s->root_name[0] && strncmp(s->root_name, KEEPER_OWNED_ROOT, strlen(KEEPER_OWNED_ROOT)) != 0)
        return pd_fail(e, PD_DENIED,
                       "root '%.63s': only root may use one that does not begin "
                       "with '" KEEPER_OWNED_ROOT "'",
                       s->root_name);

    return 0;
}

/* A field that would be ignored is refused. */
static int check_options(const struct keeper *k, const struct spec *s, struct pd_err *e)
{
    if (s->network == NETWORK_GATE && !k->kind->is_jail)
        return pd_fail(e, PD_UNSUPPORTED, "network: provider %s has no way out by rules",
                       k->kind->name);
    if (!s->options[0] || k->kind->takes_options)
        return 0;
    return pd_fail(e, PD_UNSUPPORTED, "options '%.60s': provider %s takes none, leave them away",
                   s->options, k->kind->name);
}

int jail_files_suffice(const struct keeper *k)
{
    unsigned reserve = (unsigned)ceilings_files_reserve(fd_limit());
    unsigned making = k->queued + k->worker_count;

    return fd_spare(k->epoll, reserve + making * SANDBOX_FILES);
}

static void do_create(struct keeper *k, struct client *c, struct frame *f)
{
    struct pd_err e;
    struct msg_create m;

    struct kjail *known = jail_find(k, f->head.id);
    if (known) {
        /* A repeated request: the first one's answer, now or when it is there. */
        known->client = c->serial;
        auto_fd dir = jail_group_open(k, known);
        pd_fail(&e, PD_CONFLICT, "this jail was made before and has ended");
        if (known->state == JAIL_RUNNING)
            jail_send_created(k, c, known, dir);
        else if (known->state != JAIL_QUEUED && known->state != JAIL_BUILDING)
            client_send_error(k, c, f->head.id, &e);
        return;
    }

    struct kjail *j = NULL;
    if (msg_create_decode(&f->payload, &m, &e) == 0 && spec_check(&m.spec, &e) == 0 &&
        check_options(k, &m.spec, &e) == 0) {
        if (f->payload.len > CREATE_MAX)
            pd_fail(&e, PD_INVALID, "a spec of %zu bytes: at most %u", f->payload.len, CREATE_MAX);
        else if (f->fd_count != 2 && f->fd_count != 3)
            pd_fail(&e, PD_PROTOCOL, "CREATE with %u descriptors", f->fd_count);
        else if (may_have(c, &m.spec, f->fd_count, &e) < 0)
            j = NULL;
        else if (!jail_files_suffice(k) && !kit_is_there(k, &m.spec))
            pd_fail(&e, PD_CAPACITY,
                    "the keeper has too few descriptors left for another jail: end one, or raise "
                    "its limit (LimitNOFILE of its unit, max_open_files)");
        else if (k->queued >= QUEUE_MAX)
            pd_fail(&e, PD_CAPACITY, "%u jails are waiting to be made", k->queued);
        else
            j = jail_add(k, f, c, m.spec.root_name, &e);
    }

    if (!j) {
        client_send_error(k, c, f->head.id, &e);
    } else {
        k->newest = j->id;
        k->first_command_at = deadline_in(FIRST_COMMAND);
        (void)kit_adopt(k, j, &m.spec); /* else it waits for a builder */
    }
}

static void do_destroy(struct keeper *k, struct client *c, const struct frame *f)
{
    struct pd_err e;
    struct msg_destroy m;
    struct kjail *j = NULL;

    if (msg_destroy_decode(&f->payload, &m, &e) == 0 && !(j = jail_find(k, m.jail)))
        pd_fail(&e, PD_NOT_FOUND, "there is no such jail");

    if (f->head.flags & DESTROY_UNMADE) {
        if (j && j->state == JAIL_QUEUED)
            send_unmade(k, j);
        if (j && (j->state == JAIL_QUEUED || j->state == JAIL_BUILDING))
            jail_doom(k, j);
        return;
    }

    int pending = j && (j->state == JAIL_DYING || j->state == JAIL_BUILDING);
    if (pending && client_find(k, j->destroy_client)) {
        pd_fail(&e, PD_CONFLICT, "the jail is being ended already");
        j = NULL;
    }

    if (!j) {
        client_send_error(k, c, f->head.id, &e);
        return;
    }

    j->destroy_client = c->serial;
    j->destroy_request = f->head.id;
    j->want_stats = (int)m.want_stats;
    j->root_goes = f->head.flags & DESTROY_WITH_ROOT;
    if (j->state == JAIL_UNDEAD || j->state == JAIL_QUEUED || j->state == JAIL_DEAD)
        jail_send_gone(k, j, j->state == JAIL_UNDEAD ? GONE_UNDEAD : GONE_DESTROYED);
    jail_doom(k, j);
}

/* Jails that run, or that do not die: those that LIST tells of. */
static void do_count(struct keeper *k, struct client *c, struct wire_id id)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_counted m = {0};

    for (unsigned b = 0; b < BUCKETS; b++)
        for (const struct kjail *j = k->jails[b]; j; j = j->next)
            if ((j->state == JAIL_RUNNING || j->state == JAIL_UNDEAD) &&
                (j->keep || j->client == c->serial))
                m.jails++;

    msg_counted_encode(&out, &m);
    client_send(k, c, (struct wire_head){.type = WIRE_COUNTED, .id = id}, &out, NULL, 0);
}

/* STASH, FETCH and DROP: descriptors kept for a daemon that may die. */
static void do_stash(struct keeper *k, struct client *c, struct frame *f)
{
    struct pd_err e;
    struct msg_key m;

    if (msg_key_decode(&f->payload, &m, &e) < 0) {
        client_send_error(k, c, f->head.id, &e);
        return;
    }

    struct stash *s = stash_find(k, m.key);
    switch (f->head.type) {
    case WIRE_STASH:
        if (s || stash_add(k, m.key, f) < 0) {
            pd_fail(&e, s ? PD_CONFLICT : PD_CAPACITY, "stash '%s': %s", m.key,
                    s ? "there is one with this key" : "no room");
            client_send_error(k, c, f->head.id, &e);
            return;
        }
        safe_tell_stash(k, stash_find(k, m.key));
        break;
    case WIRE_DROP:
        if (s)
            stash_remove(k, s); /* first: a new safe is told what there is */
        safe_drop_stash(k, m.key);
        break;
    default:
        if (!s) {
            pd_fail(&e, PD_NOT_FOUND, "nothing is stashed under '%s'", m.key);
            client_send_error(k, c, f->head.id, &e);
            return;
        }
        client_send(k, c, (struct wire_head){.type = WIRE_STASHED, .id = f->head.id}, NULL, s->fds,
                    s->fd_count);
        return;
    }

    client_send_done(k, c, f->head.id);
}

void client_request(struct keeper *k, struct client *c, struct frame *f)
{
    struct pd_err e;

    k->quiet_at = deadline_in(QUIET);
    switch (f->head.type) {
    case WIRE_HELLO:
        do_hello(k, c, &f->head);
        return;
    case WIRE_CREATE:
        do_create(k, c, f);
        return;
    case WIRE_DESTROY:
        do_destroy(k, c, f);
        return;
    case WIRE_STATS:
        stats_request(k, c, f);
        return;
    case WIRE_KILL:
    case WIRE_REMOVE_ROOT:
    case WIRE_KEEP_ROOT:
    case WIRE_CHECK:
        chore_request(k, c, f);
        return;
    case WIRE_COPY_ROOT:
        copy_request(k, c, f);
        return;
    case WIRE_IMAGES:
        images_request(k, c, f);
        return;
    case WIRE_STEER:
        steer_request(k, c, f);
        return;
    case WIRE_LIST:
        list_request(k, c, f->head.id);
        return;
    case WIRE_COUNT:
        do_count(k, c, f->head.id);
        return;
    case WIRE_STASH:
    case WIRE_FETCH:
    case WIRE_DROP:
        do_stash(k, c, f);
        return;
    default:
        pd_fail(&e, PD_PROTOCOL, "message type %u is not for the keeper", f->head.type);
        client_send_error(k, c, f->head.id, &e);
    }
}

void client_gone(struct keeper *k, struct client *c)
{
    for (unsigned b = 0; b < BUCKETS; b++)
        for (struct kjail *j = k->jails[b], *next; j; j = next) {
            next = j->next;
            /* Also one to keep that is not there yet: nobody was told of it, so nobody would ever
             * ask for it. */
            int unborn = j->state == JAIL_QUEUED || j->state == JAIL_BUILDING;
            if (j->client == c->serial && (!j->keep || unborn))
                jail_doom(k, j);
        }

    copies_end(k, c->serial);
    client_close(k, c);
}
