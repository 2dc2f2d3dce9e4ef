/* How this works
 *
 * A table from hash to tenant is read from the store and never changed but for times of use; when
 * the store has changed it is replaced as a whole, under the write side of a lock. The table is
 * found by the first bytes of the SHA-256 of what was presented: an attacker who measures how long
 * that takes learns about a hash that he could not choose, and nothing about keys. The full hash is
 * compared in constant time all the same. */
#include "access/auth.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/lock.h"
#include "base/sha256.h"
#include "store/store.h"

#include <openssl/crypto.h>
#include <pthread.h>
#include <stdatomic.h>

#define LOOK_NS        NS_PER_S        /* revocations of other processes take effect within this */
#define LOOKS_BURST    20u             /* unknown keys that may make us look at once ... */
#define LOOK_REFILL_NS (NS_PER_S / 20) /* ... and how soon another one may */
#define TOUCH_MS       60000           /* how exact "last used" is */
#define KEYS_MAX       100000u         /* of the store, with the revoked ones */

struct entry {
    uint8_t hash[32];
    char tenant[ID_TENANT_MAX + 1];
    char id[AUTH_ID_LEN + 1];
    int revoked;
    int stored;          /* not the extra one */
    uint64_t expires_ms; /* 0: never */
    enum auth_role role;
    _Atomic uint64_t touched_ms;
};

/* Open addressing; at most half full. An empty slot has no tenant. */
struct table {
    size_t mask;
    unsigned count, accepted;
    struct entry slots[];
};

struct auth {
    struct store *store;
    uint8_t extra[32];
    int has_extra;
    struct rw_lock lock; /* table */
    struct table *table;
    struct lock look_lock; /* the rest; taken before `lock` */
    int64_t version;
    unsigned looks;
    uint64_t looks_since;
    _Atomic uint64_t looked_at;
};

/* By the plain one and not by OpenSSL's, whose way to its own takes longer than a hash this short:
 * every request has one. */
static void hash_key(const char *key, uint8_t ret[SHA256_SIZE])
{
    struct sha256 s = SHA256_INIT;

    sha256_put(&s, key, ID_KEY_LEN);
    sha256_end(&s, ret);
    explicit_bzero(&s, sizeof s);
}

static struct entry *slot_of(struct table *t, const uint8_t hash[32])
{
    size_t at;

    memcpy(&at, hash, sizeof at);
    for (;; at++) {
        struct entry *slot = &t->slots[at & t->mask];
        if (!slot->tenant[0] || CRYPTO_memcmp(slot->hash, hash, 32) == 0)
            return slot;
    }
}

static struct table *table_new(size_t keys)
{
    size_t slots = 16;
    while (slots < 2 * keys)
        slots *= 2;

    struct table *t = calloc(1, sizeof *t + slots * sizeof *t->slots);
    if (t)
        t->mask = slots - 1;
    return t;
}

static const char *const role_names[] = {"operator", "admin", "reader", NULL};

const char *auth_role_name(enum auth_role r)
{
    return (unsigned)r < AUTH_ROLE_COUNT ? role_names[r] : "unknown";
}

const char *const *auth_role_names(void)
{
    return role_names;
}

/* A role that this version does not know may as little as possible. */
static enum auth_role role_of(const struct key_row *r)
{
    return r->role >= 0 && r->role < AUTH_ROLE_COUNT ? (enum auth_role)r->role : AUTH_READER;
}

/* Keys are counted first and then read: both passes are callbacks of the store. */
struct loading {
    struct table *table;
    unsigned count, max;
};

static int count_key(const struct key_row *r, void *arg)
{
    (void)r;
    struct loading *l = arg;
    return ++l->count == KEYS_MAX;
}

static int load_key(const struct key_row *r, void *arg)
{
    struct loading *l = arg;

    if (!id_is_tenant(r->tenant))
        return 0; /* nobody's: it opens nothing */

    struct entry *slot = slot_of(l->table, r->hash);
    if (!slot->tenant[0]) {
        memcpy(slot->hash, r->hash, sizeof slot->hash);
        snprintf(slot->tenant, sizeof slot->tenant, "%s", r->tenant);
        snprintf(slot->id, sizeof slot->id, "%s", r->id);
        slot->stored = 1;
        slot->revoked = r->revoked_ms != 0;
        slot->expires_ms = r->expires_ms;
        slot->role = role_of(r);
        atomic_init(&slot->touched_ms, r->last_used_ms);
        l->table->count++;
        l->table->accepted += !slot->revoked;
    }

    /* More keys than a moment ago: the rest comes with the next look. */
    return l->table->count == l->max;
}

/* Reads everything anew. With look_lock held. */
static int load(struct auth *a, struct pd_err *e)
{
    /* The version first: what changes while we read makes us read again. */
    int64_t version = a->store->version ? a->store->version(a->store) : -1;
    struct loading l = {0};

    if (a->store->each_key(a->store, count_key, &l, e) < 0)
        return -1;

    l.max = l.count + 16;
    l.table = table_new(l.max + 1);
    if (!l.table)
        return pd_fail(e, PD_CAPACITY, "read the keys: out of memory");
    if (a->store->each_key(a->store, load_key, &l, e) < 0) {
        free(l.table);
        return -1;
    }

    if (a->has_extra) {
        struct entry *slot = slot_of(l.table, a->extra);
        /* One that is in the store, too, is what the store says: revoked stays revoked. */
        if (!slot->tenant[0]) {
            memcpy(slot->hash, a->extra, sizeof slot->hash);
            snprintf(slot->tenant, sizeof slot->tenant, "default");
            hex_encode(a->extra, AUTH_ID_LEN / 2, slot->id);
            l.table->count++;
            l.table->accepted++;
        }
    }

    rw_write(&a->lock);
    struct table *old = a->table;
    a->table = l.table;
    rw_release(&a->lock);
    free(old);
    a->version = version;
    return 0;
}

/* Reads the keys again if another process has written to the store. With look_lock held. A failure
 * leaves the keys as they were known: a full disk must not lock everybody out. */
static void look(struct auth *a, uint64_t now)
{
    int64_t version = a->store->version ? a->store->version(a->store) : -1;
    if (version < 0 || version != a->version)
        (void)load(a, NULL);
    atomic_store(&a->looked_at, now);
}

static void look_if_due(struct auth *a, uint64_t now)
{
    uint64_t looked = atomic_load(&a->looked_at);
    if (now < looked || now - looked < LOOK_NS)
        return;

    if (!lock_try(&a->look_lock))
        return; /* somebody is at it */
    look(a, now);
    lock_release(&a->look_lock);
}

/* 1 when the keys may have changed. */
static int look_for_unknown(struct auth *a, uint64_t now)
{
    lock_take(&a->look_lock);
    uint64_t refill = now < a->looks_since ? 0 : (now - a->looks_since) / LOOK_REFILL_NS;
    if (refill > 0) {
        a->looks = refill >= LOOKS_BURST - a->looks ? LOOKS_BURST : a->looks + (unsigned)refill;
        a->looks_since = now;
    }

    int may = a->looks > 0;
    if (may) {
        a->looks--;
        look(a, now);
    }
    lock_release(&a->look_lock);
    return may;
}

enum found { UNKNOWN, REVOKED, EXPIRED, FOUND };

/* *ret_touch: the time of use is to be stored. */
static enum found find(struct auth *a, const uint8_t hash[32], struct auth_who *ret, int *ret_touch)
{
    uint64_t now_ms = time_now_ms();
    enum found found = UNKNOWN;

    *ret_touch = 0;
    rw_read(&a->lock);
    struct entry *slot = slot_of(a->table, hash);
    if (slot->tenant[0] && slot->revoked) {
        found = REVOKED;
    } else if (slot->tenant[0] && slot->expires_ms && now_ms >= slot->expires_ms) {
        found = EXPIRED;
    } else if (slot->tenant[0]) {
        found = FOUND;
        memcpy(ret->tenant, slot->tenant, sizeof ret->tenant);
        memcpy(ret->key_id, slot->id, sizeof ret->key_id);
        memcpy(ret->key_hash, slot->hash, sizeof ret->key_hash);
        ret->role = slot->role;
        uint64_t touched = atomic_load(&slot->touched_ms);
        /* Of several threads one wins. */
        *ret_touch = slot->stored && (now_ms < touched || now_ms - touched >= TOUCH_MS) &&
                     atomic_compare_exchange_strong(&slot->touched_ms, &touched, now_ms);
    }
    rw_release(&a->lock);
    return found;
}

int auth_check(struct auth *a, const char *key, struct auth_who *ret, struct pd_err *e)
{
    if (!key || !key[0])
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "this needs an API key: Authorization: Bearer KEY, or X-API-Key: KEY");
    if (!id_is_key(key))
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "that is no API key: a key is " ID_KEY_PREFIX " and 40 hex digits");

    uint8_t hash[AUTH_HASH_LEN];
    hash_key(key, hash);
    return auth_check_hash(a, hash, ret, e);
}

int auth_check_hash(struct auth *a, const uint8_t hash[AUTH_HASH_LEN], struct auth_who *ret,
                    struct pd_err *e)
{
    uint64_t now = clock_now();
    look_if_due(a, now);

    struct auth_who who;
    int touch;
    enum found found = find(a, hash, &who, &touch);
    if (found == UNKNOWN && look_for_unknown(a, now))
        found = find(a, hash, &who, &touch);

    if (found == REVOKED)
        return pd_fail(e, PD_UNAUTHENTICATED, "this API key was revoked");
    if (found == EXPIRED)
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "this API key has expired; paddock key create makes another one");
    if (found == UNKNOWN)
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "this API key is not known here; paddock key create makes one");

    /* A time of use that is not stored harms nobody. */
    if (touch && a->store->touch_key)
        (void)a->store->touch_key(a->store, who.key_id, time_now_ms(), NULL);
    *ret = who;
    return 0;
}

int auth_check_label(const char *label, struct pd_err *e)
{
    if (strlen(label) > AUTH_LABEL_MAX)
        return pd_fail(e, PD_INVALID, "a key's label has %d bytes at most, not %zu", AUTH_LABEL_MAX,
                       strlen(label));

    for (const char *c = label; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return pd_fail(e, PD_INVALID, "a key's label has no control characters");
    return 0;
}

int auth_create(struct auth *a, const char *tenant, const char *label, enum auth_role role,
                uint64_t expires_ms, char ret_key[ID_KEY_LEN + 1], char ret_id[AUTH_ID_LEN + 1],
                struct pd_err *e)
{
    if (!id_is_tenant(tenant))
        return pd_fail(e, PD_INVALID,
                       "\"%.80s\" is no tenant: 1 to %d of a-z, 0-9, _ and - name one",
                       tenant ? tenant : "", ID_TENANT_MAX);
    if (auth_check_label(label ? label : "", e) < 0)
        return -1;

    char key[ID_KEY_LEN + 1], id[AUTH_ID_LEN + 1];
    struct key_row row = {.id = id,
                          .tenant = tenant,
                          .label = label,
                          .created_ms = time_now_ms(),
                          .expires_ms = expires_ms,
                          .role = (int)role};

    id_key(key);
    hash_key(key, row.hash);
    hex_encode(row.hash, AUTH_ID_LEN / 2, id);

    lock_take(&a->look_lock);
    int result = 0;
    if (a->table->count >= KEYS_MAX) /* only load() changes it, under look_lock */
        result = pd_fail(e, PD_CAPACITY, "there are %u keys already, which is the limit", KEYS_MAX);
    if (result == 0)
        result = a->store->put_key(a->store, &row, e);
    if (result == 0)
        result = load(a, e);
    lock_release(&a->look_lock);

    if (result == 0) {
        memcpy(ret_key, key, sizeof key);
        memcpy(ret_id, id, sizeof id);
    }
    explicit_bzero(key, sizeof key);
    return result;
}

struct search {
    const char *id;
    struct key_row row;
    char name[AUTH_ID_LEN + 1], tenant[ID_TENANT_MAX + 1], label[AUTH_LABEL_MAX + 1];
    int found;
};

static int search_key(const struct key_row *r, void *arg)
{
    struct search *s = arg;
    if (strcmp(r->id, s->id) != 0)
        return 0;

    s->row = *r;
    snprintf(s->name, sizeof s->name, "%s", r->id);
    snprintf(s->tenant, sizeof s->tenant, "%s", r->tenant);
    snprintf(s->label, sizeof s->label, "%s", r->label);
    s->row.id = s->name;
    s->row.tenant = s->tenant;
    s->row.label = s->label;
    return s->found = 1;
}

int auth_revoke(struct auth *a, const char *id, struct pd_err *e)
{
    struct search s = {.id = id};

    lock_take(&a->look_lock);
    int result = a->store->each_key(a->store, search_key, &s, e);
    if (result == 0 && !s.found)
        result = pd_fail(e, PD_NOT_FOUND, "there is no key %.40s; paddock key list shows them", id);
    if (result == 0 && s.row.revoked_ms == 0) {
        s.row.revoked_ms = time_now_ms();
        result = a->store->put_key(a->store, &s.row, e);
    }

    if (result == 0)
        result = load(a, e);
    lock_release(&a->look_lock);
    return result;
}

struct listing {
    int (*each)(const struct auth_key *k, void *arg);
    void *arg;
};

static int list_key(const struct key_row *r, void *arg)
{
    const struct listing *l = arg;
    const struct auth_key k = {.id = r->id,
                               .tenant = r->tenant,
                               .label = r->label,
                               .role = role_of(r),
                               .created_ms = r->created_ms,
                               .expires_ms = r->expires_ms,
                               .last_used_ms = r->last_used_ms,
                               .revoked_ms = r->revoked_ms};
    return l->each(&k, l->arg);
}

int auth_list(struct auth *a, int (*each)(const struct auth_key *k, void *arg), void *arg,
              struct pd_err *e)
{
    return a->store->each_key(a->store, list_key, &(struct listing){each, arg}, e);
}

unsigned auth_count(struct auth *a)
{
    rw_read(&a->lock);
    unsigned count = a->table->accepted;
    rw_release(&a->lock);
    return count;
}

struct auth *auth_new(struct store *store, const char *extra, struct pd_err *e)
{
    if (extra && !extra[0])
        extra = NULL;
    if (extra && !id_is_key(extra)) {
        pd_fail(e, PD_INVALID,
                "PADDOCK_API_KEY is no API key: a key is " ID_KEY_PREFIX
                " and 40 hex digits in lower case");
        return NULL;
    }

    struct auth *a = calloc(1, sizeof *a);
    if (!a) {
        pd_fail(e, PD_CAPACITY, "read the keys: out of memory");
        return NULL;
    }

    a->store = store;
    a->looks = LOOKS_BURST;
    a->looks_since = clock_now();
    atomic_init(&a->looked_at, clock_now());

    pthread_rwlockattr_t fair;
    pthread_rwlockattr_init(&fair);
    pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    rw_init(&a->lock, LOCK_KEYS, &fair);
    pthread_rwlockattr_destroy(&fair);
    lock_init(&a->look_lock, LOCK_KEY_LOOK);

    if (extra) {
        hash_key(extra, a->extra);
        a->has_extra = 1;
    }

    if (load(a, e) < 0) {
        auth_free(a);
        return NULL;
    }
    return a;
}

void auth_free(struct auth *a)
{
    if (!a)
        return;
    free(a->table);
    rw_done(&a->lock);
    lock_done(&a->look_lock);
    free(a);
}
