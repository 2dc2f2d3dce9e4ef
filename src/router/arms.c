/* How this works: two counters and a sum for each arm, of creations and of commands. The guard
 * looks at an arm's whole life, not at a window: an experiment is short, and a provider that fails
 * for a while is the breaker's. */
#include "router/arms.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"

/* Counts one more, and stops the experiment if too many have failed. `least`: so many are waited
 * for; 0: nobody looks at them. */
static bool tally_note(struct arm_tally *t, struct router_experiment *x, unsigned arm, bool failed,
                       uint64_t ns, unsigned least, const char *what)
{
    t->good += !failed;
    t->failed += failed;
    t->ns += ns;

    uint64_t all = t->good + t->failed;
    if (x->stopped[0] || !least || all < least || t->failed * 100 < all * x->guard.percent)
        return false;

    snprintf(x->stopped, sizeof x->stopped,
             "arm %.50s failed at %llu of %llu %s, the guard is at %u %%", x->arms[arm].name,
             (unsigned long long)t->failed, (unsigned long long)all, what, x->guard.percent);
    return true;
}

bool arms_note(struct arms *a, struct router_experiment *x, unsigned arm, bool failed, uint64_t ns)
{
    return tally_note(&a->list[arm].creations, x, arm, failed, ns, x->guard.creations, "creations");
}

bool arms_note_command(struct arms *a, struct router_experiment *x, unsigned arm, bool failed,
                       uint64_t ns)
{
    return tally_note(&a->list[arm].commands, x, arm, failed, ns, x->guard.commands, "commands");
}

bool experiment_is_same(const struct router_experiment *a, const struct router_experiment *b)
{
    if (a->count != b->count || strcmp(a->name, b->name) != 0 || strcmp(a->salt, b->salt) != 0 ||
        a->guard.percent != b->guard.percent || a->guard.creations != b->guard.creations ||
        a->guard.commands != b->guard.commands)
        return false;

    for (unsigned i = 0; i < a->count; i++)
        if (a->arms[i].weight != b->arms[i].weight ||
            strcmp(a->arms[i].name, b->arms[i].name) != 0 ||
            strcmp(a->arms[i].provider, b->arms[i].provider) != 0)
            return false;
    return true;
}

/* In thousandths of a millisecond. */
static uint64_t tally_mean(const struct arm_tally *t)
{
    uint64_t all = t->good + t->failed;
    return all ? t->ns / all / (NS_PER_MS / 1000) : 0;
}

static void arm_json(const struct arm_count *c, const struct router_arm *arm, struct json *j)
{
    json_open(j, '{');
    json_member_cstr(j, "name", arm->name);
    json_member_cstr(j, "provider", arm->provider);
    json_member_uint(j, "made", c->creations.good);
    json_member_uint(j, "failed", c->creations.failed);
    json_member_milli(j, "mean_ms", tally_mean(&c->creations));
    json_member_uint(j, "commands", c->commands.good + c->commands.failed);
    json_member_uint(j, "commands_failed", c->commands.failed);
    json_member_milli(j, "command_mean_ms", tally_mean(&c->commands));
    json_close(j, '}');
}

void arms_json(const struct arms *a, const struct router_experiment *x, struct json *j)
{
    if (!x->count) {
        json_none(j);
        return;
    }

    json_open(j, '{');
    json_member_cstr(j, "name", x->name);
    json_member_cstr(j, "stopped", x->stopped[0] ? x->stopped : NULL);
    json_key(j, "arms");
    json_open(j, '[');
    for (unsigned i = 0; i < x->count; i++)
        arm_json(&a->list[i], &x->arms[i], j);
    json_close(j, ']');
    json_close(j, '}');
}

/* Names are the operator's, and may have any character. */
static void put_label(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            buf_putc(out, '\\');
        buf_putc(out, *value == '\n' ? ' ' : *value);
    }
    buf_putc(out, '"');
}

static void put_metric(struct buf *out, const char *metric, const struct router_experiment *x,
                       unsigned arm, const char *result)
{
    buf_printf(out, "%s{", metric);
    put_label(out, "experiment", x->name);
    buf_putc(out, ',');
    put_label(out, "arm", x->arms[arm].name);
    if (result)
        buf_printf(out, ",result=\"%s\"", result);
    buf_puts(out, "} ");
}

/* What the metrics of a tally are called. */
struct tally_words {
    const char *total, *total_help, *good, *seconds, *seconds_help;
};

static void put_tally(struct buf *out, const struct arms *a, const struct router_experiment *x,
                      const struct tally_words *w, bool commands)
{
    const struct arm_tally *t[ROUTER_ARMS_MAX];
    for (unsigned i = 0; i < x->count; i++)
        t[i] = commands ? &a->list[i].commands : &a->list[i].creations;

    buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n", w->total, w->total_help, w->total);
    for (unsigned i = 0; i < x->count; i++) {
        put_metric(out, w->total, x, i, w->good);
        buf_printf(out, "%llu\n", (unsigned long long)t[i]->good);
        put_metric(out, w->total, x, i, "failed");
        buf_printf(out, "%llu\n", (unsigned long long)t[i]->failed);
    }

    buf_printf(out, "# HELP %s %s\n# TYPE %s counter\n", w->seconds, w->seconds_help, w->seconds);
    for (unsigned i = 0; i < x->count; i++) {
        put_metric(out, w->seconds, x, i, NULL);
        buf_printf(out, "%.6f\n", (double)t[i]->ns / NS_PER_S);
    }
}

void arms_metrics(const struct arms *a, const struct router_experiment *x, struct buf *out)
{
    static const struct tally_words creations = {
        "paddock_experiment_creations_total", "Creations of an arm of the router's experiment",
        "made", "paddock_experiment_creation_seconds_total", "Seconds that those creations took"};
    static const struct tally_words commands = {
        "paddock_experiment_commands_total", "Commands in sandboxes of an arm", "ended",
        "paddock_experiment_command_seconds_total", "Seconds that those commands took"};
    if (!x->count)
        return;

    put_tally(out, a, x, &creations, false);
    put_tally(out, a, x, &commands, true);
    buf_puts(out, "# HELP paddock_experiment_stopped 1 when the guard has stopped it\n"
                  "# TYPE paddock_experiment_stopped gauge\npaddock_experiment_stopped{");
    put_label(out, "experiment", x->name);
    buf_printf(out, "} %d\n", x->stopped[0] != 0);
}
