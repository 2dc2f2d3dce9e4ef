/* How this works. A decision has two halves: `choose` walks the order and finds the first choice,
 * which may be a provider that cannot be used now or is not even there; `settle` takes it if it can
 * be used, or goes through its fallbacks. Both tell `steps` what they saw. */
#include "router/decide.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "router/share.h"

#include <stdarg.h>

#define NOWHERE ROUTER_PROVIDERS_MAX

struct deciding {
    const struct router_rules *rules;
    const struct route_provider *providers;
    unsigned count;
    const struct route_question *q;
    struct buf *steps;
    /* The first choice. */
    char name[ROUTER_PROVIDER_SIZE];
    unsigned index;                 /* NOWHERE: it is not configured */
    const struct router_rule *rule; /* that fits, if there is one */
    char why[ROUTE_REASON_SIZE];
};

static void step(struct deciding *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void step(struct deciding *d, const char *fmt, ...)
{
    char text[240];
    va_list ap;

    if (!d->steps)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_puts(d->steps, text);
    buf_putc(d->steps, '\n');
}

static unsigned find(const struct deciding *d, const char *name)
{
    for (unsigned i = 0; i < d->count; i++)
        if (!strcmp(d->providers[i].name, name))
            return i;
    return NOWHERE;
}

/* ---- the first choice ---- */

static bool fits(const char *pattern, const char *value)
{
    return !*pattern || (value && !strcmp(pattern, value));
}

bool route_fits(const struct route_question *q, const struct router_filter *f)
{
    return fits(f->tenant, q->tenant) && fits(f->user, q->user) &&
           fits(f->template_name, q->template_name);
}

static const struct router_rule *find_rule(const struct deciding *d)
{
    for (unsigned i = 0; i < d->rules->rule_count; i++)
        if (route_fits(d->q, &d->rules->rules[i].filter))
            return &d->rules->rules[i];
    return NULL;
}

const char *route_key(const struct route_question *q)
{
    return q->key ? q->key : q->user ? q->user : q->tenant ? q->tenant : "";
}

static const struct router_flag *find_flag(struct deciding *d)
{
    for (unsigned i = 0; i < d->rules->flag_count; i++) {
        const struct router_flag *f = &d->rules->flags[i];
        if (f->off[0]) {
            step(d, "flag %s: off, %s", f->name, f->off);
            continue;
        }

        unsigned bucket = share_of(f->salt, route_key(d->q));
        bool in = bucket < f->share;
        step(d, "flag %s: bucket %u of %u, %s", f->name, bucket, SHARE_ALL,
             in ? "in its share" : "not in its share");
        if (in)
            return f;
    }
    return NULL;
}

static const struct router_arm *find_arm(struct deciding *d)
{
    const struct router_experiment *x = &d->rules->experiment;
    uint64_t sum = 0, upto = 0;
    if (!x->count)
        return NULL;
    if (x->stopped[0]) {
        step(d, "experiment %s: stopped, %s", x->name, x->stopped);
        return NULL;
    }

    for (unsigned i = 0; i < x->count; i++)
        sum += x->arms[i].weight;

    unsigned bucket = share_of(x->salt, route_key(d->q));
    unsigned i = 0;
    for (; i + 1 < x->count; i++) {
        upto += x->arms[i].weight;
        if (bucket * sum < upto * SHARE_ALL)
            break;
    }
    step(d, "experiment %s: bucket %u of %u, arm %s", x->name, bucket, SHARE_ALL, x->arms[i].name);
    return &x->arms[i];
}

static const char *usual_name(const struct deciding *d)
{
    return d->rules->usual[0] ? d->rules->usual : d->providers[0].name;
}

enum rung route_rung_of(const struct router_rules *rules, const struct route_provider *providers,
                        unsigned count, const struct command_verdict *command)
{
    enum rung need = RUNG_NONE, most = RUNG_NONE;

    for (unsigned i = 0; i < count; i++)
        if (!providers[i].unfit && !router_list_has(&rules->disabled, providers[i].name) &&
            providers[i].rung > most)
            most = providers[i].rung;
    for (unsigned c = 0; c < COMMAND_CLASSES; c++) {
        enum rung least = rules->commands[c] == RUNG_COUNT ? most : rules->commands[c];
        if (command->classes >> c & 1 && least > need)
            need = least;
    }
    return need;
}

/* The provider with the lowest rung that will do; of equals one that does not fail, then the first.
 * NOWHERE: none isolates enough. */
static unsigned find_cheapest(const struct router_rules *rules,
                              const struct route_provider *providers, unsigned count,
                              enum rung need)
{
    unsigned best = NOWHERE;

    for (unsigned i = 0; i < count; i++) {
        const struct route_provider *p = &providers[i], *b = &providers[best % count];
        if (p->rung < need || p->unfit || router_list_has(&rules->disabled, p->name))
            continue;
        if (best == NOWHERE || (b->shut_for_ns && !p->shut_for_ns) ||
            (!b->shut_for_ns == !p->shut_for_ns && p->rung < b->rung))
            best = i;
    }
    return best;
}

/* Nothing isolates enough, or what does cannot make this sandbox. */
static int refuse_rung(const struct router_rules *rules, const struct route_provider *providers,
                       unsigned count, enum rung need, const char *why, struct pd_err *e)
{
    for (unsigned i = 0; i < count; i++)
        if (providers[i].unfit && providers[i].rung >= need &&
            !router_list_has(&rules->disabled, providers[i].name))
            return pd_fail(e, PD_ISOLATION,
                           "no provider of this server that can make this sandbox has isolation "
                           "'%s', which %s needs: provider %s %s",
                           rung_name(need), why, providers[i].name, providers[i].unfit);
    return pd_fail(e, PD_ISOLATION, "no provider of this server has isolation '%s', which %s needs",
                   rung_name(need), why);
}

int route_for_rung(const struct router_rules *rules, const struct route_provider *providers,
                   unsigned count, enum rung need, const char *why, unsigned *ret, struct pd_err *e)
{
    *ret = find_cheapest(rules, providers, count, need);
    return *ret == NOWHERE ? refuse_rung(rules, providers, count, need, why, e) : 0;
}

/* ---- modes ---- */

/* A mode and a provider that is named beside it must not contradict each other. */
static int choose_local(struct deciding *d, struct pd_err *e)
{
    const char *asked = d->q->asked;

    if (asked && strcmp(asked, "auto") != 0 && strcmp(asked, "local") != 0)
        return pd_fail(e, PD_INVALID,
                       "mode 'local' is provider 'local', and provider '%.40s' was asked for: say "
                       "one of them",
                       asked);
    if (find(d, "local") == NOWHERE)
        return pd_fail(e, PD_DENIED,
                       "mode 'local' runs commands without isolation, which the operator of this "
                       "server has not allowed: use sandbox or auto");
    return 0;
}

/* A provider without isolation is replaced by the cheapest that has some, unless the request names
 * it. */
static int raise_to_sandbox(struct deciding *d, enum route_by by, struct pd_err *e)
{
    unsigned i = d->index;
    if (i == NOWHERE || d->providers[i].rung > RUNG_NONE)
        return 0;
    if (by == ROUTE_BY_REQUEST)
        return pd_fail(e, PD_ISOLATION,
                       "provider '%s' has no isolation, and mode 'sandbox' was asked for: say one "
                       "of them",
                       d->name);
    if (route_for_rung(d->rules, d->providers, d->count, RUNG_BASIC, "mode 'sandbox'", &d->index,
                       e) < 0)
        return -1;

    snprintf(d->why, sizeof d->why, "mode sandbox: %.31s has no isolation", d->name);
    snprintf(d->name, sizeof d->name, "%s", d->providers[d->index].name);
    return 0;
}

/* ---- images ---- */

/* A choice that cannot make this sandbox, because that has an image or has none, is replaced by the
 * first that can, unless the request or a rule names it. What isolates stays so. Without one the
 * choice stays, and says itself what it cannot do. */
static void replace_unfit(struct deciding *d, enum route_by by)
{
    unsigned found = NOWHERE;
    if (d->index == NOWHERE || !d->providers[d->index].unfit || by == ROUTE_BY_REQUEST ||
        by == ROUTE_BY_RULE)
        return;

    enum rung least = d->providers[d->index].rung > RUNG_NONE || d->q->mode == MODE_SANDBOX
                          ? RUNG_BASIC
                          : RUNG_NONE;
    for (unsigned i = 0; i < d->count; i++) {
        const struct route_provider *p = &d->providers[i];
        if (p->unfit || p->rung < least || router_list_has(&d->rules->disabled, p->name))
            continue;
        if (found == NOWHERE || (d->providers[found].shut_for_ns && !p->shut_for_ns))
            found = i;
    }
    if (found == NOWHERE)
        return;

    char before[ROUTE_REASON_SIZE];
    memcpy(before, d->why, sizeof before);
    snprintf(d->why, sizeof d->why, "%.31s %.30s (%.50s)", d->name, d->providers[d->index].unfit,
             before);
    d->index = found;
    snprintf(d->name, sizeof d->name, "%s", d->providers[found].name);
}

/* ---- the order ---- */

/* The cheapest provider for the command; in mode auto without one, for a line that only reads. */
static int choose_cheapest(struct deciding *d, struct decision *ret, const char **ret_name,
                           struct pd_err *e)
{
    static const struct command_verdict first = {.what = COMMAND_READS,
                                                 .classes = 1u << COMMAND_READS};
    const struct command_verdict *command = d->q->command ? d->q->command : &first;
    const char *what = command_class_name(command->what);
    enum rung need = route_rung_of(d->rules, d->providers, d->count, command);
    unsigned i = find_cheapest(d->rules, d->providers, d->count, need);

    if (d->q->command)
        step(d, "command: %s, %s", what, command->reason);
    if (i == NOWHERE) {
        char why[240];
        snprintf(why, sizeof why, "a command of class %s (%s)", what,
                 d->q->command ? command->reason : "mode auto begins with one");
        return refuse_rung(d->rules, d->providers, d->count, need, why, e);
    }

    ret->by = ROUTE_BY_COMMAND;
    *ret_name = d->providers[i].name;
    snprintf(ret->name, sizeof ret->name, "%s", d->q->command ? what : "");
    if (d->q->command)
        snprintf(d->why, sizeof d->why, "cheapest with isolation %s, for a command of class %s",
                 rung_name(need), what);
    else
        snprintf(d->why, sizeof d->why, "mode auto: the cheapest, until a command needs more");
    return 0;
}

static int choose(struct deciding *d, struct decision *ret, struct pd_err *e)
{
    const struct router_flag *flag = NULL;
    const struct router_arm *arm = NULL;
    const char *asked = d->q->asked, *name = "";

    d->rule = find_rule(d);
    if (d->rule)
        step(d, "rule %s: fits", d->rule->name);
    else if (d->rules->rule_count)
        step(d, "rules: none of %u fits", d->rules->rule_count);

    if (d->q->mode == MODE_LOCAL) {
        if (choose_local(d, e) < 0)
            return -1;
        ret->by = ROUTE_BY_REQUEST;
        name = "local";
        snprintf(d->why, sizeof d->why, "mode local was asked for");
    } else if (asked && strcmp(asked, "auto") != 0) {
        ret->by = ROUTE_BY_REQUEST;
        name = asked;
        snprintf(d->why, sizeof d->why, "asked for by the request");
    } else if (d->rule && d->rule->provider[0]) {
        ret->by = ROUTE_BY_RULE;
        name = d->rule->provider;
        snprintf(ret->name, sizeof ret->name, "%s", d->rule->name);
        snprintf(d->why, sizeof d->why, "rule %s", d->rule->name);
    } else if (d->q->command || d->q->mode == MODE_AUTO) {
        if (choose_cheapest(d, ret, &name, e) < 0)
            return -1;
    } else if ((flag = find_flag(d))) {
        ret->by = ROUTE_BY_FLAG;
        name = flag->provider;
        snprintf(ret->name, sizeof ret->name, "%s", flag->name);
        snprintf(d->why, sizeof d->why, "flag %s at %g %%", flag->name, flag->share / 100.0);
    } else if ((arm = find_arm(d))) {
        ret->by = ROUTE_BY_ARM;
        ret->arm = (int)(arm - d->rules->experiment.arms);
        name = arm->provider;
        snprintf(ret->name, sizeof ret->name, "%s", arm->name);
        snprintf(d->why, sizeof d->why, "arm %.50s of experiment %.50s", arm->name,
                 d->rules->experiment.name);
    } else {
        ret->by = ROUTE_BY_DEFAULT;
        name = usual_name(d);
        snprintf(d->why, sizeof d->why, "default provider of this server");
    }

    snprintf(d->name, sizeof d->name, "%.31s", name);
    d->index = strlen(name) < sizeof d->name ? find(d, name) : NOWHERE;
    if (d->q->mode == MODE_SANDBOX && raise_to_sandbox(d, ret->by, e) < 0)
        return -1;
    replace_unfit(d, ret->by);
    step(d, "choice: %.31s, %s", d->name, d->why);
    return 0;
}

/* ---- whether it can be used ---- */

/* NULL when it can; else why not, as the end of a sentence. */
static const char *obstacle(const struct deciding *d, const char *name, unsigned index)
{
    if (index == NOWHERE)
        return "is not configured";
    if (router_list_has(&d->rules->disabled, name))
        return "is switched off";
    return d->providers[index].shut_for_ns ? "fails and is left alone" : NULL;
}

/* The rung that a fallback must have at least. */
static enum rung floor_of(const struct deciding *d)
{
    const struct known_provider *k = known_provider_find(d->name);
    if (d->rules->allow_weaker && d->q->allow_weaker)
        return d->q->mode == MODE_SANDBOX ? RUNG_BASIC : RUNG_NONE;
    return d->index != NOWHERE ? d->providers[d->index].rung : k ? k->rung : RUNG_FULL;
}

/* Adds one that can be used, is not there yet and isolates well enough. */
static void add_fallback(struct deciding *d, const char *name, unsigned *found, unsigned *count)
{
    unsigned i = find(d, name);
    const char *why = obstacle(d, name, i);

    for (unsigned k = 0; k < *count; k++)
        if (found[k] == i)
            return;
    if (i == d->index || *count == ROUTER_HOPS_MAX)
        return;

    if (why)
        step(d, "fallback %s: %s", name, why);
    else if (d->providers[i].unfit)
        step(d, "fallback %s: %s", name, d->providers[i].unfit);
    else if (d->providers[i].rung < floor_of(d))
        step(d, "fallback %s: isolates less (%s, not %s)", name, rung_name(d->providers[i].rung),
             rung_name(floor_of(d)));
    else {
        step(d, "fallback %s: possible", name);
        found[(*count)++] = i;
    }
}

static unsigned find_fallbacks(struct deciding *d, enum route_by by,
                               unsigned found[ROUTER_HOPS_MAX])
{
    const struct router_list *list = d->rule && d->rule->has_fallback ? &d->rule->fallback
                                     : by == ROUTE_BY_REQUEST         ? NULL
                                                                      : &d->rules->fallback;
    unsigned count = 0;

    for (unsigned i = 0; list && i < list->count; i++)
        add_fallback(d, list->names[i], found, &count);
    if (by == ROUTE_BY_FLAG || by == ROUTE_BY_ARM)
        add_fallback(d, usual_name(d), found, &count);
    return count;
}

/* Nothing can be used: says what to do about it. */
static int refuse(const struct deciding *d, struct pd_err *e)
{
    char valid[ROUTER_PROVIDERS_MAX * (ROUTER_PROVIDER_SIZE + 2) + 1] = "";
    size_t at = 0;

    for (unsigned i = 0; i < d->count; i++)
        at += (size_t)snprintf(valid + at, sizeof valid - at, ", %s", d->providers[i].name);

    if (d->index == NOWHERE && known_provider_find(d->name))
        return pd_fail(e, PD_INVALID,
                       "provider '%s' is not configured on this server: configured are auto%s",
                       d->name, valid);
    if (d->index == NOWHERE)
        return pd_fail(e, PD_INVALID, "provider '%.40s' is not one of this server's: auto%s",
                       d->q->asked ? d->q->asked : d->name, valid);

    const char *name = d->providers[d->index].name;
    if (router_list_has(&d->rules->disabled, name))
        return pd_fail(e, PD_DENIED,
                       "provider '%s' is switched off by the operator, and no fallback is allowed: "
                       "this server has auto%s",
                       name, valid);
    return pd_fail(e, PD_CAPACITY,
                   "provider '%s' fails and is left alone for %.0f s, and no fallback is allowed: "
                   "try again then",
                   name, (double)d->providers[d->index].shut_for_ns / 1e9 + 0.5);
}

/* When every breaker is open, the breakers are suspect: the default is tried all the same, in the
 * place of whatever a flag or an arm said. NOWHERE: one is closed, or the default will not do. */
static unsigned find_last_resort(const struct deciding *d, enum route_by by)
{
    for (unsigned i = 0; i < d->count; i++)
        if (!d->providers[i].shut_for_ns &&
            !router_list_has(&d->rules->disabled, d->providers[i].name))
            return NOWHERE;
    if (by == ROUTE_BY_REQUEST || by == ROUTE_BY_RULE)
        return NOWHERE;

    unsigned i = find(d, usual_name(d));
    bool will_do = i != NOWHERE && !d->providers[i].unfit &&
                   !router_list_has(&d->rules->disabled, usual_name(d)) &&
                   d->providers[i].rung >= floor_of(d);
    return will_do ? i : NOWHERE;
}

static int settle(struct deciding *d, struct decision *ret, struct pd_err *e)
{
    unsigned found[ROUTER_HOPS_MAX];
    unsigned count = find_fallbacks(d, ret->by, found);
    const char *why = obstacle(d, d->name, d->index);

    if (!why) {
        ret->provider = d->index;
        memcpy(ret->next, found, sizeof found);
        ret->next_count = count;
        snprintf(ret->reason, sizeof ret->reason, "%s", d->why);
        return 0;
    }

    step(d, "%s: %s", d->name, why);
    if (count) {
        ret->provider = found[0];
        ret->next_count = count - 1;
        memcpy(ret->next, found + 1, (count - 1) * sizeof *found);
        ret->is_fallback = true;
        snprintf(ret->reason, sizeof ret->reason, "fallback: %.31s %.30s (%.50s)", d->name, why,
                 d->why);
        return 0;
    }

    unsigned last = find_last_resort(d, ret->by);
    if (last == NOWHERE)
        return refuse(d, e);
    ret->provider = last;
    ret->is_fallback = last != d->index;
    snprintf(ret->reason, sizeof ret->reason,
             "default: every provider failed, so it is tried again");
    return 0;
}

int route_decide(const struct router_rules *rules, const struct route_provider *providers,
                 unsigned count, const struct route_question *q, struct decision *ret,
                 struct buf *steps, struct pd_err *e)
{
    struct deciding d = {
        .rules = rules, .providers = providers, .count = count, .q = q, .steps = steps};
    struct decision route = {.arm = -1};

    if (choose(&d, &route, e) < 0 || settle(&d, &route, e) < 0)
        return -1;
    /* The deeds of another provider in its place say nothing of an arm. */
    if (route.arm >= 0 &&
        strcmp(rules->experiment.arms[route.arm].provider, providers[route.provider].name) != 0)
        route.arm = -1;

    step(&d, "result: %s, %s", providers[route.provider].name, route.reason);
    *ret = route;
    return 0;
}

const char *route_by_name(enum route_by by)
{
    static const char *const names[] = {"request", "rule", "command", "flag", "arm", "default"};
    return names[by];
}
