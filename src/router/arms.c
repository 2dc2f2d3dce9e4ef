/* How this works: two counters and a sum for each arm, of creations and of commands. The guard
 * looks at an arm's whole life, not at a window: an experiment is short, and a provider that fails
 * for a while is the breaker's. */
#include "router/arms.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"

/* Stops the experiment if that many of these are too many. `least` 0: nobody looks at them. */
static bool guard(struct router_experiment *x, unsigned arm, uint64_t failed, uint64_t all,
                  unsigned least, const char *what)
{
    if (x->stopped[0] || !least || all < least || failed * 100 < all * x->guard.percent)
        return false;

    snprintf(x->stopped, sizeof x->stopped,
             "arm %.50s failed at %llu of %llu %s, the guard is at %u %%", x->arms[arm].name,
             (unsigned long long)failed, (unsigned long long)all, what, x->guard.percent);
    return true;
}

bool arms_note(struct arms *a, struct router_experiment *x, unsigned arm, bool failed, uint64_t ns)
{
    struct arm_count *c = &a->list[arm];

    c->made += !failed;
    c->failed += failed;
    c->ns += ns;
    return guard(x, arm, c->failed, c->made + c->failed, x->guard.creations, "creations");
}

bool arms_note_command(struct arms *a, struct router_experiment *x, unsigned arm, bool failed,
                       uint64_t ns)
{
    struct arm_count *c = &a->list[arm];

    c->commands++;
    c->commands_failed += failed;
    c->command_ns += ns;
    return guard(x, arm, c->commands_failed, c->commands, x->guard.commands, "commands");
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

static void arm_json(const struct arm_count *c, const struct router_arm *arm, struct json *j)
{
    uint64_t all = c->made + c->failed;

    json_open(j, '{');
    json_member_cstr(j, "name", arm->name);
    json_member_cstr(j, "provider", arm->provider);
    json_member_uint(j, "made", c->made);
    json_member_uint(j, "failed", c->failed);
    json_member_milli(j, "mean_ms", all ? c->ns / all / (NS_PER_MS / 1000) : 0);
    json_member_uint(j, "commands", c->commands);
    json_member_uint(j, "commands_failed", c->commands_failed);
    json_member_milli(j, "command_mean_ms",
                      c->commands ? c->command_ns / c->commands / (NS_PER_MS / 1000) : 0);
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

static void put_commands(const struct arms *a, const struct router_experiment *x, struct buf *out)
{
    static const char commands[] = "paddock_experiment_commands_total";
    static const char seconds[] = "paddock_experiment_command_seconds_total";

    buf_printf(out, "# HELP %s Commands in sandboxes of an arm\n# TYPE %s counter\n", commands,
               commands);
    for (unsigned i = 0; i < x->count; i++) {
        put_metric(out, commands, x, i, "ended");
        buf_printf(out, "%llu\n",
                   (unsigned long long)(a->list[i].commands - a->list[i].commands_failed));
        put_metric(out, commands, x, i, "failed");
        buf_printf(out, "%llu\n", (unsigned long long)a->list[i].commands_failed);
    }

    buf_printf(out, "# HELP %s Seconds that those commands took\n# TYPE %s counter\n", seconds,
               seconds);
    for (unsigned i = 0; i < x->count; i++) {
        put_metric(out, seconds, x, i, NULL);
        buf_printf(out, "%.6f\n", (double)a->list[i].command_ns / NS_PER_S);
    }
}

void arms_metrics(const struct arms *a, const struct router_experiment *x, struct buf *out)
{
    static const char creations[] = "paddock_experiment_creations_total";
    static const char seconds[] = "paddock_experiment_creation_seconds_total";
    if (!x->count)
        return;

    buf_printf(out, "# HELP %s Creations of an arm of the router's experiment\n# TYPE %s counter\n",
               creations, creations);
    for (unsigned i = 0; i < x->count; i++) {
        put_metric(out, creations, x, i, "made");
        buf_printf(out, "%llu\n", (unsigned long long)a->list[i].made);
        put_metric(out, creations, x, i, "failed");
        buf_printf(out, "%llu\n", (unsigned long long)a->list[i].failed);
    }

    buf_printf(out, "# HELP %s Seconds that those creations took\n# TYPE %s counter\n", seconds,
               seconds);
    for (unsigned i = 0; i < x->count; i++) {
        put_metric(out, seconds, x, i, NULL);
        buf_printf(out, "%.6f\n", (double)a->list[i].ns / NS_PER_S);
    }

    put_commands(a, x, out);
    buf_puts(out, "# HELP paddock_experiment_stopped 1 when the guard has stopped it\n"
                  "# TYPE paddock_experiment_stopped gauge\npaddock_experiment_stopped{");
    put_label(out, "experiment", x->name);
    buf_printf(out, "} %d\n", x->stopped[0] != 0);
}
