/* Lists of sessions, and counts of them. A page is all that match and are behind the cursor, sorted
 * by age without the lock; the cursor is the creation time and id of the last one that was given,
 * so that sandboxes which come or go meanwhile move nobody to another page. */
#include "core/sessions.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"

#include <errno.h>
#include <jansson.h>

static bool has_metadata(const struct session *s, const struct session_filter *f)
{
    if (!f->metadata_count)
        return true;
    json_t *o = json_loads(s->metadata ? s->metadata : "{}", 0, NULL);
    int match = o != NULL;
    for (unsigned i = 0; i < f->metadata_count && match; i++) {
        const char *v = json_string_value(json_object_get(o, f->metadata_key[i]));
        match = v && !strcmp(v, f->metadata_value[i]);
    }

    json_decref(o);
    return match;
}

static bool has_text(const char *text, const char *word, size_t len)
{
    for (; text && *text; text++)
        if (strncasecmp(text, word, len) == 0)
            return true;
    return false;
}

static bool has_word(const struct session *s, const json_t *metadata, unsigned state,
                     const char *word, size_t len)
{
    const struct session_info *i = &s->info;
    const char *texts[] = {i->id,        session_state_name((enum session_state)state),
                           i->user_id,   i->thread_id,
                           i->provider,  i->template_name,
                           i->spec.image};
    const char *key;
    json_t *value;

    for (size_t n = 0; n < sizeof texts / sizeof *texts; n++)
        if (has_text(texts[n], word, len))
            return true;
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (has_text(key, word, len) || has_text(json_string_value(value), word, len))
            return true;
    }
    return false;
}

static bool has_words(const struct session *s, unsigned state, const char *words)
{
    bool all = true;
    if (!words)
        return true;

    json_t *metadata = json_loads(s->metadata ? s->metadata : "{}", 0, NULL);
    for (const char *w = words + strspn(words, " "); *w && all; w += strspn(w, " ")) {
        size_t len = strcspn(w, " ");
        all = has_word(s, metadata, state, w, len);
        w += len;
    }
    json_decref(metadata);
    return all;
}

static int matches(struct session *s, const struct session_filter *f)
{
    if (!s->owned || strcmp(s->info.tenant, f->tenant) != 0 ||
        (f->user_id && strcmp(s->info.user_id, f->user_id) != 0) ||
        (f->thread_id && strcmp(s->info.thread_id, f->thread_id) != 0) ||
        (f->template_name && strcmp(s->info.template_name, f->template_name) != 0) ||
        s->info.created_ms < f->after_ms)
        return 0;

    lock_take(&s->lock);
    unsigned state = s->info.state;
    lock_release(&s->lock);

    int states = f->states ? f->states : ~(1 << SESSION_GONE);
    return states >> state & 1 && has_metadata(s, f) && has_words(s, state, f->words);
}

static int by_age(const void *a, const void *b)
{
    const struct session *x = *(struct session *const *)a, *y = *(struct session *const *)b;
    if (x->info.created_ms != y->info.created_ms)
        return x->info.created_ms < y->info.created_ms ? -1 : 1;
    return strcmp(x->info.id, y->info.id);
}

static int by_youth(const void *a, const void *b)
{
    return by_age(b, a);
}

/* Does it come after the cursor's, in that order? */
static bool is_behind(const struct session *s, uint64_t ms, const char *id, int newest_first)
{
    int order =
        s->info.created_ms != ms ? (s->info.created_ms < ms ? -1 : 1) : strcmp(s->info.id, id);
    return newest_first ? order < 0 : order > 0;
}

/* "CREATED_MS-ID" of the last one that was given. */
int session_read_cursor(const char *text, uint64_t *ret_ms, const char **ret_id, struct pd_err *e)
{
    char *end;
    errno = 0;
    *ret_ms = strtoull(text, &end, 10);
    if (end == text || errno || text[0] == '-' || *end != '-' || !id_is_sandbox(end + 1))
        return pd_fail(e, PD_INVALID, "cursor '%.60s': take it from next_cursor of the last page",
                       text);
    *ret_id = end + 1;
    return 0;
}

int sessions_list(struct sessions *all, const struct session_filter *f, struct session **ret,
                  unsigned *ret_count, char ret_next[64], struct pd_err *e)
{
    uint64_t after_ms = 0;
    const char *after_id = "";
    if (f->cursor && session_read_cursor(f->cursor, &after_ms, &after_id, e) < 0)
        return -1;
    size_t room = 64, count = 0, total = 0;
    struct session **found = malloc(room * sizeof *found);

    lock_take(&all->lock);

    for (unsigned i = 0; i < SESSION_BUCKETS && found; i++)
        for (struct session *s = all->by_id[i]; s && found; s = s->next) {
            bool is_before = f->cursor && !is_behind(s, after_ms, after_id, f->newest_first);
            if ((is_before && !f->ret_total) || !matches(s, f))
                continue;
            total++;
            if (is_before)
                continue;
            if (count == room) {
                struct session **grown = realloc(found, 2 * room * sizeof *found);
                if (!grown)
                    break;
                found = grown;
                room *= 2;
            }
            found[count++] = session_ref(s);
        }
    lock_release(&all->lock);

    if (!found)
        return pd_fail(e, PD_CAPACITY, "no memory for the list");
    if (f->ret_total)
        *f->ret_total = total;
    qsort(found, count, sizeof *found, f->newest_first ? by_youth : by_age);
    unsigned given = count < f->limit ? (unsigned)count : f->limit;
    ret_next[0] = 0;
    if (given < count && given)
        snprintf(ret_next, 64, "%llu-%s", (unsigned long long)found[given - 1]->info.created_ms,
                 found[given - 1]->info.id);

    for (size_t i = 0; i < count; i++)
        if (i < given)
            ret[i] = found[i];
        else
            session_unref(found[i]);
    *ret_count = given;
    free(found);
    return 0;
}

void sessions_each(struct sessions *all, int (*each)(struct session *s, void *arg), void *arg)
{
    size_t count = 0;

    lock_take(&all->lock);

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            count += s->owned;
    struct session **list = calloc(count ? count : 1, sizeof *list);
    count = 0;

    for (unsigned i = 0; i < SESSION_BUCKETS && list; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next)
            if (s->owned)
                list[count++] = session_ref(s);
    lock_release(&all->lock);

    int stop = 0;
    for (size_t i = 0; i < count && list; i++) {
        lock_take(&list[i]->lock);
        int gone = list[i]->info.state == SESSION_GONE;
        lock_release(&list[i]->lock);
        stop = stop || (!gone && each(list[i], arg));
        session_unref(list[i]);
    }

    free(list);
}

void sessions_get_stats(struct sessions *all, struct sessions_stats *ret)
{
    lock_take(&all->lock);
    *ret = all->stats;
    memset(ret->by_state, 0, sizeof ret->by_state);
    memset(ret->by_provider, 0, sizeof ret->by_provider);
    ret->running = 0;

    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next) {
            lock_take(&s->lock);
            if (s->owned) {
                unsigned place = s->provider ? provider_table_index(all->c.providers, s->provider)
                                             : PROVIDERS_MAX;
                ret->by_state[s->info.state]++;
                ret->by_provider[place][s->info.state]++;
            }
            ret->running += s->running;
            lock_release(&s->lock);
        }
    ret->output_kept = atomic_load(&all->kept.bytes);
    ret->outputs_forgotten = atomic_load(&all->kept.forgotten);
    ret->queued = all->queue_len;
    ret->pool_ready = image_pool_ready(all, NULL);

    for (unsigned i = 0; i < POOL_KINDS; i++)
        ret->pool_ready += all->pool_count[i];
    ret->pool_code_ready = all->pool_count[POOL_CODE] + all->pool_count[POOL_CODE + 1];
    ret->pool_filling = pool_filling(all);
    lock_release(&all->lock);
}

void sessions_count_tenant(struct sessions *all, const char *tenant,
                           unsigned ret[SESSION_STATE_COUNT])
{
    memset(ret, 0, SESSION_STATE_COUNT * sizeof *ret);
    lock_take(&all->lock);
    for (unsigned i = 0; i < SESSION_BUCKETS; i++)
        for (struct session *s = all->by_id[i]; s; s = s->next) {
            if (!s->owned || strcmp(s->info.tenant, tenant) != 0)
                continue;
            lock_take(&s->lock);
            ret[s->info.state]++;
            lock_release(&s->lock);
        }
    lock_release(&all->lock);
}

void sessions_count_pool(struct sessions *all, const struct provider *p, unsigned *ret_ready,
                         unsigned *ret_filling)
{
    bool is_first = p == all->c.providers->list[0]; /* whose are in pool.c */

    lock_take(&all->lock);
    *ret_ready = image_pool_ready(all, p);
    *ret_filling = image_pool_filling(all, p);
    for (unsigned i = 0; is_first && i < POOL_KINDS; i++) {
        *ret_ready += all->pool_count[i];
        *ret_filling += all->pool_making[i];
    }
    lock_release(&all->lock);
}
