/* Copies of named roots. A copier is a worker that does nothing else, started when the first copy
 * is asked for: it may be busy for minutes. It stops and starts the jail itself; only when it dies
 * over a copy does another worker start the jail again. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/container_group.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>

static const struct wire_id no_jail;

/* Puts the client's request into a chore that is empty so far. */
static int fill(struct keeper *k, const struct client *c, const struct frame *f, struct chore *n,
                struct pd_err *e)
{
    struct msg_copy_root m;

    if (msg_copy_root_decode(&f->payload, &m, e) < 0)
        return -1;
    if (!m.from[0] || !m.to[0] || !strcmp(m.from, m.to))
        return pd_fail(e, PD_INVALID, "a copy needs two names of roots");
    if (spec_check_root_name(m.from, e) < 0 || spec_check_root_name(m.to, e) < 0)
        return -1;
    if (c->limited && (!root_is_servers(m.from) || !root_is_servers(m.to)))
        return pd_fail(e, PD_DENIED, "only root may copy root '%.63s' to '%.63s'", m.from, m.to);

    if (!wire_id_equal(m.jail, no_jail)) {
        const struct kjail *j = jail_find(k, m.jail);
        if (!j || j->state != JAIL_RUNNING)
            return pd_fail(e, PD_NOT_FOUND, "there is no such jail");
        if (!j->root_name || strcmp(j->root_name, m.from) != 0)
            return pd_fail(e, PD_INVALID, "the jail does not use the root '%.63s'", m.from);
        n->jail_id = m.jail;
    }

    snprintf(n->what, sizeof n->what, "%s", m.from);
    snprintf(n->to, sizeof n->to, "%s", m.to);
    n->until = deadline_in(m.patience < COPY_PATIENCE ? m.patience : COPY_PATIENCE);

    return 0;
}

/* Another copier, if all are busy and there may be one more. */
static void add_copier(struct keeper *k)
{
    unsigned copiers = 0;

    for (unsigned i = 0; i < k->worker_count; i++) {
        const struct worker *w = &k->workers[i];
        if (w->copies && !w->chore)
            return;
        copiers += w->copies != 0;
    }

    if (copiers == COPIERS_MAX || k->worker_count == WORKERS_MAX)
        return;

    struct worker *w = &k->workers[k->worker_count++];
    *w = (struct worker){.sock = -1, .copies = 1};
    if (worker_start(k, w) < 0)
        w->restart_at = deadline_in(RESTART_AFTER);
}

void copy_request(struct keeper *k, struct client *c, const struct frame *f)
{
    struct pd_err e;
    struct chore *n = NULL;
    int r = -1;

    if (k->stopping)
        pd_fail(&e, PD_CAPACITY, "the keeper is about to end");
    else if (k->chore_count >= CHORES_MAX || !(n = calloc(1, sizeof *n)))
        pd_fail(&e, PD_CAPACITY, "%u chores are waiting", k->chore_count);
    else
        r = fill(k, c, f, n, &e);

    if (r < 0) {
        free(n);
        client_send_error(k, c, f->head.id, &e);
        return;
    }

    n->type = WIRE_COPY_ROOT;
    n->client = c->serial;
    n->request = f->head.id;
    chore_add(k, n);
    add_copier(k);
}

/* A container's group is the engine's, but in the hybrid layout, where it has one of ours. */
static bool is_frozen(struct keeper *k, const struct kjail *j)
{
    const struct cgroup_host *h = keeper_cgroups(k);
    if (j->is_far)
        return false;
    return k->kind->is_foreign && h->layout != CGROUP_HYBRID
               ? container_is_frozen(j->pid, h->layout)
               : cgroup_is_frozen(h, j->name);
}

int copy_send(struct keeper *k, struct worker *w, struct chore *c)
{
    struct pd_err e;
    auto_fd pidfd = -1;
    struct msg_copy m = {.from = c->what, .to = c->to, .jail = ""};

    const struct kjail *j = wire_id_equal(c->jail_id, no_jail) ? NULL : jail_find(k, c->jail_id);
    e.msg[0] = 0;

    if (deadline_passed(c->until)) {
        pd_fail(&e, PD_TIMEOUT, "the copy waited too long for others");
    } else if (!wire_id_equal(c->jail_id, no_jail)) {
        if (!j || j->state != JAIL_RUNNING)
            pd_fail(&e, PD_LOST, "the sandbox ended before its root was copied");
        else if ((pidfd = (int)syscall(SYS_pidfd_open, j->pid, 0)) < 0)
            pd_fail_sys(&e, "watch the sandbox's first process");
    }

    if (e.msg[0]) {
        copy_done(k, c, &e, 0);
        return -1;
    }

    if (j) {
        /* Somebody who paused it wants it to stay so. */
        c->froze = !is_frozen(k, j);
        memcpy(c->jail, j->name, sizeof c->jail);
        m.jail = c->jail;
        m.freeze = c->froze != 0;
        m.init_pid = j->pid;
    }

    m.patience = c->until - clock_now();
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    msg_copy_encode(&out, &m);
    if (worker_send(w, WIRE_COPY, c->request, &out, &pidfd, pidfd >= 0 ? 1 : 0) < 0) {
        chore_add(k, c);
        return -1;
    }

    w->deadline = c->until;
    return 0;
}

void copy_done(struct keeper *k, struct chore *c, const struct pd_err *e, int died)
{
    struct client *client = client_find(k, c->client);
    struct pd_err late;
    if (e && died && deadline_passed(c->until)) {
        pd_fail(&late, PD_TIMEOUT, "the copy took too long and was given up");
        e = &late;
    }

    if (client && e)
        client_send_error(k, client, c->request, e);
    else if (client)
        client_send_done(k, client, c->request);

    if (died && c->froze) {
        c->type = WIRE_THAW;
        c->tries = 0;
        c->request = wire_id_new();
        chore_add(k, c);
    } else {
        chore_free(c);
    }
}

void copies_end(struct keeper *k, uint64_t client)
{
    for (struct chore **at = &k->chores; *at;) {
        struct chore *c = *at;
        if (c->type != WIRE_COPY_ROOT || (client && c->client != client)) {
            at = &c->next;
            continue;
        }

        *at = c->next;
        k->chore_count--;
        chore_free(c);
    }

    for (unsigned i = 0; i < k->worker_count; i++) {
        const struct worker *w = &k->workers[i];
        if (w->chore && w->chore->type == WIRE_COPY_ROOT && (!client || w->chore->client == client))
            worker_kill(w);
    }
}
