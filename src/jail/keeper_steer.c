/* A way out for a jail that runs and was made without one: a worker goes into its network namespace
 * and makes there what a jail with rules has from its birth (netns_gate.c). The keeper holds the
 * two sockets from then on, as of any other, and gives them again to whoever asks again. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <sys/syscall.h>

static void answer(struct keeper *k, struct client *c, struct wire_id request,
                   const struct kjail *j)
{
    struct wire_head head = {.type = WIRE_STEERED, .id = request};
    client_send(k, c, head, NULL, j->gate, 2);
}

static struct kjail *find(struct keeper *k, struct wire_id id, struct pd_err *e)
{
    struct kjail *j = jail_find(k, id);
    if (j && j->state == JAIL_RUNNING)
        return j;
    pd_fail(e, PD_NOT_FOUND, "there is no such jail");
    return NULL;
}

void steer_request(struct keeper *k, struct client *c, const struct frame *f)
{
    struct pd_err e;
    struct msg_destroy m;
    struct chore *n = NULL;
    struct kjail *j = msg_destroy_decode(&f->payload, &m, &e) < 0 ? NULL : find(k, m.jail, &e);

    if (j && j->gate[0] >= 0) {
        answer(k, c, f->head.id, j);
        return;
    }
    if (j && !k->kind->is_jail)
        pd_fail(&e, PD_UNSUPPORTED, "provider %s has no way out by rules", k->kind->name);
    else if (j && k->rootless) /* its network belongs to a user namespace that no worker is in */
        pd_fail(&e, PD_UNSUPPORTED,
                "without root a sandbox has a way out only if it was made with one: make one with "
                "`network`");
    else if (j && (k->chore_count >= CHORES_MAX || !(n = calloc(1, sizeof *n))))
        pd_fail(&e, PD_CAPACITY, "%u chores are waiting", k->chore_count);
    if (!n) {
        client_send_error(k, c, f->head.id, &e);
        return;
    }

    n->type = WIRE_STEER;
    n->client = c->serial;
    n->request = f->head.id;
    n->jail_id = m.jail;
    chore_add(k, n);
}

bool steer_is_begun(const struct keeper *k, const struct chore *c)
{
    for (unsigned i = 0; i < k->worker_count && c->type == WIRE_STEER; i++) {
        const struct chore *other = k->workers[i].chore;
        if (other && other->type == WIRE_STEER && wire_id_equal(other->jail_id, c->jail_id))
            return true;
    }
    return false;
}

int steer_send(struct keeper *k, struct worker *w, struct chore *c)
{
    struct pd_err e;
    const struct kjail *j = find(k, c->jail_id, &e);
    if (j && j->gate[0] >= 0) { /* another one that asked was first */
        steer_done(k, c, NULL, NULL);
        return -1;
    }

    auto_fd pidfd = j ? (int)syscall(SYS_pidfd_open, j->pid, 0) : -1;
    if (j && pidfd < 0)
        pd_fail_sys(&e, "watch the sandbox's first process");
    if (pidfd < 0) {
        steer_done(k, c, NULL, &e);
        return -1;
    }
    if (worker_send(w, WIRE_STEER, c->request, NULL, &pidfd, 1) == 0)
        return 0;
    chore_add(k, c); /* for another worker */
    return -1;
}

void steer_done(struct keeper *k, struct chore *c, struct frame *f, const struct pd_err *e)
{
    struct client *client = client_find(k, c->client);
    struct pd_err ended;
    struct kjail *j = e ? NULL : find(k, c->jail_id, &ended);

    /* Two that asked at once: the first one's sockets are those of a gate by now. */
    if (j && j->gate[0] < 0) {
        j->gate[0] = frame_take_fd(f, 0);
        j->gate[1] = frame_take_fd(f, 1);
    }
    if (client && j)
        answer(k, client, c->request, j);
    else if (client)
        client_send_error(k, client, c->request, e ? e : &ended);
    chore_free(c);
}
