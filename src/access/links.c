/* How this works: one array, oldest first, which is one value in the store and written as a whole,
 * as logins are: links are made by people, and an hour later they are over. */
#include "access/links.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/lock.h"
#include "base/sha256.h"
#include "store/store.h"

#define VALUE_NAME "preview_links"

struct links {
    struct store *store;
    struct lock lock; /* all below */
    unsigned count;
    struct link rows[LINKS_MAX];
};

void link_id(const char *token, char ret[LINK_ID_LEN + 1])
{
    uint8_t hash[SHA256_SIZE];
    struct sha256 s = SHA256_INIT;

    sha256_put(&s, token, strlen(token));
    sha256_end(&s, hash);
    hex_encode(hash, LINK_ID_LEN / 2, ret);
}

/* What the store has may be of another version, or damaged. */
static bool is_row(const struct link *r)
{
    return strnlen(r->id, sizeof r->id) == LINK_ID_LEN && memchr(r->tenant, 0, sizeof r->tenant) &&
           id_is_tenant(r->tenant) && memchr(r->sandbox, 0, sizeof r->sandbox) &&
           id_is_sandbox(r->sandbox) && memchr(r->key_id, 0, sizeof r->key_id) && r->port <= 65535;
}

struct links *links_new(struct store *store, struct pd_err *e)
{
    struct links *l = calloc(1, sizeof *l);
    struct pd_err why;
    if (!l) {
        pd_fail(e, PD_CAPACITY, "no memory for links");
        return NULL;
    }

    l->store = store;
    lock_init(&l->lock, LOCK_LINKS);
    ptrdiff_t len = store->get_value(store, VALUE_NAME, l->rows, sizeof l->rows, &why);
    if (len < 0 && why.code != PD_NOT_FOUND && why.code != PD_TOO_LARGE) {
        pd_fail(e, why.code, "%s", why.msg);
        links_free(l);
        return NULL;
    }

    unsigned count = len > 0 && len % (ptrdiff_t)sizeof *l->rows == 0
                         ? (unsigned)((size_t)len / sizeof *l->rows)
                         : 0;
    for (unsigned i = 0; i < count; i++)
        if (is_row(&l->rows[i]))
            l->rows[l->count++] = l->rows[i];
    return l;
}

void links_free(struct links *l)
{
    if (!l)
        return;
    lock_done(&l->lock);
    free(l);
}

/* With the lock held, as the next. */
static int save(struct links *l, struct pd_err *e)
{
    return l->store->put_value(l->store, VALUE_NAME, l->rows, l->count * sizeof *l->rows, e);
}

static void forget_old(struct links *l, uint64_t now_ms)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < l->count; i++)
        if (now_ms < l->rows[i].expires_ms)
            l->rows[kept++] = l->rows[i];
    l->count = kept;
}

int links_add(struct links *l, const struct link *made, struct pd_err *e)
{
    unsigned own = 0;
    bool is_known = false;
    int r;

    lock_take(&l->lock);
    forget_old(l, made->made_ms);
    for (unsigned i = 0; i < l->count; i++) {
        own += !strcmp(l->rows[i].tenant, made->tenant);
        is_known |= !strcmp(l->rows[i].id, made->id);
    }

    if (is_known) {
        r = pd_fail(e, PD_CONFLICT, "there is a link '%s' already", made->id);
    } else if (own >= LINKS_OF_TENANT || l->count >= LINKS_MAX) {
        r = pd_fail(e, PD_CAPACITY,
                    "there are %u preview links already: make them for a shorter time", own);
    } else {
        l->rows[l->count++] = *made;
        r = save(l, e);
        if (r < 0)
            l->count--;
    }
    lock_release(&l->lock);
    return r;
}

int links_revoke(struct links *l, const char *tenant, const char *sandbox, const char *id,
                 uint64_t now_ms, struct pd_err *e)
{
    struct link *found = NULL;
    int r = 0;

    lock_take(&l->lock);
    for (unsigned i = 0; i < l->count; i++)
        if (!strcmp(l->rows[i].id, id) && !strcmp(l->rows[i].tenant, tenant) &&
            !strcmp(l->rows[i].sandbox, sandbox))
            found = &l->rows[i];

    if (!found) {
        r = pd_fail(e, PD_NOT_FOUND, "sandbox %s has no link '%.40s'", sandbox, id);
    } else if (!found->revoked_ms) {
        found->revoked_ms = now_ms;
        r = save(l, e);
        if (r < 0)
            found->revoked_ms = 0; /* or a restart would make it good again */
    }
    lock_release(&l->lock);
    return r;
}

bool links_is_revoked(struct links *l, const char *id)
{
    bool is_revoked = false;

    lock_take(&l->lock);
    for (unsigned i = 0; i < l->count && !is_revoked; i++)
        is_revoked = l->rows[i].revoked_ms && !strcmp(l->rows[i].id, id);
    lock_release(&l->lock);
    return is_revoked;
}

unsigned links_list(struct links *l, const char *tenant, const char *sandbox, uint64_t now_ms,
                    struct link *ret, unsigned max)
{
    unsigned count = 0;

    lock_take(&l->lock);
    for (unsigned i = l->count; i-- > 0 && count < max;)
        if (now_ms < l->rows[i].expires_ms && !strcmp(l->rows[i].tenant, tenant) &&
            !strcmp(l->rows[i].sandbox, sandbox))
            ret[count++] = l->rows[i];
    lock_release(&l->lock);
    return count;
}
