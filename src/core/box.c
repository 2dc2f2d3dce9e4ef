/* Calls of a provider's functions.
 *
 * Each function here is one question, does the provider have the capability, and one call. That the
 * function behind a set bit exists was checked when the provider entered the table. */
#include "core/box.h"

#include "base/banned.h"
#include "base/err.h"

int box_create(struct provider *p, struct wire_id id, const struct spec *s, void *owner,
               struct box **ret, deadline d, struct pd_err *e)
{
    struct box *b;
    if (p->create(p, id, s, owner, &b, d, e) < 0)
        return -1;

    b->provider = p;
    *ret = b;
    return 0;
}

void box_cancel(struct provider *p, struct wire_id id)
{
    if (p->cancel)
        p->cancel(p, id);
}

int box_adopt(struct provider *p, struct wire_id id, void *owner, struct box **ret,
              struct pd_err *e)
{
    struct box *b;
    if (provider_must(p, PROVIDER_ADOPT, e) < 0 || p->adopt(p, id, owner, &b, e) < 0)
        return -1;

    b->provider = p;
    *ret = b;
    return 0;
}

int box_destroy(struct box *b, struct pd_err *e)
{
    struct provider *p = b->provider;
    return p->destroy(b, deadline_in(p->patience.destroy), e);
}

void boxes_end_strangers(const struct provider_table *t)
{
    for (unsigned i = 0; i < t->count; i++)
        if (provider_has(t->list[i], PROVIDER_ADOPT))
            t->list[i]->end_strangers(t->list[i]);
}

/* ---- commands ---- */

bool box_hear_begin(struct box *b)
{
    const struct provider *p = b->provider;
    return p->hear && p->hear_begin(b);
}

enum box_heard box_hear(struct box *b, struct wire_id command, struct pollfd *more, unsigned count,
                        deadline d)
{
    return b->provider->hear(b, command, more, count, d);
}

void box_hear_end(struct box *b)
{
    b->provider->hear_end(b);
}

int box_exec(struct box *b, const struct box_command *c, struct pd_err *e)
{
    const struct provider *p = b->provider;
    enum provider_can worker = c->flags & EXEC_REACH ? PROVIDER_PORTS : PROVIDER_FILES;

    if (c->flags & EXEC_WORKER && provider_must(p, worker, e) < 0)
        return -1;
    if (c->flags & EXEC_PTY && provider_must(p, PROVIDER_TERMINAL, e) < 0)
        return -1;

    return p->exec(b, c, e);
}

int box_signal(struct box *b, struct wire_id command, int signal, deadline d, struct pd_err *e)
{
    const struct provider *p = b->provider;
    return provider_must(p, PROVIDER_SIGNAL, e) < 0 ? -1 : p->signal(b, command, signal, d, e);
}

int box_kill(struct box *b, struct wire_id command, unsigned group, struct pd_err *e)
{
    return b->provider->kill(b, command, group, e);
}

int box_hold(struct box *b, unsigned group, bool held, struct pd_err *e)
{
    const struct provider *p = b->provider;
    return p->hold ? p->hold(b, group, held, e)
                   : pd_fail(e, PD_UNSUPPORTED, "provider %s cannot hold a command", p->name);
}

int box_forget(struct box *b, struct wire_id command)
{
    return b->provider->forget(b, command);
}

int box_sync(struct box *b, deadline d, struct pd_err *e)
{
    return b->provider->sync(b, d, e);
}

int box_group_is_empty(struct box *b, unsigned group)
{
    const struct provider *p = b->provider;
    return provider_has(p, PROVIDER_TREES) ? p->group_is_empty(b, group) : GROUP_MISSING;
}

/* ---- the box itself ---- */

int box_terminal(struct box *b, int *ret_near, int *ret_far, struct pd_err *e)
{
    const struct provider *p = b->provider;
    return provider_must(p, PROVIDER_TERMINAL, e) < 0 ? -1 : p->terminal(b, ret_near, ret_far, e);
}

int box_resize(struct box *b, struct wire_id command, int near, uint16_t rows, uint16_t cols,
               struct pd_err *e)
{
    const struct provider *p = b->provider;
    return provider_must(p, PROVIDER_TERMINAL, e) < 0 ? -1
                                                      : p->resize(b, command, near, rows, cols, e);
}

int box_pause(struct box *b, bool paused, struct pd_err *e)
{
    const struct provider *p = b->provider;
    return provider_must(p, PROVIDER_PAUSE, e) < 0
               ? -1
               : p->pause(b, paused, deadline_in(p->patience.pause), e);
}

int box_get_usage(struct box *b, struct box_usage *ret, struct pd_err *e)
{
    const struct provider *p = b->provider;
    return provider_must(p, PROVIDER_USAGE, e) < 0 ? -1 : p->usage(b, ret, e);
}

int box_way_out(struct box *b, int ret[2], struct pd_err *e)
{
    const struct provider *p = b->provider;
    return provider_must(p, PROVIDER_EGRESS, e) < 0 ? -1 : p->way_out(b, ret, e);
}

int box_check(struct box *b, deadline d, struct pd_err *e)
{
    const struct provider *p = b->provider;
    return provider_must(p, PROVIDER_IMAGE, e) < 0 ? -1 : p->check(b, d, e);
}

enum rung box_rung(const struct box *b)
{
    return b->provider->rung(b);
}

bool box_place(struct box *b, struct box_place *ret)
{
    const struct provider *p = b->provider;
    return p->place && p->place(b, ret);
}

/* ---- roots ---- */

int root_remove(struct provider *p, const char *name, struct pd_err *e)
{
    return provider_must(p, PROVIDER_ROOTS, e) < 0 ? -1 : p->remove_root(p, name, e);
}

int root_keep(struct provider *p, const char *name, struct pd_err *e)
{
    return provider_must(p, PROVIDER_SLEEP, e) < 0
               ? -1
               : p->keep_root(p, name, deadline_in(p->patience.keep), e);
}

int root_copy(struct provider *p, struct box *b, const char *from, const char *to, deadline d,
              struct pd_err *e)
{
    return provider_must(p, PROVIDER_SNAPSHOT, e) < 0 ? -1 : p->copy_root(p, b, from, to, d, e);
}

/* ---- descriptors for the next daemon ---- */

int stash_put(struct provider *p, const char *key, const int *fds, unsigned count, struct pd_err *e)
{
    return provider_must(p, PROVIDER_STASH, e) < 0 ? -1 : p->stash(p, key, fds, count, e);
}

int stash_fetch(struct provider *p, const char *key, int *ret_fds, unsigned max,
                unsigned *ret_count, deadline d, struct pd_err *e)
{
    return provider_must(p, PROVIDER_STASH, e) < 0
               ? -1
               : p->fetch(p, key, ret_fds, max, ret_count, d, e);
}

void stash_drop(struct provider *p, const char *key)
{
    if (provider_has(p, PROVIDER_STASH))
        p->drop(p, key);
}
