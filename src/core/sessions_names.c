/* Names that creations hold, each in a list of those who create: a request waits while another one
 * holds its key or its thread. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"

static int is_same_name(const struct session_request *a, const struct session_request *b)
{
    if (strcmp(a->tenant, b->tenant) != 0)
        return 0;
    return (a->key && b->key && !strcmp(a->key, b->key)) ||
           (a->user_id && b->user_id && !strcmp(a->user_id, b->user_id) &&
            !strcmp(a->thread_id, b->thread_id));
}

static int is_held(const struct sessions *all, const struct session_request *r)
{
    for (const struct name_hold *h = all->name_holds; h; h = h->next)
        if (is_same_name(h->r, r))
            return 1;
    return 0;
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
