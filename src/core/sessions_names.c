/* Names of sandboxes: the keys and threads that they were made with.
 *
 * A sandbox that is somebody's is in a table by thread and in one by key, if it has them, from the
 * step of its life that makes it so to the one that ends it, or until it is forgotten. Finding one
 * by name takes as long as by id, however many there are.
 *
 * Names that creations hold are in a list of those who create: a request waits while another one
 * holds its key or its thread. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"

/* ---- the tables ---- */

static struct session **thread_place(struct sessions *all, const char *tenant, const char *user_id,
                                     const char *thread_id)
{
    unsigned bucket =
        sessions_bucket(tenant) + 31 * sessions_bucket(user_id) + 961 * sessions_bucket(thread_id);
    return &all->by_thread[bucket % SESSION_BUCKETS];
}

static struct session **key_place(struct sessions *all, const char *tenant, const char *key)
{
    unsigned bucket = sessions_bucket(tenant) + 31 * sessions_bucket(key);
    return &all->by_key[bucket % SESSION_BUCKETS];
}

void names_list(struct session *s)
{
    const struct session_info *i = &s->info;

    if (i->user_id[0]) {
        struct session **at = thread_place(s->all, i->tenant, i->user_id, i->thread_id);
        s->next_of_thread = *at;
        *at = s;
    }

    if (s->key) {
        struct session **at = key_place(s->all, i->tenant, s->key);
        s->next_of_key = *at;
        *at = s;
    }
}

void names_unlist(struct session *s)
{
    const struct session_info *i = &s->info;

    if (i->user_id[0]) {
        struct session **at = thread_place(s->all, i->tenant, i->user_id, i->thread_id);
        while (*at && *at != s)
            at = &(*at)->next_of_thread;
        if (*at)
            *at = s->next_of_thread;
    }

    if (s->key) {
        struct session **at = key_place(s->all, i->tenant, s->key);
        while (*at && *at != s)
            at = &(*at)->next_of_key;
        if (*at)
            *at = s->next_of_key;
    }
}

struct session *sessions_look_for_thread(struct sessions *all, const char *tenant,
                                         const char *user_id, const char *thread_id)
{
    struct session *found = NULL;

    lock_take(&all->lock);

    for (struct session *s = *thread_place(all, tenant, user_id, thread_id); s;
         s = s->next_of_thread)
        if (!s->superseded && !strcmp(s->info.user_id, user_id) &&
            !strcmp(s->info.thread_id, thread_id) && !strcmp(s->info.tenant, tenant) &&
            (!found || s->info.created_ms >= found->info.created_ms))
            found = s;
    if (found)
        session_ref(found);
    lock_release(&all->lock);
    return found;
}

struct session *sessions_look_for_key(struct sessions *all, const char *tenant, const char *key)
{
    lock_take(&all->lock);

    struct session *s = *key_place(all, tenant, key);
    while (s && (strcmp(s->key, key) != 0 || strcmp(s->info.tenant, tenant) != 0))
        s = s->next_of_key;
    if (s)
        session_ref(s);
    lock_release(&all->lock);
    return s;
}

/* ---- names that creations hold ---- */

static bool is_same_name(const struct session_request *a, const struct session_request *b)
{
    if (strcmp(a->tenant, b->tenant) != 0)
        return false;
    return (a->key && b->key && !strcmp(a->key, b->key)) ||
           (a->user_id && b->user_id && !strcmp(a->user_id, b->user_id) &&
            !strcmp(a->thread_id, b->thread_id));
}

static bool is_held(const struct sessions *all, const struct session_request *r)
{
    for (const struct name_hold *h = all->name_holds; h; h = h->next)
        if (is_same_name(h->r, r))
            return true;
    return false;
}

int names_hold(struct sessions *all, struct name_hold *h, struct pd_err *e)
{
    deadline d = deadline_in(MAKE_PATIENCE);
    int r = 0;

    lock_take(&all->name_lock);

    while (r == 0 && is_held(all, h->r))
        if (!lock_wait(&all->name_cond, &all->name_lock, d))
            r = pd_fail(e, PD_TIMEOUT,
                        "another request with this key or for this thread is still making its "
                        "sandbox: try again later");
    if (r == 0) {
        h->next = all->name_holds;
        all->name_holds = h;
    }

    lock_release(&all->name_lock);
    return r;
}

void names_release(struct sessions *all, const struct name_hold *h)
{
    lock_take(&all->name_lock);
    struct name_hold **at = &all->name_holds;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    pthread_cond_broadcast(&all->name_cond);
    lock_release(&all->name_lock);
}
