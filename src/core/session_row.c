/* How a session's row is written: what changes is copied with the session's lock held, and written
 * without it, as a store may wait for its disk. store_lock is held around both, so that rows are
 * written in the order in which they were copied. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"

/* The fields of a row that are under the session's lock. */
struct row_copy {
    struct session_info info;
    struct wire_id box_id;
    char root_name[SPEC_NAME_MAX + 1];
    uint64_t paused_ms;
    char *env, *cwd, *note, *network, *other_root;
    size_t env_len;
    bool is_whole;  /* there was memory for all of it */
    bool was_dirty; /* the row in the store is an older one */
};

static void row_copy_done(struct row_copy *c)
{
    free(c->env);
    free(c->cwd);
    free(c->note);
    free(c->network);
    free(c->other_root);
}

/* With the session's lock held. `to`: what it is about to be; LIFE_COUNT: as it is. */
static void row_copy_take(struct row_copy *c, struct session *s, enum life to)
{
    c->info = s->info;
    if (to != LIFE_COUNT)
        c->info.state = life_state(to);
    c->box_id = s->box_id;
    memcpy(c->root_name, s->root_name, sizeof c->root_name);
    c->paused_ms = s->paused_at_ms;

    struct msg_list env = msg_list_of(&s->env);
    c->env = malloc(env.bytes + 1);
    c->env_len = c->env ? env.bytes : 0;
    if (c->env)
        memcpy(c->env, env.text, env.bytes);
    c->cwd = strdup(s->cwd);
    c->note = s->note ? strdup(s->note) : NULL;
    c->network = s->network ? strdup(s->network) : NULL;
    c->other_root = s->other_root ? strdup(s->other_root) : NULL;
    c->is_whole = c->env && c->cwd && (c->note || !s->note) && (c->network || !s->network) &&
                  (c->other_root || !s->other_root);

    c->was_dirty = s->dirty != DIRTY_NOT;
    if (c->was_dirty)
        s->dirty = DIRTY_ON_ITS_WAY;
}

/* The row, which points into session, copy and spec. The copy is whole. */
static struct session_row row_of(const struct session *s, const struct row_copy *c,
                                 const struct buf *spec)
{
    const struct session_info *i = &c->info;
    struct session_row row = {
        .id = i->id,
        .tenant = i->tenant,
        .made_by = i->made_by,
        .user_id = i->user_id,
        .thread_id = i->thread_id,
        .template_name = i->template_name,
        .provider = i->provider,
        .reason = i->reason,
        .policy = s->policy_text ? s->policy_text : "open",
        .metadata = s->metadata ? s->metadata : "{}",
        .env = c->env,
        .env_len = c->env_len,
        .cwd = c->cwd,
        .spec = spec->data,
        .spec_len = spec->len,
        .root_name = c->root_name,
        .key = s->key ? s->key : "",
        .key_hash = s->key_hash,
        .replaces = i->replaces,
        .state = (int)i->state,
        .end = (int)i->end,
        .end_reason = i->end_reason,
        .created_ms = i->created_ms,
        .expires_ms = i->expires_ms,
        .last_used_ms = i->last_used_ms,
        .ended_ms = i->ended_ms,
        .idle_timeout_ms = i->idle_timeout_ms,
        .max_life_ms = i->max_life_ms,
        .paused_ms = c->paused_ms,
        .from_pool = i->from_pool,
        .rung = (int)i->rung,
        .note = c->note ? c->note : "",
        .network = c->network,
        .pause_at_end = i->pause_at_end,
        .asleep = i->asleep,
        .mode = (int)i->mode,
        .arm = s->arm,
        .other_root = c->other_root,
    };

    memcpy(row.box_id, c->box_id.bytes, sizeof row.box_id);
    return row;
}

/* As far as nothing has changed meanwhile, the session is as its row; a row that could not be
 * written is tried again by the controller. */
static void note_written(struct session *s, bool is_written)
{
    lock_take(&s->lock);
    if (!is_written)
        s->dirty = DIRTY;
    else if (s->dirty == DIRTY_ON_ITS_WAY)
        s->dirty = DIRTY_NOT;
    lock_release(&s->lock);
}

/* With store_lock held. `to` as row_copy_take. */
static int write_row(struct session *s, enum life to, struct pd_err *e)
{
    /* The row of a session whose provider is not configured stays as it is: with the provider back
     * in the configuration, the next daemon takes the session up again. */
    if (s->stranded)
        return 0;

    auto_buf spec = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct row_copy copy;
    lock_take(&s->lock);
    struct spec wanted = s->info.spec;
    row_copy_take(&copy, s, to);
    lock_release(&s->lock);
    wanted.root_dir = "";
    wanted.root_name = "";
    spec_store(&spec, &wanted);

    int r = -1;
    if (copy.is_whole) {
        struct store *store = s->all->c.store;
        struct session_row row = row_of(s, &copy, &spec);
        r = store->put_session(store, &row, e);
    } else {
        pd_fail(e, PD_CAPACITY, "no memory to store a session");
    }

    if (r < 0 || copy.was_dirty)
        note_written(s, r == 0);
    row_copy_done(&copy);
    return r;
}

int session_store(struct session *s, struct pd_err *e)
{
    lock_take(&s->store_lock);
    int r = s->unstored ? 0 : write_row(s, LIFE_COUNT, e);
    lock_release(&s->store_lock);
    return r;
}

int session_fail_cancelled(const struct session *s, struct pd_err *e)
{
    return pd_fail(e, PD_CONFLICT, "sandbox %s was ended while it was being made: %.120s",
                   s->info.id, s->info.end_reason);
}

int session_store_step(struct session *s, enum life to, struct pd_err *e)
{
    lock_take(&s->store_lock);
    int r = write_row(s, to, e);
    if (r == 0) {
        lock_take(&s->lock);
        if (life_is_ending(s->life))
            r = session_fail_cancelled(s, e);
        else
            r = session_step(s, to);
        lock_release(&s->lock);
    }

    lock_release(&s->store_lock);
    return r;
}

int session_unstore(struct session *s, struct pd_err *e)
{
    struct store *store = s->all->c.store;

    lock_take(&s->store_lock);
    int r = store->delete_session(store, s->info.id, e);
    s->unstored |= r == 0;
    lock_release(&s->store_lock);
    return r;
}
