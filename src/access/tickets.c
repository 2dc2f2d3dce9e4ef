/* Tickets: one array, looked through from its start. A row whose `made_ms` is 0 is free. */
#include "access/tickets.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/lock.h"
#include "base/sha256.h"

#include <openssl/crypto.h>

struct row {
    uint8_t hash[SHA256_SIZE];
    struct auth_who who;
    struct ticket what;
    uint64_t made_ms;
};

struct tickets {
    struct auth *auth;
    struct lock lock; /* the rows */
    struct row rows[TICKETS_MAX];
};

void ticket_done(struct ticket *t)
{
    free(t->path);
    *t = (struct ticket){0};
}

struct tickets *tickets_new(struct auth *auth, struct pd_err *e)
{
    struct tickets *t = calloc(1, sizeof *t);
    if (!t) {
        pd_fail(e, PD_CAPACITY, "no memory for tickets");
        return NULL;
    }
    t->auth = auth;
    lock_init(&t->lock, LOCK_TICKETS);
    return t;
}

void tickets_free(struct tickets *t)
{
    if (!t)
        return;
    for (unsigned i = 0; i < TICKETS_MAX; i++)
        ticket_done(&t->rows[i].what);
    lock_done(&t->lock);
    free(t);
}

static void hash_of(const char *text, uint8_t ret[SHA256_SIZE])
{
    struct sha256 s = SHA256_INIT;
    sha256_put(&s, text, TICKET_LEN);
    sha256_end(&s, ret);
}

static bool has_ended(const struct row *r, uint64_t now_ms)
{
    return !r->made_ms || now_ms < r->made_ms || now_ms >= r->made_ms + TICKET_LIFE_MS;
}

/* The row for one more of the tenant's: one that is over, or its own oldest when it has enough of
 * them. With the lock held. */
static struct row *find_room(struct tickets *t, const char *tenant, uint64_t now_ms)
{
    struct row *room = NULL, *oldest = NULL;
    unsigned own = 0;

    for (unsigned i = 0; i < TICKETS_MAX; i++) {
        struct row *r = &t->rows[i];
        if (has_ended(r, now_ms)) {
            room = room ? room : r;
            continue;
        }
        if (strcmp(r->who.tenant, tenant) != 0)
            continue;
        own++;
        if (!oldest || r->made_ms < oldest->made_ms)
            oldest = r;
    }
    return own < TICKETS_OF_TENANT && room ? room : oldest;
}

int tickets_make(struct tickets *t, const struct auth_who *who, const struct ticket *what,
                 uint64_t now_ms, char ret[TICKET_LEN + 1], struct pd_err *e)
{
    uint8_t random[TICKET_LEN / 2];
    struct row made = {.who = *who, .what = *what, .made_ms = now_ms};

    made.what.path = strdup(what->path);
    if (!made.what.path)
        return pd_fail(e, PD_CAPACITY, "no memory for a ticket");
    random_bytes(random, sizeof random);
    hex_encode(random, sizeof random, ret);
    explicit_bzero(random, sizeof random);
    hash_of(ret, made.hash);

    lock_take(&t->lock);
    struct row *room = find_room(t, who->tenant, now_ms);
    if (room) {
        ticket_done(&room->what);
        *room = made;
    }
    lock_release(&t->lock);

    if (room)
        return 0;
    ticket_done(&made.what);
    return pd_fail(e, PD_CAPACITY, "there are %u tickets already, each good for a minute",
                   TICKETS_MAX);
}

int tickets_take(struct tickets *t, const char *text, uint64_t now_ms, struct auth_who *ret_who,
                 struct ticket *ret, struct pd_err *e)
{
    uint8_t sought[SHA256_SIZE];
    struct row found = {0};

    if (text && strnlen(text, TICKET_LEN + 1) == TICKET_LEN &&
        strspn(text, "0123456789abcdef") == TICKET_LEN) {
        hash_of(text, sought);
        lock_take(&t->lock);
        for (unsigned i = 0; i < TICKETS_MAX; i++)
            if (t->rows[i].made_ms && CRYPTO_memcmp(t->rows[i].hash, sought, SHA256_SIZE) == 0) {
                found = t->rows[i];
                t->rows[i] = (struct row){0};
            }
        lock_release(&t->lock);
    }

    int r = has_ended(&found, now_ms)
                ? pd_fail(e, PD_UNAUTHENTICATED,
                          "this ticket was used already or is older than a minute: ask for another "
                          "with POST /v1/sandboxes/ID/files/ticket")
                : auth_check_hash(t->auth, found.who.key_hash, ret_who, e);
    if (r < 0) {
        ticket_done(&found.what);
        return -1;
    }
    *ret = found.what;
    return 0;
}
