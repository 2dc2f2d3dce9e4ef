/* News of sandboxes: see changes.h.
 *
 * How this works: every note has a number, and the session remembers its last one. A watch that
 * reads an older note of the session passes it over, because the last is still to come. A watch of
 * another tenant that has read everything is moved past a note that is not for it, so that a quiet
 * tenant's place is never lost to a busy one's changes. */
#include "core/changes.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"

#include <sys/eventfd.h>
#include <unistd.h>

#define USE_NOTED_MS 1000u

void changes_init(struct changes *c)
{
    lock_init(&c->lock, LOCK_CHANGES);
}

void changes_done(struct changes *c)
{
    lock_done(&c->lock);
    free(c->ring);
}

/* ---- noting ---- */

static void wake(struct change_watch *w)
{
    uint64_t one = 1;
    if (!w->told)
        w->told = write(w->event, &one, sizeof one) == (ssize_t)sizeof one;
}

void session_changed(struct session *s)
{
    struct changes *c = &s->all->changes;
    if (!atomic_load(&c->watching))
        return;

    lock_take(&c->lock);
    if (c->ring) {
        uint64_t number = c->count++;
        struct change *to = &c->ring[number % CHANGES_KEPT];
        memcpy(to->id, s->info.id, sizeof to->id);
        memcpy(to->tenant, s->info.tenant, sizeof to->tenant);
        atomic_store(&s->changed_last, number);

        for (struct change_watch *w = c->watches; w; w = w->next)
            if (!strcmp(w->tenant, to->tenant))
                wake(w);
            else if (w->at == number)
                w->at++;
    }
    lock_release(&c->lock);
}

void session_used(struct session *s)
{
    uint64_t now = time_now_ms();

    s->info.last_used_ms = now;
    if (now >= s->use_noted_ms && now - s->use_noted_ms < USE_NOTED_MS)
        return;
    s->use_noted_ms = now;
    session_changed(s);
}

/* ---- reading ---- */

int change_watch_begin(struct change_watch *w, struct sessions *all, const char *tenant,
                       struct pd_err *e)
{
    struct changes *c = &all->changes;

    *w = (struct change_watch){.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    snprintf(w->tenant, sizeof w->tenant, "%s", tenant);
    if (w->event < 0)
        return pd_fail_sys(e, "watch changes");

    lock_take(&c->lock);
    if (!c->ring)
        c->ring = calloc(CHANGES_KEPT, sizeof *c->ring);
    bool has_ring = c->ring != NULL;
    if (has_ring) {
        w->at = c->count;
        w->next = c->watches;
        c->watches = w;
        atomic_fetch_add(&c->watching, 1);
    }
    lock_release(&c->lock);

    if (has_ring)
        return 0;
    close(w->event);
    return pd_fail(e, PD_CAPACITY, "no memory to watch changes");
}

void change_watch_end(struct change_watch *w, struct sessions *all)
{
    struct changes *c = &all->changes;

    lock_take(&c->lock);
    for (struct change_watch **at = &c->watches; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    atomic_fetch_sub(&c->watching, 1);
    lock_release(&c->lock);
    close(w->event);
}

/* The next note for this watch, and its number. */
static enum change_kind take_note(struct change_watch *w, struct changes *c, struct change *ret,
                                  uint64_t *ret_number)
{
    enum change_kind kind = CHANGE_NONE;

    lock_take(&c->lock);
    if (c->count - w->at > CHANGES_KEPT) {
        w->at = c->count;
        kind = CHANGE_MISSED;
    }
    while (kind == CHANGE_NONE && w->at < c->count) {
        const struct change *note = &c->ring[w->at % CHANGES_KEPT];
        *ret_number = w->at++;
        if (!strcmp(note->tenant, w->tenant)) {
            *ret = *note;
            kind = CHANGE_MADE;
        }
    }

    /* Everything was read: the next note wakes anew. */
    uint64_t dropped;
    if (kind == CHANGE_NONE && w->told && read(w->event, &dropped, sizeof dropped) >= 0)
        w->told = false;
    lock_release(&c->lock);
    return kind;
}

enum change_kind change_watch_next(struct change_watch *w, struct sessions *all,
                                   struct session **ret, char ret_id[SESSION_ID_LEN + 1])
{
    for (;;) {
        struct change note;
        uint64_t number;
        enum change_kind kind = take_note(w, &all->changes, &note, &number);
        if (kind != CHANGE_MADE)
            return kind;

        struct session *s = sessions_find(all, w->tenant, note.id, NULL);
        if (!s) {
            memcpy(ret_id, note.id, sizeof note.id);
            return CHANGE_REMOVED;
        }
        if (atomic_load(&s->changed_last) == number) {
            *ret = s;
            return CHANGE_MADE;
        }
        session_unref(s);
    }
}
