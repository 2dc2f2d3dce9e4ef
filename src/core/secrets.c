/* Values go from the vault into a sealed text, and nowhere else. What goes into the sandbox is no
 * secret: placeholders, and a certificate. */
#include "core/secrets.h"

#include "access/vault.h"
#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/fd.h"
#include "core/session_state.h"
#include "core/sessions.h"
#include "core/worker_run.h"
#include "gate/rules.h"
#include "wire/gate_msg.h"

#include <fcntl.h>

#define CHANGES_TEXT_MAX (GATE_SEALED_MAX / 4 * 3 - 64)
#define BUNDLE_MAX       (4u << 20)

int secrets_check(struct vault *v, const char *tenant, const char *rules, struct pd_err *e)
{
    struct secret_rule r;
    int bad = 0;
    auto_buf value = BUF_INIT(CHANGES_TEXT_MAX);

    while (bad == 0 && secret_rule_next(&rules, &r)) {
        if (!v)
            return pd_fail(e, PD_UNSUPPORTED, "this server has no secrets");
        /* One after the other: all together have to fit, too. */
        bad = vault_value(v, tenant, r.name, &value, e);
    }
    if (value.data)
        explicit_bzero(value.data, value.cap);
    return bad;
}

static int put_authority(const struct vault *v, const char *id, struct buf *out, struct pd_err *e)
{
    char sandbox[GATE_ID_MAX + 1];
    uint8_t seed[AUTHORITY_SEED_LEN];

    snprintf(sandbox, sizeof sandbox, "%.*s", (int)strcspn(id, "."), id);
    if (vault_authority(v, sandbox, seed, e) < 0)
        return -1;
    buf_puts(out, "authority ");
    for (unsigned i = 0; i < sizeof seed; i++)
        buf_printf(out, "%02x", seed[i]);
    buf_putc(out, '\n');
    explicit_bzero(seed, sizeof seed);
    return 0;
}

/* The line of one secret and host; nothing when the secret is gone. */
static int put_secret(struct vault *v, const char *tenant, const struct secret_rule *r,
                      struct buf *out, struct pd_err *e)
{
    char placeholder[VAULT_PLACEHOLDER_SIZE];
    struct pd_err why;
    size_t before = out->len;

    vault_placeholder(v, tenant, r->name, placeholder);
    buf_printf(out, "secret %s %s %u ", placeholder, r->host, r->port);
    if (vault_value(v, tenant, r->name, out, &why) == 0)
        return buf_putc(out, '\n');
    out->len = before;
    if (why.code == PD_NOT_FOUND)
        return 0;
    if (e)
        *e = why;
    return -1;
}

/* The line of a header rule. */
static int put_header(struct vault *v, const char *tenant, const struct header_rule *r,
                      struct buf *out, struct pd_err *e)
{
    buf_printf(out, "header %s %u %s ", r->host, r->port, r->name);
    if (vault_open_rule(v, tenant, r->sealed, r->sealed_len, out, e) < 0)
        return pd_wrap(e, "header %.64s for %.150s", r->name, r->host);
    return buf_putc(out, '\n');
}

static int put_headers(struct vault *v, const char *id, const char *tenant, const char *rules,
                       struct buf *out, struct pd_err *e)
{
    struct header_rule r;
    int bad = 0;

    while (bad == 0 && header_rule_next(&rules, &r)) {
        if (!out->len)
            bad = put_authority(v, id, out, e);
        if (bad == 0)
            bad = put_header(v, tenant, &r, out, e);
    }
    return bad;
}

int secrets_seal(struct vault *v, const char *id, const char *tenant, const char *rules,
                 struct buf *out, struct pd_err *e)
{
    struct secret_rule r;
    struct buf text = BUF_INIT(CHANGES_TEXT_MAX);
    int bad = put_headers(v, id, tenant, rules, &text, e);

    while (bad == 0 && secret_rule_next(&rules, &r)) {
        if (!text.len)
            bad = put_authority(v, id, &text, e);
        if (bad == 0)
            bad = put_secret(v, tenant, &r, &text, e);
    }
    if (bad == 0 && text.overflow)
        bad =
            pd_fail(e, PD_TOO_LARGE, "the secrets and headers of a sandbox are too long together");
    if (bad == 0 && text.len)
        bad = vault_seal(v, id, &text, out, e);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    buf_done(&text);
    return bad;
}

/* ---- into the sandbox ---- */

static int write_file(struct session *s, const char *path, const struct buf *data, struct pd_err *e)
{
    char length[24];
    struct record r;
    auto_worker w = WORKER_INIT;

    snprintf(length, sizeof length, "%zu", data->len);
    const char *const words[] = {"write", path, "0644", "1", length, NULL};
    if (worker_run_begin(&w, s, -1, "root", WORKER_INPUT | WORKER_COMMIT, words, e) < 0)
        return -1;

    w.must_finish = true;
    if (worker_write(&w, data->data, data->len, e) < 0)
        return -1;
    fd_done(&w.call.in);
    worker_commit(&w);
    if (worker_expect(&w, RECORD_ENTRY, &r, e) < 0 || worker_expect(&w, RECORD_REPLACED, &r, e) < 0)
        return -1;
    w.ended = true;
    return 0;
}

/* Appends a file, if it is there. */
static bool append_file(struct buf *out, const char *path)
{
    auto_fd fd = path[0] ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    size_t before = out->len;

    for (;;) {
        uint8_t *room = fd >= 0 ? buf_reserve(out, 64u << 10) : NULL;
        ssize_t n = room ? read(fd, room, 64u << 10) : -1;
        if (n <= 0)
            break;
        out->len += (size_t)n;
    }
    if (out->len > before && out->data[out->len - 1] != '\n')
        buf_putc(out, '\n');
    return out->len > before;
}

/* The machine's authorities, where distributions have them. */
static void append_authorities(struct buf *out)
{
    static const char *const places[] = {"/etc/ssl/certs/ca-certificates.crt",
                                         "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem", NULL};
    for (unsigned i = 0; places[i]; i++)
        if (append_file(out, places[i]))
            return;
}

/* The hosts whose requests are changed on their way; the caller frees each. -1: no memory. */
static int list_hosts(const char *rules, char *hosts[AUTHORITY_HOSTS_MAX])
{
    struct secret_rule s;
    struct header_rule h;
    const char *at = rules;
    int count = 0;

    while (count < (int)AUTHORITY_HOSTS_MAX && secret_rule_next(&at, &s))
        hosts[count++] = strdup(s.host);
    at = rules;
    while (count < (int)AUTHORITY_HOSTS_MAX && header_rule_next(&at, &h))
        hosts[count++] = strdup(h.host);
    for (int i = 0; i < count; i++)
        if (!hosts[i]) {
            while (count)
                free(hosts[--count]);
            return -1;
        }
    return count;
}

static int put_own_authority(struct session *s, const char *rules, struct buf *bundle,
                             struct pd_err *e)
{
    uint8_t seed[AUTHORITY_SEED_LEN];
    char *hosts[AUTHORITY_HOSTS_MAX];
    int count = list_hosts(rules, hosts);

    if (count < 0)
        return pd_fail(e, PD_CAPACITY, "no memory for a sandbox's authority");
    int bad = count ? vault_authority(s->all->c.vault, s->info.id, seed, e) : 0;
    if (count && bad == 0)
        bad = authority_cert(seed, (const char *const *)hosts, (unsigned)count, bundle, e);
    while (count)
        free(hosts[--count]);
    explicit_bzero(seed, sizeof seed);
    return bad;
}

static int write_bundle(struct session *s, const char *rules, const struct buf *trust,
                        struct pd_err *e)
{
    auto_buf bundle = BUF_INIT(BUNDLE_MAX);

    append_authorities(&bundle);
    buf_put(&bundle, trust->data, trust->len);
    return put_own_authority(s, rules, &bundle, e) < 0 ? -1
                                                       : write_file(s, SECRETS_BUNDLE, &bundle, e);
}

/* Adds NAME=VALUE, or the name alone. */
static int add(struct msg_list_writer *list, const char *name, const char *value)
{
    auto_buf pair = BUF_INIT(512);

    buf_puts(&pair, name);
    if (value)
        buf_printf(&pair, "=%s", value);
    const char *text = buf_cstr(&pair);
    return text ? msg_list_add(list, text) : -1;
}

/* What programs look at that do not look where the system's are. */
static int add_trust(struct msg_list_writer *set)
{
    static const char *const names[] = {
        "SSL_CERT_FILE",  "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",      "PIP_CERT",
        "AWS_CA_BUNDLE",  "CARGO_HTTP_CAINFO",   "DENO_CERT"};
    int bad = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        bad |= add(set, names[i], SECRETS_BUNDLE);
    return bad;
}

/* No file is written into one that is paused: its bundle is due when it goes on. */
static bool runs(struct session *s)
{
    lock_take(&s->lock);
    bool is_paused = s->info.state == SESSION_PAUSED && !s->lost;
    s->owes_trust = is_paused;
    lock_release(&s->lock);
    return !is_paused;
}

int session_give_secrets(struct session *s, const char *before, bool is_bare, struct pd_err *e)
{
    struct vault *v = s->all->c.vault;
    struct msg_list_writer set = MSG_LIST_WRITER_INIT, unset = MSG_LIST_WRITER_INIT;
    struct secret_rule r;
    struct header_rule h;
    auto_buf trust = BUF_INIT(BUNDLE_MAX);
    int bad = 0, count = is_bare;
    char *rules = session_network(s);
    const char *at = rules;

    /* The operator's own authorities are for every sandbox that has a way out. */
    if (s->info.spec.network == NETWORK_GATE && s->all->c.trust)
        count += append_file(&trust, s->all->c.trust);

    while (before && secret_rule_next(&before, &r))
        bad |= add(&unset, r.env, NULL);
    while (v && at && secret_rule_next(&at, &r)) {
        char placeholder[VAULT_PLACEHOLDER_SIZE];
        vault_placeholder(v, s->info.tenant, r.name, placeholder);
        bad |= add(&set, r.env, placeholder);
        count++;
    }
    at = rules;
    count += v && at && header_rule_next(&at, &h);
    if (count)
        bad |= add_trust(&set);

    int result = bad || !rules ? pd_fail(e, PD_CAPACITY, "no memory for the environment") : 0;
    if (result == 0 && count && runs(s))
        result = write_bundle(s, rules, &trust, e);
    struct msg_list to_set = msg_list_of(&set), to_unset = msg_list_of(&unset);
    if (result == 0 && (to_set.count || to_unset.count))
        result = session_give_env(s, &to_set, &to_unset, e);
    msg_list_writer_done(&set);
    msg_list_writer_done(&unset);
    free(rules);
    return result;
}
