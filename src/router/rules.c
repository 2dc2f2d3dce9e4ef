/* Reading and writing the rules. Every reader below gets the object, the member's name and the path
 * of the object for errors, and takes the member out of a copy of the object: what is left at the
 * end was asked for by nobody. */
#include "router/rules.h"

#include "base/banned.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"

#include <jansson.h>
#include <math.h>

/* What is being read: providers for checks, the first error. */
struct reader {
    const struct route_provider *providers;
    unsigned count;
    struct pd_err *e;
};

static const struct known_provider known_providers[] = {
    {"jail", RUNG_FULL},     {"local", RUNG_NONE},       {"docker", RUNG_BASIC},
    {"podman", RUNG_BASIC},  {"kubernetes", RUNG_BASIC}, {"fargate", RUNG_FULL},
    {"cloudrun", RUNG_FULL}, {"e2b", RUNG_FULL},         {"daytona", RUNG_BASIC},
};

const struct known_provider *known_provider_find(const char *name)
{
    for (size_t i = 0; i < sizeof known_providers / sizeof *known_providers; i++)
        if (!strcmp(known_providers[i].name, name))
            return &known_providers[i];
    return NULL;
}

const struct known_provider *known_provider_at(unsigned i)
{
    return i < sizeof known_providers / sizeof *known_providers ? &known_providers[i] : NULL;
}

bool router_list_has(const struct router_list *list, const char *name)
{
    for (unsigned i = 0; i < list->count; i++)
        if (!strcmp(list->names[i], name))
            return true;
    return false;
}

/* ---- reading ---- */

static int check_members(struct reader *r, const char *path, const json_t *object,
                         const char *const *valid)
{
    const char *key;
    json_t *value;

    if (!json_is_object(object))
        return pd_fail(r->e, PD_INVALID, "%s: must be an object", *path ? path : "router");

    json_object_foreach((json_t *)object, key, value)
    {
        unsigned i = 0;
        while (valid[i] && strcmp(valid[i], key) != 0)
            i++;
        if (valid[i])
            continue;

        char names[160] = "";
        for (i = 0; valid[i]; i++) {
            size_t at = strlen(names);
            snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", valid[i]);
        }
        return pd_fail(r->e, PD_INVALID, "%s%s'%.40s' is not known: members are %s", path,
                       *path ? ": " : "", key, names);
    }
    return 0;
}

/* A text of at most size - 1 bytes; "" when it is absent. */
static int read_text(struct reader *r, const char *path, const json_t *object, const char *name,
                     bool required, char *ret, size_t size)
{
    const json_t *v = json_object_get(object, name);
    const char *dot = *path ? "." : "";
    if (!v || json_is_null(v)) {
        ret[0] = 0;
        return required ? pd_fail(r->e, PD_INVALID, "%s%s%s: is missing", path, dot, name) : 0;
    }

    const char *text = json_string_value(v);
    if (!text || !*text || strlen(text) >= size)
        return pd_fail(r->e, PD_INVALID, "%s%s%s: must be a text of 1 to %zu bytes", path, dot,
                       name, size - 1);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            return pd_fail(r->e, PD_INVALID, "%s%s%s: has a control character in it", path, dot,
                           name);

    snprintf(ret, size, "%s", text);
    return 0;
}

static int check_provider(struct reader *r, const char *what, const char *name)
{
    char valid[160] = "";

    for (unsigned i = 0; i < r->count; i++) {
        if (!strcmp(r->providers[i].name, name))
            return 0;
        size_t at = strlen(valid);
        snprintf(valid + at, sizeof valid - at, "%s%s", i ? ", " : "", r->providers[i].name);
    }

    if (known_provider_find(name))
        return pd_fail(r->e, PD_INVALID,
                       "%s: provider '%s' is not configured here: configured are %s; the setting "
                       "`providers` names them",
                       what, name, valid);
    return pd_fail(r->e, PD_INVALID, "%s: '%.40s' is not a provider: configured are %s", what, name,
                   valid);
}

static int read_provider(struct reader *r, const char *path, const json_t *object, const char *name,
                         bool required, char ret[ROUTER_PROVIDER_SIZE])
{
    char what[80];

    if (read_text(r, path, object, name, required, ret, ROUTER_PROVIDER_SIZE) < 0)
        return -1;
    snprintf(what, sizeof what, "%.50s%s%s", path, *path ? "." : "", name);
    return *ret ? check_provider(r, what, ret) : 0;
}

static int read_providers(struct reader *r, const char *path, const json_t *object,
                          const char *name, struct router_list *ret, bool *ret_there)
{
    const json_t *v = json_object_get(object, name);
    char what[80];
    snprintf(what, sizeof what, "%.50s%s%s", path, *path ? "." : "", name);

    if (ret_there)
        *ret_there = v && !json_is_null(v);
    ret->count = 0;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v) || json_array_size(v) > ROUTER_PROVIDERS_MAX)
        return pd_fail(r->e, PD_INVALID, "%s: must be an array of at most %u names", what,
                       ROUTER_PROVIDERS_MAX);

    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *text = json_string_value(json_array_get(v, i));
        if (!text)
            return pd_fail(r->e, PD_INVALID, "%s[%zu]: must be a provider's name", what, i);
        if (check_provider(r, what, text) < 0)
            return -1;
        if (router_list_has(ret, text))
            return pd_fail(r->e, PD_INVALID, "%s: '%s' is there twice", what, text);
        snprintf(ret->names[ret->count++], ROUTER_PROVIDER_SIZE, "%s", text);
    }
    return 0;
}

static int read_bool(struct reader *r, const json_t *object, const char *name, bool *ret)
{
    const json_t *v = json_object_get(object, name);
    if (v && !json_is_boolean(v) && !json_is_null(v))
        return pd_fail(r->e, PD_INVALID, "%s: must be true or false", name);
    *ret = json_is_true(v);
    return 0;
}

/* A number of at most two decimals, as hundredths; *ret stays when it is absent. */
static int read_hundredths(struct reader *r, const char *path, const json_t *object,
                           const char *name, bool required, double min, double max, uint64_t *ret)
{
    const json_t *v = json_object_get(object, name);
    if (!v || json_is_null(v))
        return required ? pd_fail(r->e, PD_INVALID, "%s.%s: is missing", path, name) : 0;
    if (!json_is_number(v))
        return pd_fail(r->e, PD_INVALID, "%s.%s: must be a number", path, name);

    double value = json_number_value(v), hundred = value * 100;
    if (!(value >= min && value <= max))
        return pd_fail(r->e, PD_INVALID, "%s.%s: %g is not in the range %g to %g", path, name,
                       value, min, max);
    if (fabs(hundred - round(hundred)) > 1e-6)
        return pd_fail(r->e, PD_INVALID, "%s.%s: %g has more than two decimals", path, name, value);
    *ret = (uint64_t)round(hundred);
    return 0;
}

static int read_filter(struct reader *r, const char *path, const json_t *v,
                       struct router_filter *ret)
{
    bool bad =
        read_text(r, path, v, "tenant", false, ret->tenant, sizeof ret->tenant) < 0 ||
        read_text(r, path, v, "user", false, ret->user, sizeof ret->user) < 0 ||
        read_text(r, path, v, "template", false, ret->template_name, sizeof ret->template_name) < 0;
    return bad ? -1 : 0;
}

/* A percentage of all users that a name, or a salt of its own, chooses. */
static int read_share(struct reader *r, const char *path, const json_t *v,
                      char name[ROUTER_NAME_SIZE], char salt[ROUTER_NAME_SIZE], unsigned *ret)
{
    uint64_t share = 0;

    if (read_text(r, path, v, "name", true, name, ROUTER_NAME_SIZE) < 0 ||
        read_text(r, path, v, "salt", false, salt, ROUTER_NAME_SIZE) < 0 ||
        read_hundredths(r, path, v, "percentage", true, 0, 100, &share) < 0)
        return -1;

    *ret = (unsigned)share;
    if (!salt[0])
        memcpy(salt, name, ROUTER_NAME_SIZE);
    return 0;
}

static int read_rule(struct reader *r, size_t i, const json_t *v, struct router_rule *ret)
{
    static const char *const members[] = {"name",     "tenant",   "user", "template",
                                          "provider", "fallback", NULL};
    char path[40];
    snprintf(path, sizeof path, "rules[%zu]", i);

    if (check_members(r, path, v, members) < 0 ||
        read_text(r, path, v, "name", true, ret->name, sizeof ret->name) < 0 ||
        read_filter(r, path, v, &ret->filter) < 0 ||
        read_provider(r, path, v, "provider", false, ret->provider) < 0 ||
        read_providers(r, path, v, "fallback", &ret->fallback, &ret->has_fallback) < 0)
        return -1;

    if (!ret->provider[0] && !ret->has_fallback)
        return pd_fail(r->e, PD_INVALID, "%s: '%s' says neither a provider nor a fallback", path,
                       ret->name);
    return 0;
}

static int read_flag(struct reader *r, size_t i, const json_t *v, struct router_flag *ret)
{
    static const char *const members[] = {"name", "salt", "provider", "percentage", NULL};
    char path[40];
    snprintf(path, sizeof path, "flags[%zu]", i);

    bool bad = check_members(r, path, v, members) < 0 ||
               read_share(r, path, v, ret->name, ret->salt, &ret->share) < 0 ||
               read_provider(r, path, v, "provider", true, ret->provider) < 0;
    return bad ? -1 : 0;
}

static int read_arm(struct reader *r, size_t i, const json_t *v, struct router_arm *ret)
{
    static const char *const members[] = {"name", "provider", "weight", NULL};
    char path[40];
    uint64_t weight = 0;
    snprintf(path, sizeof path, "experiment.arms[%zu]", i);

    if (check_members(r, path, v, members) < 0 ||
        read_text(r, path, v, "name", true, ret->name, sizeof ret->name) < 0 ||
        read_provider(r, path, v, "provider", true, ret->provider) < 0 ||
        read_hundredths(r, path, v, "weight", true, 0, 1000, &weight) < 0)
        return -1;

    ret->weight = (unsigned)weight;
    return 0;
}

static int read_shadow(struct reader *r, const json_t *root, struct router_shadow *ret)
{
    static const char *const members[] = {"name",     "salt",     "tenant",     "user",
                                          "template", "provider", "percentage", NULL};
    static const char path[] = "shadow";
    const json_t *v = json_object_get(root, path);
    if (!v || json_is_null(v))
        return 0;

    bool bad = check_members(r, path, v, members) < 0 ||
               read_share(r, path, v, ret->name, ret->salt, &ret->share) < 0 ||
               read_filter(r, path, v, &ret->filter) < 0 ||
               read_provider(r, path, v, "provider", true, ret->provider) < 0;
    return bad ? -1 : 0;
}

static int read_guard(struct reader *r, const json_t *experiment, struct router_guard *ret)
{
    static const char *const members[] = {"percentage", "creations", "commands", NULL};
    static const char path[] = "experiment.guard";
    const json_t *v = json_object_get(experiment, "guard");
    uint64_t percent = 0, creations = 0, commands = 0;
    if (!v || json_is_null(v))
        return 0;

    if (check_members(r, path, v, members) < 0 ||
        read_hundredths(r, path, v, "percentage", true, 1, 100, &percent) < 0 ||
        read_hundredths(r, path, v, "creations", false, 1, 1000000, &creations) < 0 ||
        read_hundredths(r, path, v, "commands", false, 1, 1000000, &commands) < 0)
        return -1;
    if (percent % 100 || creations % 100 || commands % 100)
        return pd_fail(r->e, PD_INVALID,
                       "%s: percentage, creations and commands must be whole numbers", path);
    if (!creations && !commands)
        return pd_fail(r->e, PD_INVALID, "%s: must say creations, commands, or both", path);

    *ret = (struct router_guard){(unsigned)(percent / 100), (unsigned)(creations / 100),
                                 (unsigned)(commands / 100)};
    return 0;
}

static int read_experiment(struct reader *r, const json_t *root, struct router_experiment *ret)
{
    static const char *const members[] = {"name", "salt", "arms", "guard", NULL};
    const json_t *v = json_object_get(root, "experiment");
    if (!v || json_is_null(v))
        return 0;

    if (check_members(r, "experiment", v, members) < 0 ||
        read_text(r, "experiment", v, "name", true, ret->name, sizeof ret->name) < 0 ||
        read_text(r, "experiment", v, "salt", false, ret->salt, sizeof ret->salt) < 0 ||
        read_guard(r, v, &ret->guard) < 0)
        return -1;
    if (!ret->salt[0])
        memcpy(ret->salt, ret->name, sizeof ret->salt);

    const json_t *arms = json_object_get(v, "arms");
    size_t count = json_array_size(arms);
    if (!json_is_array(arms) || count < 2 || count > ROUTER_ARMS_MAX)
        return pd_fail(r->e, PD_INVALID, "experiment.arms: must be an array of 2 to %u arms",
                       ROUTER_ARMS_MAX);

    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        if (read_arm(r, i, json_array_get(arms, i), &ret->arms[i]) < 0)
            return -1;
        for (size_t k = 0; k < i; k++)
            if (!strcmp(ret->arms[k].name, ret->arms[i].name))
                return pd_fail(r->e, PD_INVALID, "experiment.arms: '%s' is there twice",
                               ret->arms[i].name);
        sum += ret->arms[i].weight;
    }
    if (!sum)
        return pd_fail(r->e, PD_INVALID, "experiment.arms: every weight is 0");
    ret->count = (unsigned)count;
    return 0;
}

static int read_breaker(struct reader *r, const json_t *root, struct breaker_limits *ret)
{
    static const char *const members[] = {"failures", "calls",      "percentage", "window_s",
                                          "open_s",   "open_max_s", NULL};
    static const char path[] = "breaker";
    const json_t *v = json_object_get(root, path);
    if (!v || json_is_null(v))
        return 0;

    const uint64_t unit = NS_PER_S / 100;
    uint64_t in_row = ret->in_row * 100ull, calls = ret->calls * 100ull;
    uint64_t percent = ret->percent * 100ull, window = ret->window_ns / unit;
    uint64_t open = ret->open_ns / unit, most = ret->open_most_ns / unit;
    if (check_members(r, path, v, members) < 0 ||
        read_hundredths(r, path, v, "failures", false, 1, 1000, &in_row) < 0 ||
        read_hundredths(r, path, v, "calls", false, 1, BREAKER_CALLS_MAX, &calls) < 0 ||
        read_hundredths(r, path, v, "percentage", false, 1, 100, &percent) < 0 ||
        read_hundredths(r, path, v, "window_s", false, 1, 3600, &window) < 0 ||
        read_hundredths(r, path, v, "open_s", false, 0.01, 3600, &open) < 0 ||
        read_hundredths(r, path, v, "open_max_s", false, 0.01, 86400, &most) < 0)
        return -1;

    if (in_row % 100 || calls % 100 || percent % 100)
        return pd_fail(r->e, PD_INVALID,
                       "breaker: failures, calls and percentage must be whole numbers");
    if (most < open)
        return pd_fail(r->e, PD_INVALID, "breaker.open_max_s: %g is less than open_s, %g",
                       (double)most / 100, (double)open / 100);

    *ret = (struct breaker_limits){.in_row = (unsigned)(in_row / 100),
                                   .calls = (unsigned)(calls / 100),
                                   .percent = (unsigned)(percent / 100),
                                   .window_ns = window * unit,
                                   .open_ns = open * unit,
                                   .open_most_ns = most * unit};
    return 0;
}

static int read_commands(struct reader *r, const json_t *root, enum rung ret[COMMAND_CLASSES])
{
    static const char *const members[] = {"read", "write", "install", "network", "unknown", NULL};
    const json_t *v = json_object_get(root, "commands");
    if (!v || json_is_null(v))
        return 0;
    if (check_members(r, "commands", v, members) < 0)
        return -1;

    for (unsigned i = 0; i < COMMAND_CLASSES; i++) {
        char text[16], what[32];
        if (read_text(r, "commands", v, members[i], false, text, sizeof text) < 0)
            return -1;
        snprintf(what, sizeof what, "commands.%s", members[i]);
        if (!strcmp(text, "strictest"))
            ret[i] = RUNG_COUNT;
        else if (*text && rung_parse(what, text, &ret[i], r->e) < 0)
            return -1;
    }
    return 0;
}

static int read_rules(struct reader *r, const json_t *root, struct router_rules *ret)
{
    const json_t *v = json_object_get(root, "rules");
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v) || json_array_size(v) > ROUTER_RULES_MAX)
        return pd_fail(r->e, PD_INVALID, "rules: must be an array of at most %u rules",
                       ROUTER_RULES_MAX);

    for (size_t i = 0; i < json_array_size(v); i++)
        if (read_rule(r, i, json_array_get(v, i), &ret->rules[i]) < 0)
            return -1;
    ret->rule_count = (unsigned)json_array_size(v);
    return 0;
}

static int read_flags(struct reader *r, const json_t *root, struct router_rules *ret)
{
    const json_t *v = json_object_get(root, "flags");
    if (!v || json_is_null(v))
        return 0;
    /* One place is left for the flag of an older variable. */
    if (!json_is_array(v) || json_array_size(v) > ROUTER_FLAGS_MAX - 1)
        return pd_fail(r->e, PD_INVALID, "flags: must be an array of at most %u flags",
                       ROUTER_FLAGS_MAX - 1);

    for (size_t i = 0; i < json_array_size(v); i++) {
        if (read_flag(r, i, json_array_get(v, i), &ret->flags[i]) < 0)
            return -1;
        for (size_t k = 0; k < i; k++)
            if (!strcmp(ret->flags[k].name, ret->flags[i].name))
                return pd_fail(r->e, PD_INVALID, "flags: '%s' is there twice", ret->flags[i].name);
    }
    ret->flag_count = (unsigned)json_array_size(v);
    return 0;
}

static int read_all(struct reader *r, const json_t *root, struct router_rules *ret)
{
    static const char *const members[] = {
        "default",      "disabled", "rules",    "flags",  "experiment", "fallback",
        "allow_weaker", "breaker",  "commands", "shadow", NULL};

    if (check_members(r, "", root, members) < 0 ||
        read_provider(r, "", root, "default", false, ret->usual) < 0 ||
        read_providers(r, "", root, "disabled", &ret->disabled, NULL) < 0 ||
        read_rules(r, root, ret) < 0 || read_flags(r, root, ret) < 0 ||
        read_experiment(r, root, &ret->experiment) < 0 || read_shadow(r, root, &ret->shadow) < 0 ||
        read_providers(r, "", root, "fallback", &ret->fallback, NULL) < 0 ||
        read_bool(r, root, "allow_weaker", &ret->allow_weaker) < 0 ||
        read_breaker(r, root, &ret->breaker) < 0 || read_commands(r, root, ret->commands) < 0)
        return -1;

    if (ret->disabled.count == r->count)
        return pd_fail(r->e, PD_INVALID, "disabled: names every provider of this server");
    return 0;
}

int router_rules_parse(const char *text, size_t len, const struct route_provider *providers,
                       unsigned count, struct router_rules *ret, struct pd_err *e)
{
    struct reader r = {.providers = providers, .count = count, .e = e};
    json_error_t why;

    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return pd_fail(e, PD_INVALID, "router: not JSON: %.100s, line %d", why.text, why.line);

    struct router_rules *read = malloc(sizeof *read);
    if (!read) {
        json_decref(root);
        return pd_fail(e, PD_CAPACITY, "no memory for the router's rules");
    }

    *read = ROUTER_RULES_INIT;
    int bad = read_all(&r, root, read);
    if (bad == 0)
        *ret = *read;
    free(read);
    json_decref(root);
    return bad;
}

/* ---- writing ---- */

static void list_json(struct json *j, const char *name, const struct router_list *list)
{
    json_key(j, name);
    json_open(j, '[');
    for (unsigned i = 0; i < list->count; i++)
        json_cstr(j, list->names[i]);
    json_close(j, ']');
}

static void text_json(struct json *j, const char *name, const char *text)
{
    if (*text)
        json_member_cstr(j, name, text);
}

/* Hundredths, with as many decimals as they need. */
static void hundredths_json(struct json *j, const char *name, uint64_t v)
{
    if (v % 100)
        json_member_milli(j, name, v * 10);
    else
        json_member_uint(j, name, v / 100);
}

static void filter_json(struct json *j, const struct router_filter *f)
{
    text_json(j, "tenant", f->tenant);
    text_json(j, "user", f->user);
    text_json(j, "template", f->template_name);
}

static void rule_json(struct json *j, const struct router_rule *r)
{
    json_open(j, '{');
    text_json(j, "name", r->name);
    filter_json(j, &r->filter);
    text_json(j, "provider", r->provider);
    if (r->has_fallback)
        list_json(j, "fallback", &r->fallback);
    json_close(j, '}');
}

static void flag_json(struct json *j, const struct router_flag *f)
{
    json_open(j, '{');
    text_json(j, "name", f->name);
    text_json(j, "salt", f->salt);
    text_json(j, "provider", f->provider);
    hundredths_json(j, "percentage", f->share);
    json_close(j, '}');
}

static void experiment_json(struct json *j, const struct router_experiment *x)
{
    json_key(j, "experiment");
    json_open(j, '{');
    text_json(j, "name", x->name);
    text_json(j, "salt", x->salt);
    json_key(j, "arms");
    json_open(j, '[');
    for (unsigned i = 0; i < x->count; i++) {
        json_open(j, '{');
        text_json(j, "name", x->arms[i].name);
        text_json(j, "provider", x->arms[i].provider);
        hundredths_json(j, "weight", x->arms[i].weight);
        json_close(j, '}');
    }
    json_close(j, ']');

    if (x->guard.percent) {
        json_key(j, "guard");
        json_open(j, '{');
        json_member_uint(j, "percentage", x->guard.percent);
        if (x->guard.creations)
            json_member_uint(j, "creations", x->guard.creations);
        if (x->guard.commands)
            json_member_uint(j, "commands", x->guard.commands);
        json_close(j, '}');
    }
    json_close(j, '}');
}

static void shadow_json(struct json *j, const struct router_shadow *s)
{
    json_key(j, "shadow");
    json_open(j, '{');
    text_json(j, "name", s->name);
    text_json(j, "salt", s->salt);
    filter_json(j, &s->filter);
    text_json(j, "provider", s->provider);
    hundredths_json(j, "percentage", s->share);
    json_close(j, '}');
}

static void breaker_json(struct json *j, const struct breaker_limits *b)
{
    const uint64_t unit = NS_PER_S / 100;

    json_key(j, "breaker");
    json_open(j, '{');
    json_member_uint(j, "failures", b->in_row);
    json_member_uint(j, "calls", b->calls);
    json_member_uint(j, "percentage", b->percent);
    hundredths_json(j, "window_s", b->window_ns / unit);
    hundredths_json(j, "open_s", b->open_ns / unit);
    hundredths_json(j, "open_max_s", b->open_most_ns / unit);
    json_close(j, '}');
}

void router_rules_json(const struct router_rules *r, struct json *j)
{
    json_open(j, '{');
    text_json(j, "default", r->usual);
    list_json(j, "disabled", &r->disabled);

    json_key(j, "rules");
    json_open(j, '[');
    for (unsigned i = 0; i < r->rule_count; i++)
        rule_json(j, &r->rules[i]);
    json_close(j, ']');

    json_key(j, "flags");
    json_open(j, '[');
    for (unsigned i = 0; i < r->flag_count; i++)
        if (!r->flags[i].is_older)
            flag_json(j, &r->flags[i]);
    json_close(j, ']');

    if (r->experiment.count)
        experiment_json(j, &r->experiment);
    if (r->shadow.name[0])
        shadow_json(j, &r->shadow);
    list_json(j, "fallback", &r->fallback);
    json_member_bool(j, "allow_weaker", r->allow_weaker);
    breaker_json(j, &r->breaker);

    json_key(j, "commands");
    json_open(j, '{');
    for (unsigned i = 0; i < COMMAND_CLASSES; i++)
        json_member_cstr(j, command_class_name((enum command_class)i),
                         r->commands[i] == RUNG_COUNT ? "strictest" : rung_name(r->commands[i]));
    json_close(j, '}');
    json_close(j, '}');
}
