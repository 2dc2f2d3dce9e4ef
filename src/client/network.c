/* `paddock network`: the rules of a sandbox's way out, and what became of its connections; and the
 * options about rules, which `paddock create` has as well. */
#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "client/client.h"
#include "client/table.h"

#include <poll.h>
#include <stdbool.h>

#define FOLLOW_MS 1000
#define LINE_SIZE 4096u

const char network_usage[] =
    "usage: paddock network show [--json] ID\n"
    "       paddock network set [OPTIONS] ID\n"
    "       paddock network log [--denied] [--after N] [-f] [--json] ID\n\n"
    "The rules of a sandbox's way out, other rules in their place, and its connections.\n"
    "`set` replaces all: what is not said is not allowed any more, and what is open is cut.\n\n"
    "  --allow RULE           NAME[:PORTS], *.NAME[:PORTS] or NETWORK[:PORTS]; repeatable\n"
    "  --deny NETWORK[:PORTS] not there, with --egress open; repeatable\n"
    "  --egress MODE          off, list (what --allow names) or open\n"
    "  --secret VARIABLE=NAME@HOST[,HOST]...  a secret that it can use and not read\n"
    "  --denied               only what was refused or cut\n"
    "  --after N              only what ended after the one with this number\n"
    "  -f, --follow           go on until interrupted\n"
    "  --json                 as JSON\n";

/* ---- options about rules ---- */

/* --allow, --deny and --egress. */
static int put_rule(json_t *network, const char *option, const char *v, struct pd_err *e)
{
    bool is_mode = !strcmp(option, "--egress");
    const char *member = is_mode ? "mode" : option + 2;
    json_t *value = json_string(v), *list = json_object_get(network, member);

    if (!value)
        return pd_fail(e, PD_INVALID, "%s: the value is not UTF-8", option);
    if (is_mode)
        return json_object_set_new(network, member, value);
    if (!list) {
        list = json_array();
        json_object_set_new(network, member, list);
    }
    return json_array_append_new(list, value);
}

/* --secret VARIABLE=NAME@HOST[,HOST]... */
static int put_secret(json_t *network, const char *v, struct pd_err *e)
{
    const char *equals = strchr(v, '='), *at = equals ? strchr(equals, '@') : NULL;
    json_t *list = json_object_get(network, "secrets"), *hosts = json_array();

    if (!at || equals == v || at == equals + 1 || !at[1]) {
        json_decref(hosts);
        return pd_fail(e, PD_INVALID,
                       "--secret: '%.100s' is not VARIABLE=NAME@HOST[,HOST]... of a secret that "
                       "`paddock secret set` has made",
                       v);
    }
    for (const char *p = at + 1; *p;) {
        size_t len = strcspn(p, ",");
        json_array_append_new(hosts, json_stringn(p, len));
        p += len + (p[len] == ',');
    }
    if (!list) {
        list = json_array();
        json_object_set_new(network, "secrets", list);
    }
    json_t *one = json_pack("{ss%ss%so}", "env", v, equals - v, "secret", equals + 1,
                            at - equals - 1, "hosts", hosts);
    return one ? json_array_append_new(list, one)
               : pd_fail(e, PD_INVALID, "--secret: the value is not UTF-8");
}

int network_option(json_t *network, struct options *o, struct pd_err *e)
{
    static const char *const rules[] = {"--allow", "--deny", "--egress"};
    const char *v;

    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (options_is(o, NULL, rules[i])) {
            v = options_value(o, e);
            return v && put_rule(network, rules[i], v, e) == 0 ? 1 : -1;
        }
    if (!options_is(o, NULL, "--secret"))
        return 0;
    v = options_value(o, e);
    return v && put_secret(network, v, e) == 0 ? 1 : -1;
}

/* ---- the verbs ---- */

struct network {
    json_t *rules; /* of set */
    const char *id, *after;
    int json, denied, follow;
};

static int call(const struct network *n, enum http_method method, const char *more, json_t *body,
                json_t **ret, struct pd_err *e)
{
    auto_buf target = BUF_INIT(HTTP_TARGET_MAX);
    auto_remote *r = remote_new(e);
    if (!r)
        return -1;

    buf_printf(&target, "/v1/sandboxes/%s/network%s", n->id, more);
    struct remote_request q = {.method = method, .target = buf_cstr(&target), .json = body};
    return remote_call(r, &q, ret, e) < 0 ? -1 : 0;
}

/* A line of what the server said, escaped: some of it are strangers' words. */
static void print_buf(struct buf *line)
{
    const char *text = buf_cstr(line);
    print_line(text ? text : "(too long)");
}

static void print_list(const json_t *rules, const char *member)
{
    size_t i;
    json_t *one;

    json_array_foreach(json_object_get(rules, member), i, one)
    {
        auto_buf line = BUF_INIT(LINE_SIZE);
        buf_printf(&line, "%s %s", member, json_string_value(one));
        print_buf(&line);
    }
}

static void print_secrets(const json_t *rules)
{
    size_t i, k;
    json_t *one, *host;

    json_array_foreach(json_object_get(rules, "secrets"), i, one)
        json_array_foreach(json_object_get(one, "hosts"), k, host)
    {
        auto_buf line = BUF_INIT(LINE_SIZE);
        buf_printf(&line, "secret %s %s %s", json_field(one, "env"), json_field(one, "secret"),
                   json_string_value(host));
        print_buf(&line);
    }
}

static void print_headers(const json_t *rules)
{
    size_t i;
    json_t *one;

    json_array_foreach(json_object_get(rules, "headers"), i, one)
    {
        auto_buf line = BUF_INIT(LINE_SIZE);
        buf_printf(&line, "header %s %s", json_field(one, "host"), json_field(one, "name"));
        print_buf(&line);
    }
}

static int print_rules(const json_t *rules)
{
    auto_buf mode = BUF_INIT(LINE_SIZE), proxy = BUF_INIT(LINE_SIZE);
    const json_t *through = json_object_get(rules, "proxy");

    buf_printf(&mode, "mode %s", json_field(rules, "mode"));
    print_buf(&mode);
    print_list(rules, "allow");
    print_list(rules, "deny");
    print_secrets(rules);
    print_headers(rules);
    if (json_is_object(through)) {
        buf_printf(&proxy, "proxy %s", json_field(through, "address"));
        print_buf(&proxy);
    }
    return 0;
}

static int show(const struct network *n, struct pd_err *e)
{
    json_auto_t *rules = NULL;
    if (call(n, HTTP_GET, "", NULL, &rules, e) < 0)
        return -1;
    return n->json ? print_json(rules) : print_rules(rules);
}

static int set(const struct network *n, struct pd_err *e)
{
    json_auto_t *rules = NULL;
    if (!json_object_size(n->rules))
        return pd_fail(e, PD_INVALID, "network set: write --allow RULE, or --egress off");
    if (call(n, HTTP_PUT, "", n->rules, &rules, e) < 0)
        return -1;
    return n->json ? print_json(rules) : print_rules(rules);
}

/* A line that stands for itself, so that it can be followed and searched. */
static void print_entry(const json_t *n)
{
    const char *name = json_field(n, "name"), *address = json_field(n, "address");
    const char *rule = json_field(n, "rule"), *why = json_field(n, "why");
    auto_buf line = BUF_INIT(LINE_SIZE);

    buf_printf(&line, "%s %-7s %s:%lld", json_field(n, "time"), json_field(n, "result"),
               *name ? name : address, (long long)json_field_int(n, "port"));
    if (*name && *address)
        buf_printf(&line, " (%s)", address);
    buf_printf(&line, " up %lld down %lld", (long long)json_field_int(n, "up"),
               (long long)json_field_int(n, "down"));
    if (*rule)
        buf_printf(&line, " by %s", rule);
    buf_printf(&line, "%s%s", *why ? ": " : "", why);
    print_buf(&line);
}

static int print_log(const struct network *n, json_t *answer)
{
    size_t i;
    json_t *one;

    if (n->json && !n->follow)
        return print_json(answer);
    json_array_foreach(json_object_get(answer, "entries"), i, one) if (n->json)(void)
        print_json(one);
    else print_entry(one);
    return fflush(stdout) == EOF ? -1 : 0;
}

static int log_of(const struct network *n, struct pd_err *e)
{
    char after[24];

    snprintf(after, sizeof after, "%s", n->after ? n->after : "0");
    do {
        char more[80];
        json_auto_t *answer = NULL;
        snprintf(more, sizeof more, "/log?limit=1000&after=%s%s", after,
                 n->denied ? "&denied=true" : "");
        if (call(n, HTTP_GET, more, NULL, &answer, e) < 0)
            return -1;
        if (print_log(n, answer) < 0)
            return pd_fail(e, PD_INTERNAL, "the output cannot be written");
        snprintf(after, sizeof after, "%lld", (long long)json_field_int(answer, "next"));
        if (n->follow)
            (void)poll(NULL, 0, FOLLOW_MS);
    } while (n->follow);
    return 0;
}

/* ---- the command ---- */

static const struct {
    const char *name;
    int (*run)(const struct network *n, struct pd_err *e);
} verbs[] = {{"show", show}, {"set", set}, {"log", log_of}};

static int parse_one(struct network *n, bool is_set, bool is_log, struct options *o,
                     struct pd_err *e)
{
    uint64_t number;
    int taken = is_set ? network_option(n->rules, o, e) : 0;

    if (taken)
        return taken < 0 ? -1 : 0;
    if (options_is(o, NULL, "--json"))
        n->json = 1;
    else if (is_log && options_is(o, NULL, "--denied"))
        n->denied = 1;
    else if (is_log && options_is(o, "-f", "--follow"))
        n->follow = 1;
    else if (is_log && options_is(o, NULL, "--after"))
        return (n->after = options_value(o, e))
                   ? parse_u64("--after", n->after, 0, INT64_MAX, &number, e)
                   : -1;
    else
        return usage_unknown(o, e);
    return options_no_value(o, e);
}

static int run(struct network *n, size_t verb, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    int count;

    o.mixed = 1;
    while (options_next(&o))
        if (parse_one(n, verb == 1, verb == 2, &o, e) < 0)
            return -1;
    char **args = options_arguments(&o, &count);
    if (one_id("network", args, count, e) < 0)
        return -1;
    n->id = args[0];
    return 0;
}

int cmd_network(int argc, char **argv)
{
    struct pd_err e;
    json_auto_t *rules = json_object();
    struct network n = {.rules = rules};

    for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(argv[1], verbs[i].name) != 0)
            continue;
        if (run(&n, i, argc - 1, argv + 1, &e) < 0)
            return usage_fail(&e);
        return verbs[i].run(&n, &e) < 0 ? client_fail(&e) : 0;
    }
    pd_fail(&e, PD_INVALID, "network: write `paddock network show|set|log ID`");
    return usage_fail(&e);
}
