/* How this works
 *
 * One array of logins, which is one value in the store and written as a whole: people log in
 * seldom, and it is small. Only the time of use changes often, and that is written when it is
 * TOUCH_MS old. A login is found by the SHA-256 of its session, as keys are: an attacker who
 * measures how long that takes learns about a hash that he could not choose. What a login may do is
 * asked of auth at every check, without the lock. */
#include "access/logins.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/lock.h"
#include "base/sha256.h"
#include "store/store.h"

#include <openssl/crypto.h>

#define VALUE_NAME "console_logins"
#define TOUCH_MS   UINT64_C(600000) /* how exact the time of use is in the store */

/* As it is in the store, of this machine's byte order. */
struct row {
    uint8_t session[SHA256_SIZE], proof[SHA256_SIZE], key[AUTH_HASH_LEN];
    uint64_t created_ms, used_ms;
};

struct code {
    uint8_t hash[SHA256_SIZE], key[AUTH_HASH_LEN];
    uint64_t made_ms; /* 0: no code */
};

struct logins {
    struct store *store;
    struct auth *auth;
    struct lock lock; /* all below */
    unsigned count;
    struct row rows[LOGINS_MAX];
    struct code codes[LOGIN_CODES_MAX];
};

static void hash_secret(const char *text, uint8_t ret[SHA256_SIZE])
{
    struct sha256 s = SHA256_INIT;
    sha256_put(&s, text, LOGIN_SECRET_LEN);
    sha256_end(&s, ret);
}

static bool is_secret(const char *text)
{
    return text && strnlen(text, LOGIN_SECRET_LEN + 1) == LOGIN_SECRET_LEN &&
           strspn(text, "0123456789abcdef") == LOGIN_SECRET_LEN;
}

static void make_secret(char ret[LOGIN_SECRET_LEN + 1])
{
    uint8_t random[LOGIN_SECRET_LEN / 2];

    random_bytes(random, sizeof random);
    hex_encode(random, sizeof random, ret);
    explicit_bzero(random, sizeof random);
}

static bool has_ended(const struct row *r, uint64_t now_ms)
{
    return now_ms >= r->created_ms + LOGIN_LIFE_MS || now_ms >= r->used_ms + LOGIN_IDLE_MS;
}

/* With the lock held, as all below. */
static int save(struct logins *l, struct pd_err *e)
{
    return l->store->put_value(l->store, VALUE_NAME, l->rows, l->count * sizeof *l->rows, e);
}

static void drop(struct logins *l, unsigned at)
{
    l->rows[at] = l->rows[--l->count];
    explicit_bzero(&l->rows[l->count], sizeof *l->rows);
}

static struct row *find(struct logins *l, const uint8_t session[SHA256_SIZE])
{
    for (unsigned i = 0; i < l->count; i++)
        if (CRYPTO_memcmp(l->rows[i].session, session, SHA256_SIZE) == 0)
            return &l->rows[i];
    return NULL;
}

/* Room for one more of this key: what has ended goes, then the key's own that rested longest. */
static int make_room(struct logins *l, const uint8_t key[AUTH_HASH_LEN], uint64_t now_ms,
                     struct pd_err *e)
{
    unsigned own = 0, oldest = 0;

    for (unsigned i = 0; i < l->count;) {
        if (has_ended(&l->rows[i], now_ms)) {
            drop(l, i);
            continue;
        }
        if (memcmp(l->rows[i].key, key, AUTH_HASH_LEN) == 0) {
            if (!own || l->rows[i].used_ms < l->rows[oldest].used_ms)
                oldest = i;
            own++;
        }
        i++;
    }

    if (own >= LOGINS_OF_KEY)
        drop(l, oldest);
    if (l->count == LOGINS_MAX)
        return pd_fail(e, PD_CAPACITY, "%u are logged in, which is the limit: log out elsewhere",
                       LOGINS_MAX);
    return 0;
}

struct logins *logins_new(struct store *store, struct auth *auth, struct pd_err *e)
{
    struct pd_err why = {0};

    struct logins *l = calloc(1, sizeof *l);
    if (!l) {
        pd_fail(e, PD_CAPACITY, "read who is logged in: out of memory");
        return NULL;
    }

    l->store = store;
    l->auth = auth;
    lock_init(&l->lock, LOCK_LOGINS);

    ptrdiff_t len = store->get_value(store, VALUE_NAME, l->rows, sizeof l->rows, &why);
    if (len < 0 && why.code != PD_NOT_FOUND && why.code != PD_TOO_LARGE) {
        if (e)
            *e = why;
        logins_free(l);
        return NULL;
    }

    /* What is not ours, of another size, is nobody's login: all log in again. */
    if (len > 0 && (size_t)len % sizeof *l->rows == 0)
        l->count = (unsigned)((size_t)len / sizeof *l->rows);
    return l;
}

void logins_free(struct logins *l)
{
    if (!l)
        return;
    lock_done(&l->lock);
    explicit_bzero(l, sizeof *l);
    free(l);
}

int logins_begin(struct logins *l, const struct auth_who *who, uint64_t now_ms, struct login *ret,
                 struct pd_err *e)
{
    struct login made = {.expires_ms = now_ms + LOGIN_LIFE_MS};
    struct row row = {.created_ms = now_ms, .used_ms = now_ms};

    make_secret(made.session);
    make_secret(made.proof);
    hash_secret(made.session, row.session);
    hash_secret(made.proof, row.proof);
    memcpy(row.key, who->key_hash, sizeof row.key);

    lock_take(&l->lock);
    int result = make_room(l, row.key, now_ms, e);
    if (result == 0) {
        l->rows[l->count++] = row;
        result = save(l, e);
        if (result < 0)
            drop(l, l->count - 1);
    }
    lock_release(&l->lock);

    if (result == 0)
        *ret = made;
    explicit_bzero(&made, sizeof made);
    return result;
}

/* The key of the login, if both secrets are its own and it has not ended. */
static bool use(struct logins *l, const char *session, const char *proof, uint64_t now_ms,
                uint8_t ret_key[AUTH_HASH_LEN])
{
    uint8_t sought[SHA256_SIZE], given[SHA256_SIZE];
    if (!is_secret(session) || !is_secret(proof))
        return false;

    hash_secret(session, sought);
    hash_secret(proof, given);

    lock_take(&l->lock);
    struct row *r = find(l, sought);
    bool good = r && CRYPTO_memcmp(r->proof, given, sizeof given) == 0 && !has_ended(r, now_ms);
    if (good) {
        memcpy(ret_key, r->key, sizeof r->key);
        bool due = now_ms >= r->used_ms + TOUCH_MS;
        if (due) {
            r->used_ms = now_ms;
            (void)save(l, NULL); /* a time of use that is not stored harms nobody */
        }
    }
    lock_release(&l->lock);
    return good;
}

int logins_check(struct logins *l, const char *session, const char *proof, uint64_t now_ms,
                 struct auth_who *ret, struct pd_err *e)
{
    uint8_t key[AUTH_HASH_LEN];
    struct auth_who who;
    struct pd_err why;

    if (!use(l, session, proof, now_ms, key))
        return pd_fail(e, PD_UNAUTHENTICATED, "you are not logged in here: log in again");
    if (auth_check_hash(l->auth, key, &who, &why) < 0)
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "the key that you have logged in with is not good any more: log in again");

    *ret = who;
    return 0;
}

int logins_end(struct logins *l, const char *session, struct pd_err *e)
{
    uint8_t sought[SHA256_SIZE];
    if (!is_secret(session))
        return 0;
    hash_secret(session, sought);

    lock_take(&l->lock);
    int result = 0;
    struct row *r = find(l, sought);
    if (r) {
        struct row kept = *r;
        drop(l, (unsigned)(r - l->rows));
        result = save(l, e);
        if (result < 0)
            l->rows[l->count++] = kept; /* or a restart would bring it back */
    }
    lock_release(&l->lock);
    return result;
}

unsigned logins_keys(struct logins *l, uint64_t now_ms, char ret[LOGINS_MAX][AUTH_ID_LEN + 1])
{
    unsigned count = 0;

    lock_take(&l->lock);
    for (unsigned i = 0; i < l->count; i++)
        if (!has_ended(&l->rows[i], now_ms))
            hex_encode(l->rows[i].key, AUTH_ID_LEN / 2, ret[count++]);
    lock_release(&l->lock);
    return count;
}

void logins_offer(struct logins *l, const struct auth_who *who, uint64_t now_ms,
                  char ret[LOGIN_SECRET_LEN + 1])
{
    struct code made = {.made_ms = now_ms};

    make_secret(ret);
    hash_secret(ret, made.hash);
    memcpy(made.key, who->key_hash, sizeof made.key);

    lock_take(&l->lock);
    struct code *place = &l->codes[0];
    for (unsigned i = 1; i < LOGIN_CODES_MAX; i++)
        if (l->codes[i].made_ms < place->made_ms)
            place = &l->codes[i];
    *place = made;
    lock_release(&l->lock);
}

int logins_redeem(struct logins *l, const char *code, uint64_t now_ms, struct auth_who *ret,
                  struct pd_err *e)
{
    uint8_t sought[SHA256_SIZE];
    struct code found = {0};

    if (is_secret(code)) {
        hash_secret(code, sought);
        lock_take(&l->lock);
        for (unsigned i = 0; i < LOGIN_CODES_MAX; i++)
            if (l->codes[i].made_ms && CRYPTO_memcmp(l->codes[i].hash, sought, SHA256_SIZE) == 0) {
                found = l->codes[i];
                explicit_bzero(&l->codes[i], sizeof found);
            }
        lock_release(&l->lock);
    }

    if (!found.made_ms || now_ms < found.made_ms || now_ms >= found.made_ms + LOGIN_CODE_MS)
        return pd_fail(e, PD_UNAUTHENTICATED,
                       "this link was used already or is older than a minute: `paddock console` "
                       "prints a new one");
    return auth_check_hash(l->auth, found.key, ret, e);
}
