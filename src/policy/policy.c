/* Policies: which programs a command line may run. shell_commands takes the line apart and tells of
 * each program that it would start; here each is judged by a sorted list of names. An allow-list
 * also allows builtins that start nothing by themselves, and programs that only run others, since
 * those are told of as well. */
#include "policy/policy.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "policy/shell_commands.h"

#include <jansson.h>

static const char *const restricted_names[] = {"awk",  "cat",  "cut", "date", "echo",    "find",
                                               "grep", "head", "jq",  "ls",   "python3", "sed",
                                               "sort", "tail", "tr",  "uniq", "wc"};

/* Builtins that every allow-list allows: they start nothing and reach nothing by themselves. */
static const char *const harmless[] = {
    ":",        "[",       "bg",     "break",   "builtin", "caller", "cd",        "command",
    "continue", "declare", "dirs",   "disown",  "echo",    "eval",   "exec",      "exit",
    "export",   "false",   "fg",     "getopts", "hash",    "jobs",   "let",       "local",
    "mapfile",  "popd",    "printf", "pushd",   "pwd",     "read",   "readarray", "readonly",
    "return",   "set",     "shift",  "shopt",   "test",    "times",  "trap",      "true",
    "type",     "typeset", "ulimit", "umask",   "unset",   "wait"};

#define COUNT(array) (sizeof(array) / sizeof *(array))

void policy_done(struct policy *p)
{
    free(p->names);
    *p = (struct policy){0};
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int name_is_good(const char *name)
{
    size_t len = strlen(name);
    if (len == 0 || len >= POLICY_NAME_MAX)
        return 0;

    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] <= ' ' || name[i] == '/' || name[i] == 127)
            return 0;
    return 1;
}

int policy_set(enum policy_mode mode, const char *const *names, size_t count, struct policy *ret,
               struct pd_err *e)
{
    struct policy p = {.mode = mode};
    if (mode == POLICY_OPEN) {
        *ret = p;
        return 0;
    }

    if (count > POLICY_NAMES_MAX)
        return pd_fail(e, PD_INVALID, "policy: %zu commands, at most %d", count, POLICY_NAMES_MAX);
    for (size_t i = 0; i < count; i++)
        if (!name_is_good(names[i]))
            return pd_fail(e, PD_INVALID,
                           "policy: '%.64s' is not a command's name: 1 to %d bytes without blanks "
                           "and slashes",
                           names[i], POLICY_NAME_MAX - 1);

    p.names = calloc(count ? count : 1, sizeof *p.names);
    if (!p.names)
        return pd_fail(e, PD_INTERNAL, "no memory for a policy");

    for (size_t i = 0; i < count; i++)
        memcpy(p.names[i], names[i], strlen(names[i]) + 1);
    p.count = count;
    qsort(p.names, count, sizeof *p.names, compare_names);

    *ret = p;
    return 0;
}

static int parse_object(const json_t *object, struct policy *ret, struct pd_err *e)
{
    const char *names[POLICY_NAMES_MAX];
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)object, key, value)
    {
        if (strcmp(key, "mode") != 0 && strcmp(key, "commands") != 0)
            return pd_fail(e, PD_INVALID, "policy: unknown field '%.40s': mode and commands exist",
                           key);
    }

    const char *mode = json_string_value(json_object_get(object, "mode"));
    const json_t *commands = json_object_get(object, "commands");
    if (!mode || (strcmp(mode, "allow") != 0 && strcmp(mode, "deny") != 0))
        return pd_fail(e, PD_INVALID, "policy.mode: must be 'allow' or 'deny'");
    if (!json_is_array(commands) || json_array_size(commands) > POLICY_NAMES_MAX)
        return pd_fail(e, PD_INVALID, "policy.commands: must be a list of at most %d names",
                       POLICY_NAMES_MAX);

    size_t count = json_array_size(commands);
    for (size_t i = 0; i < count; i++) {
        names[i] = json_string_value(json_array_get(commands, i));
        if (!names[i])
            return pd_fail(e, PD_INVALID, "policy.commands[%zu]: must be a string", i);
    }
    return policy_set(strcmp(mode, "allow") ? POLICY_DENY : POLICY_ALLOW, names, count, ret, e);
}

int policy_parse(const char *text, struct policy *ret, struct pd_err *e)
{
    if (!strcmp(text, "open") || !*text)
        return policy_set(POLICY_OPEN, NULL, 0, ret, e);
    if (!strcmp(text, "restricted")) {
        if (policy_set(POLICY_ALLOW, restricted_names, COUNT(restricted_names), ret, e) < 0)
            return -1;
        ret->restricted = 1;
        return 0;
    }

    if (text[0] != '{')
        return pd_fail(e, PD_INVALID,
                       "policy: '%.40s' is not one of: open, restricted, or an object with mode "
                       "and commands",
                       text);

    json_error_t why;
    json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!object)
        return pd_fail(e, PD_INVALID, "policy: not JSON: %.100s", why.text);

    int failed = parse_object(object, ret, e);
    json_decref(object);
    return failed;
}

int policy_text(const struct policy *p, struct buf *out)
{
    if (p->mode == POLICY_OPEN || p->restricted)
        return buf_puts(out, p->restricted ? "restricted" : "open");

    json_t *commands = json_array();
    for (size_t i = 0; i < p->count; i++)
        json_array_append_new(commands, json_string(p->names[i]));

    json_t *object = json_pack("{s:s,s:o}", "mode", p->mode == POLICY_ALLOW ? "allow" : "deny",
                               "commands", commands);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    int failed = text ? buf_puts(out, text) : -1;
    free(text);
    json_decref(object);
    return failed;
}

static int in_list(const struct policy *p, const char *name)
{
    return p->count && strlen(name) < POLICY_NAME_MAX &&
           bsearch(name, p->names, p->count, sizeof *p->names, compare_names);
}

static int is_harmless(const char *name)
{
    return bsearch(&name, harmless, COUNT(harmless), sizeof *harmless, compare_strings) != NULL;
}

/* In an allow-list a path names an allowed program only where the system keeps those. */
static const char *allowed_name(const char *name)
{
    static const char *const places[] = {"/bin/", "/usr/bin/", "/usr/local/bin/"};

    if (!strchr(name, '/'))
        return name;

    for (size_t i = 0; i < COUNT(places); i++) {
        size_t len = strlen(places[i]);
        if (!strncmp(name, places[i], len) && !strchr(name + len, '/'))
            return name + len;
    }
    return NULL;
}

static int refuse_unlisted(const struct policy *p, const char *name, struct pd_err *e)
{
    char allowed[140] = "nothing but harmless builtins";
    size_t used = 0, room = sizeof allowed - sizeof ", ...";

    for (size_t i = 0; i < p->count; i++) {
        int cut = used + strlen(p->names[i]) + 2 >= room;
        used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s", i ? ", " : "",
                                 cut ? "..." : p->names[i]);
        if (cut)
            break;
    }

    return pd_fail(e, PD_POLICY,
                   "command '%.40s' is not allowed by this session's policy%s: allowed are %s",
                   name, p->restricted ? " (restricted)" : "", allowed);
}

static int judge(void *ctx, const struct found *f, struct pd_err *e)
{
    const struct policy *p = ctx;

    if (f->kind == FOUND_FUNCTION || f->kind == FOUND_ASSIGNMENT || f->kind == FOUND_REDIRECTION)
        return 0;

    if (p->mode == POLICY_DENY) {
        const char *slash = strrchr(f->name, '/');
        const char *base = slash ? slash + 1 : f->name;
        if (!in_list(p, base))
            return 0;
        return pd_fail(e, PD_POLICY, "command '%.40s' is denied by this session's policy", base);
    }

    const char *name = allowed_name(f->name);
    if (f->kind == FOUND_MENTION || (name && (in_list(p, name) || f->kind == FOUND_WRAPPER)))
        return 0;
    if (name == f->name && is_harmless(name))
        return 0;
    return refuse_unlisted(p, f->name, e);
}

int policy_check_command(const struct policy *p, const char *line, struct pd_err *e)
{
    return p->mode == POLICY_OPEN ? 0 : shell_commands(line, judge, (void *)p, e);
}

int policy_check_argv(const struct policy *p, const char *const *argv, struct pd_err *e)
{
    return p->mode == POLICY_OPEN || !argv[0] ? 0 : shell_commands_argv(argv, judge, (void *)p, e);
}

int policy_check_variable(const struct policy *p, const char *name, struct pd_err *e)
{
    if (p->mode == POLICY_OPEN || !shell_variable_runs(name))
        return 0;
    return pd_fail(e, PD_POLICY,
                   "env: '%.40s' cannot be set under this session's policy: bash runs its value",
                   name);
}
