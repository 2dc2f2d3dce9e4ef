/* The rules that hold are one block of memory that is replaced under the lock, so a decision sees
 * the old ones or the new ones. A new text is read without the lock. Two who put rules at the same
 * moment are put in order by a second lock, which is held while the file is written: the last one
 * to write is the one that holds. */
#include "router/router.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/lock.h"
#include "router/arms.h"
#include "router/older_names.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_SIZE 4096u

struct router {
    struct lock lock;   /* rules, from_file, breakers, arms, parity */
    struct lock writer; /* the file; taken before lock */
    char file[PATH_SIZE];
    const char *const *env;
    struct router_rules *rules;
    bool from_file;
    struct breaker breakers[ROUTER_PROVIDERS_MAX];
    struct arms arms;
    struct parity parity;
    unsigned shadow_rule; /* its number, from 1; another one whenever the rule is another */
};

/* ---- the file ---- */

/* 1: read; 0: there is none. */
static int read_text(const char *path, struct buf *text, struct pd_err *e)
{
    auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT)
        return 0;
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return pd_fail_sys(e, "read the router's rules from %.150s", path);
    if (!S_ISREG(st.st_mode) || st.st_size > ROUTER_TEXT_MAX)
        return pd_fail(e, PD_INVALID, "%.150s: must be a file of at most %u bytes", path,
                       ROUTER_TEXT_MAX);

    for (;;) {
        uint8_t *at = buf_reserve(text, 4096);
        if (!at)
            return pd_fail(e, PD_INVALID, "%.150s: is longer than %u bytes", path, ROUTER_TEXT_MAX);
        ssize_t n = read(fd, at, 4096);
        if (n < 0)
            return pd_fail_sys(e, "read %.150s", path);
        if (n == 0)
            return 1;
        text->len += (size_t)n;
    }
}

/* Writes a file beside it, which then takes its name: whoever reads sees all of one or the other.
 */
static int write_text(const char *path, const struct buf *text, struct pd_err *e)
{
    char next[PATH_SIZE + 8], dir[PATH_SIZE];
    snprintf(next, sizeof next, "%s.next", path);
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = 0;

    auto_fd fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return pd_fail_sys(e, "write the router's rules to %.150s", next);

    int bad = fd_write_all(fd, text->data, text->len);
    if (bad == 0 && fsync(fd) < 0)
        bad = -errno;
    if (bad == 0 && rename(next, path) < 0)
        bad = -errno;
    if (bad < 0) {
        (void)unlink(next);
        errno = -bad;
        return pd_fail_sys(e, "write the router's rules to %.150s", path);
    }

    auto_fd folder = open(slash && *dir ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0)
        (void)fsync(folder);
    return 0;
}

/* ---- the rules ---- */

/* `text` NULL: none. The rules on the heap, or NULL. */
static struct router_rules *read_rules(struct router *r, const struct buf *text,
                                       const struct route_provider *providers, unsigned count,
                                       struct pd_err *e)
{
    struct router_rules *rules = malloc(sizeof *rules);
    if (!rules) {
        pd_fail(e, PD_CAPACITY, "no memory for the router's rules");
        return NULL;
    }

    *rules = ROUTER_RULES_INIT;
    if ((text &&
         router_rules_parse((const char *)text->data, text->len, providers, count, rules, e) < 0) ||
        older_names_read(r->env, providers, count, rules, e) < 0) {
        free(rules);
        return NULL;
    }
    return rules;
}

static void hold_rules(struct router *r, struct router_rules *rules, bool from_file)
{
    lock_take(&r->lock);
    struct router_rules *old = r->rules;
    if (old && experiment_is_same(&old->experiment, &rules->experiment))
        memcpy(rules->experiment.stopped, old->experiment.stopped,
               sizeof rules->experiment.stopped);
    else
        r->arms = (struct arms){0};
    if (!old || memcmp(&old->shadow, &rules->shadow, sizeof rules->shadow) != 0) {
        r->parity = (struct parity){.equal = 0};
        r->shadow_rule++;
    }
    r->rules = rules;
    r->from_file = from_file;
    lock_release(&r->lock);
    free(old);
}

int router_reload(struct router *r, const struct route_provider *providers, unsigned count,
                  struct pd_err *e)
{
    auto_buf text = BUF_INIT(ROUTER_TEXT_MAX + 4096);

    lock_take(&r->writer);
    int there = read_text(r->file, &text, e);
    struct router_rules *rules =
        there < 0 ? NULL : read_rules(r, there ? &text : NULL, providers, count, e);
    if (rules)
        hold_rules(r, rules, there > 0);
    else if (there > 0)
        pd_wrap(e, "%.100s", r->file);
    lock_release(&r->writer);
    return rules ? 0 : -1;
}

int router_put(struct router *r, const char *text, size_t len,
               const struct route_provider *providers, unsigned count, struct pd_err *e)
{
    struct buf given = {.data = (uint8_t *)(uintptr_t)text, .len = len};
    struct router_rules *rules = read_rules(r, &given, providers, count, e);
    if (!rules)
        return -1;

    auto_buf out = BUF_INIT(ROUTER_TEXT_MAX);
    struct json j = JSON_INIT(&out);
    router_rules_json(rules, &j);
    buf_putc(&out, '\n');
    if (out.overflow) {
        free(rules);
        return pd_fail(e, PD_TOO_LARGE, "the router's rules are longer than %u bytes",
                       ROUTER_TEXT_MAX);
    }

    lock_take(&r->writer);
    int bad = write_text(r->file, &out, e);
    if (bad == 0)
        hold_rules(r, rules, true);
    else
        free(rules);
    lock_release(&r->writer);
    return bad;
}

struct router *router_new(const char *file, const char *const *env,
                          const struct route_provider *providers, unsigned count, struct pd_err *e)
{
    struct router *r = calloc(1, sizeof *r);
    if (!r) {
        pd_fail(e, PD_CAPACITY, "no memory for the router");
        return NULL;
    }

    snprintf(r->file, sizeof r->file, "%s", file);
    r->env = env;
    lock_init(&r->lock, LOCK_RULES);
    lock_init(&r->writer, LOCK_RULES_FILE);
    if (router_reload(r, providers, count, e) < 0) {
        router_free(r);
        return NULL;
    }
    return r;
}

void router_free(struct router *r)
{
    if (!r)
        return;
    lock_done(&r->lock);
    lock_done(&r->writer);
    free(r->rules);
    free(r);
}

/* ---- decisions ---- */

static const struct router_rules no_rules = {.commands = ROUTER_COMMANDS_DEFAULT};

/* The providers with what their breakers say. With the lock held, if there is a router. */
static void look_at(struct router *r, const struct route_provider *providers, unsigned count,
                    uint64_t now, struct route_provider ret[ROUTER_PROVIDERS_MAX])
{
    for (unsigned i = 0; i < count; i++) {
        ret[i] = providers[i];
        ret[i].shut_for_ns = r ? breaker_wait(&r->breakers[i], now) : 0;
    }
}

/* With the lock held, if there is a router. */
static int decide(struct router *r, const struct route_provider *providers, unsigned count,
                  const struct route_question *q, uint64_t now, struct decision *ret,
                  struct buf *steps, struct pd_err *e)
{
    struct route_provider list[ROUTER_PROVIDERS_MAX];

    look_at(r, providers, count, now, list);
    return route_decide(r ? r->rules : &no_rules, list, count, q, ret, steps, e);
}

int router_for_command(struct router *r, const struct route_provider *providers, unsigned count,
                       const struct command_verdict *command, enum rung least, enum rung *ret_need,
                       unsigned *ret_provider, struct pd_err *e)
{
    struct route_provider list[ROUTER_PROVIDERS_MAX];
    if (r)
        lock_take(&r->lock);

    const struct router_rules *rules = r ? r->rules : &no_rules;
    look_at(r, providers, count, clock_now(), list);
    *ret_need = command ? route_rung_of(rules, list, count, command) : least;
    int bad = route_for_rung(rules, list, count, *ret_need,
                             command ? "this command" : "mode 'sandbox'", ret_provider, e);

    if (r)
        lock_release(&r->lock);
    return bad;
}

int router_explain(struct router *r, const struct route_provider *providers, unsigned count,
                   const struct route_question *q, struct decision *ret, struct buf *steps,
                   struct pd_err *e)
{
    if (!r)
        return decide(NULL, providers, count, q, 0, ret, steps, e);

    lock_take(&r->lock);
    int bad = decide(r, providers, count, q, clock_now(), ret, steps, e);
    lock_release(&r->lock);
    return bad;
}

int router_choose(struct router *r, const struct route_provider *providers, unsigned count,
                  const struct route_question *q, struct decision *ret, struct pd_err *e)
{
    if (!r)
        return decide(NULL, providers, count, q, 0, ret, NULL, e);

    uint64_t now = clock_now();
    lock_take(&r->lock);
    int bad = decide(r, providers, count, q, now, ret, NULL, e);
    if (bad == 0)
        breaker_begin(&r->breakers[ret->provider], &r->rules->breaker, now);
    lock_release(&r->lock);
    return bad;
}

void router_begun(struct router *r, unsigned provider)
{
    if (!r)
        return;
    lock_take(&r->lock);
    breaker_begin(&r->breakers[provider], &r->rules->breaker, clock_now());
    lock_release(&r->lock);
}

bool router_is_failure(const struct pd_err *why)
{
    switch (why->code) {
    case PD_INTERNAL:
    case PD_CAPACITY:
    case PD_TIMEOUT:
    case PD_LOST:
    case PD_PROTOCOL:
    case PD_BAD_GATEWAY:
    case PD_RATE:
        return true;
    default:
        return false;
    }
}

/* With the lock held. The rules may be others than those it was decided by. */
static bool note_arm(struct router *r, const struct decision *d, bool failed, uint64_t ns)
{
    struct router_experiment *x = &r->rules->experiment;
    bool counts =
        d->arm >= 0 && (unsigned)d->arm < x->count && !strcmp(x->arms[d->arm].name, d->name);
    return counts && arms_note(&r->arms, x, (unsigned)d->arm, failed, ns);
}

bool router_ended(struct router *r, const struct decision *d, uint64_t ns, const struct pd_err *why)
{
    bool failed = why && router_is_failure(why), stopped = false;
    if (!r)
        return false;

    lock_take(&r->lock);
    if (why && why->sys == ENOTCONN)
        breaker_cancel(&r->breakers[d->provider], clock_now());
    else
        breaker_end(&r->breakers[d->provider], &r->rules->breaker, failed, clock_now());
    if (failed || !why)
        stopped = note_arm(r, d, failed, ns);
    lock_release(&r->lock);
    return stopped;
}

void router_served(struct router *r, const struct decision *d, uint64_t ns)
{
    if (!r)
        return;
    lock_take(&r->lock);
    (void)note_arm(r, d, false, ns);
    lock_release(&r->lock);
}

bool router_command_ended(struct router *r, const char *arm, bool failed, uint64_t ns)
{
    bool stopped = false;
    if (!r)
        return false;

    lock_take(&r->lock);
    struct router_experiment *x = &r->rules->experiment;
    for (unsigned i = 0; i < x->count; i++)
        if (!strcmp(x->arms[i].name, arm)) {
            stopped = arms_note_command(&r->arms, x, i, failed, ns);
            break;
        }
    lock_release(&r->lock);
    return stopped;
}

/* ---- the shadow ---- */

/* With the lock held. */
static bool is_shadowed(const struct router_rules *rules, const struct route_question *q)
{
    const struct router_shadow *s = &rules->shadow;

    return s->name[0] && route_fits(q, &s->filter) && share_of(s->salt, route_key(q)) < s->share &&
           !router_list_has(&rules->disabled, s->provider);
}

unsigned router_shadow(struct router *r, const struct route_provider *providers, unsigned count,
                       const struct route_question *q, const char *primary, enum rung rung,
                       unsigned *ret)
{
    bool found = false;
    if (!r)
        return 0;

    lock_take(&r->lock);
    const char *name = r->rules->shadow.provider;
    bool wanted = is_shadowed(r->rules, q) && strcmp(name, primary) != 0;
    for (unsigned i = 0; wanted && !found && i < count; i++) {
        found = !strcmp(providers[i].name, name) && providers[i].rung >= rung &&
                !providers[i].unfit && breaker_allows(&r->breakers[i], clock_now());
        *ret = i;
    }
    unsigned rule = found ? r->shadow_rule : 0;
    lock_release(&r->lock);
    return rule;
}

bool router_shadow_holds(struct router *r, unsigned rule)
{
    if (!r)
        return false;
    lock_take(&r->lock);
    bool holds = rule == r->shadow_rule;
    lock_release(&r->lock);
    return holds;
}

void router_note_shadow(struct router *r, unsigned rule, enum parity_event event, unsigned differs)
{
    if (!r)
        return;
    lock_take(&r->lock);
    if (rule == r->shadow_rule)
        parity_note(&r->parity, event, differs);
    lock_release(&r->lock);
}

/* ---- telling ---- */

static void breaker_json(struct json *j, const struct route_provider *p, const struct breaker *b,
                         uint64_t now)
{
    json_open(j, '{');
    json_member_cstr(j, "provider", p->name);
    json_member_cstr(j, "isolation", rung_name(p->rung));
    json_member_cstr(j, "state", breaker_state_name(b->state));
    json_member_uint(j, "failures_in_row", b->in_row);
    json_member_milli(j, "retry_after_s", breaker_wait(b, now) / NS_PER_MS);
    json_close(j, '}');
}

static void older_json(struct json *j, const struct router_flag *f)
{
    json_open(j, '{');
    json_member_cstr(j, "name", f->name);
    json_member_cstr(j, "provider", f->provider);
    json_member_milli(j, "percentage", f->share * 10ull);
    json_member_cstr(j, "off", f->off[0] ? f->off : NULL);
    json_close(j, '}');
}

void router_json(struct router *r, const struct route_provider *providers, unsigned count,
                 bool with_rules, struct json *j)
{
    uint64_t now = clock_now();
    lock_take(&r->lock);

    json_member_cstr(j, "source", r->from_file ? "file" : "default");
    json_key(j, "breakers");
    json_open(j, '[');
    for (unsigned i = 0; i < count; i++)
        breaker_json(j, &providers[i], &r->breakers[i], now);
    json_close(j, ']');

    json_key(j, "experiment");
    arms_json(&r->arms, &r->rules->experiment, j);
    json_key(j, "shadow");
    parity_json(&r->parity, &r->rules->shadow, j);

    json_key(j, "older_names");
    json_open(j, '[');
    for (unsigned i = 0; i < r->rules->flag_count; i++)
        if (r->rules->flags[i].is_older)
            older_json(j, &r->rules->flags[i]);
    json_close(j, ']');

    json_key(j, "rules");
    if (with_rules)
        router_rules_json(r->rules, j);
    else
        json_none(j);
    lock_release(&r->lock);
}

void router_metrics(struct router *r, struct buf *out)
{
    if (!r)
        return;
    lock_take(&r->lock);
    arms_metrics(&r->arms, &r->rules->experiment, out);
    parity_metrics(&r->parity, &r->rules->shadow, out);
    lock_release(&r->lock);
}
