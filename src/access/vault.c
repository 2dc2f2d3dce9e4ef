/* All secrets of a tenant are one value of the store: lines of name, time and value, sealed
 * together. They are few and small; whoever wants one opens all, and nothing open is kept. */
#include "access/vault.h"

#include "access/ids.h"
#include "access/seal.h"
#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/lock.h"
#include "base/parse.h"
#include "store/store.h"

#include <errno.h>
#include <inttypes.h>

#define TEXT_MAX   (VAULT_SECRETS_MAX * (VAULT_NAME_MAX + VAULT_VALUE_MAX + 32u))
#define SEALED_MAX (TEXT_MAX * 4 / 3 + 256)
#define KEY_SIZE   96 /* of a tenant's value in the store */

struct vault {
    struct store *store;
    struct seal_key key;
    struct lock lock; /* from reading a tenant's secrets to writing them */
};

/* A line of the text; none of the strings ends with a NUL. */
struct line {
    const char *name, *value;
    size_t name_len, value_len;
    uint64_t changed_ms;
};

struct vault *vault_new(struct store *store, const char *key_file, struct pd_err *e)
{
    struct vault *v = calloc(1, sizeof *v);
    if (!v) {
        pd_fail(e, PD_CAPACITY, "no memory for secrets");
        return NULL;
    }

    v->store = store;
    lock_init(&v->lock, LOCK_VAULT);
    if (seal_key_load(key_file, geteuid(), getegid(), &v->key, e) == 0)
        return v;
    vault_free(v);
    return NULL;
}

void vault_free(struct vault *v)
{
    if (!v)
        return;
    lock_done(&v->lock);
    explicit_bzero(&v->key, sizeof v->key);
    free(v);
}

int vault_check_name(const char *name, struct pd_err *e)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t len = strlen(name);

    if (len && len <= VAULT_NAME_MAX && strspn(name, valid) == len && !strchr("._-", name[0]))
        return 0;
    return pd_fail(e, PD_INVALID,
                   "'%.80s' is not the name of a secret: 1 to %u letters, digits, `.`, `_` and "
                   "`-`, beginning with a letter or a digit",
                   name, VAULT_NAME_MAX);
}

/* The error must not have any of the value in it. */
static int check_value(const char *value, struct pd_err *e)
{
    size_t len = strlen(value);

    if (len < VAULT_VALUE_MIN || len > VAULT_VALUE_MAX)
        return pd_fail(e, PD_INVALID, "the value of a secret has %u to %u bytes, not %zu",
                       VAULT_VALUE_MIN, VAULT_VALUE_MAX, len);
    for (size_t i = 0; i < len; i++)
        if (value[i] < 0x20 || value[i] > 0x7e)
            return pd_fail(e, PD_INVALID,
                           "the value of a secret is printable ASCII: byte %zu is not", i + 1);
    if (value[0] == ' ' || value[len - 1] == ' ')
        return pd_fail(e, PD_INVALID, "the value of a secret begins and ends with no blank");
    return 0;
}

/* ---- the text ---- */

static void wipe(struct buf *b)
{
    if (b->data)
        explicit_bzero(b->data, b->cap);
    buf_done(b);
}
#define auto_secret __attribute__((cleanup(wipe))) struct buf

static void value_name(const char *tenant, char out[KEY_SIZE])
{
    snprintf(out, KEY_SIZE, "vault.%.80s", tenant);
}

/* The tenant's text; empty when it has none. */
static int open_text(const struct vault *v, const char *tenant, struct buf *out, struct pd_err *e)
{
    char name[KEY_SIZE];
    struct pd_err why;
    auto_buf sealed = BUF_INIT(SEALED_MAX);
    uint8_t *room = buf_reserve(&sealed, SEALED_MAX);
    if (!room)
        return pd_fail(e, PD_CAPACITY, "no memory for secrets");

    value_name(tenant, name);
    ptrdiff_t len = v->store->get_value(v->store, name, room, SEALED_MAX, &why);
    if (len < 0 && why.code == PD_NOT_FOUND)
        return 0;
    if (len < 0) {
        if (e)
            *e = why;
        return -1;
    }
    return seal_open(&v->key, name, (const char *)room, (size_t)len, out, e);
}

static int close_text(const struct vault *v, const char *tenant, const struct buf *text,
                      struct pd_err *e)
{
    char name[KEY_SIZE];
    auto_buf sealed = BUF_INIT(SEALED_MAX);

    value_name(tenant, name);
    if (text->overflow)
        return pd_fail(e, PD_CAPACITY, "no memory for secrets");
    if (seal_close(&v->key, name, text->data, text->len, &sealed, e) < 0)
        return -1;
    return v->store->put_value(v->store, name, sealed.data, sealed.len, e);
}

/* Takes the next line. We have written it: it is as it should be. */
static bool next_line(const struct buf *text, size_t *at, struct line *ret)
{
    if (*at >= text->len)
        return false;
    const char *line = (const char *)text->data + *at;
    const char *end = memchr(line, '\n', text->len - *at);
    const char *first = end ? memchr(line, ' ', (size_t)(end - line)) : NULL;
    const char *second = first ? memchr(first + 1, ' ', (size_t)(end - first - 1)) : NULL;
    if (!second)
        return false;

    *ret = (struct line){.name = line,
                         .name_len = (size_t)(first - line),
                         .value = second + 1,
                         .value_len = (size_t)(end - second - 1),
                         .changed_ms = strtoull(first + 1, NULL, 10)};
    *at = (size_t)(end + 1 - (const char *)text->data);
    return true;
}

static bool is_named(const struct line *l, const char *name)
{
    return l->name_len == strlen(name) && !memcmp(l->name, name, l->name_len);
}

/* Copies all lines but the one of that name; how many, and whether there was one. */
static unsigned copy_others(const struct buf *text, const char *name, struct buf *out, bool *found)
{
    struct line l;
    unsigned count = 0;

    *found = false;
    for (size_t at = 0, from = 0; next_line(text, &at, &l); from = at) {
        if (is_named(&l, name)) {
            *found = true;
            continue;
        }
        buf_put(out, text->data + from, at - from);
        count++;
    }
    return count;
}

/* ---- calls ---- */

static int put(struct vault *v, const char *tenant, const char *name, const char *value,
               struct pd_err *e)
{
    auto_secret text = BUF_INIT(TEXT_MAX), next = BUF_INIT(TEXT_MAX);
    bool found;

    if (open_text(v, tenant, &text, e) < 0)
        return -1;
    if (copy_others(&text, name, &next, &found) >= VAULT_SECRETS_MAX)
        return pd_fail(e, PD_CAPACITY, "a tenant has at most %u secrets: delete one first",
                       VAULT_SECRETS_MAX);
    buf_printf(&next, "%s %" PRIu64 " %s\n", name, time_now_ms(), value);
    return close_text(v, tenant, &next, e);
}

int vault_put(struct vault *v, const char *tenant, const char *name, const char *value,
              struct pd_err *e)
{
    if (vault_check_name(name, e) < 0 || check_value(value, e) < 0)
        return -1;
    lock_take(&v->lock);
    int r = put(v, tenant, name, value, e);
    lock_release(&v->lock);
    return r;
}

static int fail_unknown(const char *name, struct pd_err *e)
{
    return pd_fail(e, PD_NOT_FOUND,
                   "there is no secret '%.63s': `paddock secret set` or PUT /v1/secrets makes one",
                   name);
}

static int drop(struct vault *v, const char *tenant, const char *name, struct pd_err *e)
{
    auto_secret text = BUF_INIT(TEXT_MAX), next = BUF_INIT(TEXT_MAX);
    bool found;

    if (open_text(v, tenant, &text, e) < 0)
        return -1;
    (void)copy_others(&text, name, &next, &found);
    return found ? close_text(v, tenant, &next, e) : fail_unknown(name, e);
}

int vault_delete(struct vault *v, const char *tenant, const char *name, struct pd_err *e)
{
    lock_take(&v->lock);
    int r = drop(v, tenant, name, e);
    lock_release(&v->lock);
    return r;
}

int vault_each(struct vault *v, const char *tenant,
               int (*each)(const char *name, uint64_t changed_ms, void *arg), void *arg,
               struct pd_err *e)
{
    auto_secret text = BUF_INIT(TEXT_MAX);
    struct line l;
    char name[VAULT_NAME_MAX + 1];

    if (open_text(v, tenant, &text, e) < 0)
        return -1;
    for (size_t at = 0; next_line(&text, &at, &l);) {
        snprintf(name, sizeof name, "%.*s", (int)l.name_len, l.name);
        if (each(name, l.changed_ms, arg))
            break;
    }
    return 0;
}

int vault_value(struct vault *v, const char *tenant, const char *name, struct buf *out,
                struct pd_err *e)
{
    auto_secret text = BUF_INIT(TEXT_MAX);
    struct line l;

    if (open_text(v, tenant, &text, e) < 0)
        return -1;
    for (size_t at = 0; next_line(&text, &at, &l);)
        if (is_named(&l, name))
            return buf_put(out, l.value, l.value_len) < 0
                       ? pd_fail(e, PD_TOO_LARGE, "the secrets of a sandbox are too long together")
                       : 0;
    return fail_unknown(name, e);
}

void vault_placeholder(const struct vault *v, const char *tenant, const char *name,
                       char out[VAULT_PLACEHOLDER_SIZE])
{
    char text[160];
    uint8_t bytes[32] = {0};

    snprintf(text, sizeof text, "%.80s/%.63s", tenant, name);
    (void)seal_derive(&v->key, "placeholder", text, bytes);
    int at = snprintf(out, VAULT_PLACEHOLDER_SIZE, "pdk-secret-");
    for (unsigned i = 0; i < 16; i++)
        at += snprintf(out + at, VAULT_PLACEHOLDER_SIZE - (size_t)at, "%02x", bytes[i]);
}

int vault_authority(const struct vault *v, const char *sandbox, uint8_t ret[AUTHORITY_SEED_LEN],
                    struct pd_err *e)
{
    return seal_derive(&v->key, "authority", sandbox, ret) < 0
               ? pd_fail(e, PD_INTERNAL, "make a sandbox's authority")
               : 0;
}

int vault_seal(const struct vault *v, const char *context, const struct buf *text, struct buf *out,
               struct pd_err *e)
{
    return seal_close(&v->key, context, text->data, text->len, out, e);
}

static void rule_context(const char *tenant, char out[KEY_SIZE])
{
    snprintf(out, KEY_SIZE, "rule %s", tenant);
}

int vault_seal_rule(const struct vault *v, const char *tenant, const char *text, struct buf *out,
                    struct pd_err *e)
{
    char context[KEY_SIZE];
    rule_context(tenant, context);
    return seal_close(&v->key, context, text, strlen(text), out, e);
}

int vault_open_rule(const struct vault *v, const char *tenant, const char *sealed, size_t len,
                    struct buf *out, struct pd_err *e)
{
    char context[KEY_SIZE];
    rule_context(tenant, context);
    return seal_open(&v->key, context, sealed, len, out, e);
}
