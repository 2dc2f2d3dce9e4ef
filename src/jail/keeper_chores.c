/* Chores: what clients ask for and a worker does, because it reads or writes files that may make it
 * wait. A first-in-first-out list; a removal that fails (its root is still in use) is tried again
 * some times. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"

static int set(char *to, size_t size, const char *from, struct pd_err *e)
{
    if (!from[0] || strlen(from) >= size || strchr(from, '/') || from[0] == '.')
        return pd_fail(e, PD_INVALID, "'%.60s' is no name of a root or of a command's group", from);
    memcpy(to, from, strlen(from) + 1);
    return 0;
}

static int fill(struct keeper *k, const struct frame *f, struct chore *c, struct pd_err *e)
{
    if (c->type == WIRE_REMOVE_ROOT) {
        struct msg_key m;
        return msg_key_decode(&f->payload, &m, e) < 0 ? -1 : set(c->what, sizeof c->what, m.key, e);
    }
    struct msg_kill m;
    if (msg_kill_decode(&f->payload, &m, e) < 0 || set(c->what, MSG_NAME_MAX + 1, m.group, e) < 0)
        return -1;
    const struct kjail *j = jail_find(k, m.jail);
    if (!j || j->state != JAIL_RUNNING)
        return pd_fail(e, PD_NOT_FOUND, "there is no such jail");
    return set(c->jail, sizeof c->jail, j->name, e);
}

int chore_add(struct keeper *k, const struct client *c, const struct frame *f, struct pd_err *e)
{
    if (k->chore_count >= CHORES_MAX)
        return pd_fail(e, PD_CAPACITY, "%u chores are waiting", k->chore_count);
    struct chore *n = calloc(1, sizeof *n);
    if (!n)
        return pd_fail(e, PD_CAPACITY, "no memory");
    n->type = f->head.type;
    n->client = c->serial;
    n->request = f->head.id;
    if (fill(k, f, n, e) < 0) {
        free(n);
        return -1;
    }
    chore_again(k, n);
    n->not_before = 0;
    return 0;
}

void chore_again(struct keeper *k, struct chore *c)
{
    struct chore **at = &k->chores;
    while (*at)
        at = &(*at)->next;
    c->next = NULL;
    c->not_before = deadline_in(CHORE_RETRY);
    *at = c;
    k->chore_count++;
}

struct chore *chore_take(struct keeper *k, int sweeps)
{
    for (struct chore **at = &k->chores; *at; at = &(*at)->next) {
        struct chore *c = *at;
        if ((c->type == WIRE_REMOVE_ROOT && !sweeps) ||
            (c->not_before && !deadline_passed(c->not_before)))
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

void chore_encode(const struct chore *c, struct buf *out)
{
    struct msg_sweep strike = {.name = c->jail, .group = c->what};
    struct msg_key root = {.key = c->what};
    if (c->type == WIRE_KILL)
        msg_sweep_encode(out, &strike);
    else
        msg_key_encode(out, &root);
}

void chore_free(struct chore *c)
{
    free(c);
}
