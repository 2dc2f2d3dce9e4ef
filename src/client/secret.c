/* paddock secret: secrets that sandboxes can use and not read. A value is read from standard input
 * or from a variable, never from the command line, which every process of the machine can see. */
#include "access/vault.h"
#include "base/banned.h"
#include "base/err.h"
#include "client/client.h"

#include <stdbool.h>
#include <stdio.h>
#include <termios.h>

#define VALUE_MAX 8192u

const char secret_usage[] =
    "usage: paddock secret set NAME [--from-env VARIABLE]\n"
    "       paddock secret ls [--json]\n"
    "       paddock secret rm NAME...\n\n"
    "Secrets that sandboxes can use and not read: `paddock create --secret` gives one a\n"
    "placeholder, and the server puts the value in its place on the way to the hosts it is for.\n"
    "`set` reads the value from standard input, one line.\n\n"
    "  --from-env VARIABLE  the value of this variable instead\n"
    "  --json               as the server tells it\n";

/* One line of standard input, without its end; a terminal does not show it. */
static int read_value(struct buf *out, struct pd_err *e)
{
    struct termios before, quiet;
    bool is_terminal = tcgetattr(STDIN_FILENO, &before) == 0;
    char line[VALUE_MAX];

    if (is_terminal) {
        fputs("value: ", stderr);
        quiet = before;
        quiet.c_lflag &= ~(tcflag_t)ECHO;
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &quiet);
    }
    bool got = fgets(line, sizeof line, stdin) != NULL;
    if (is_terminal) {
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
        fputs("\n", stderr);
    }
    if (!got)
        return pd_fail(e, PD_INVALID, "there is no value on standard input");

    line[strcspn(line, "\r\n")] = 0;
    (void)buf_puts(out, line);
    explicit_bzero(line, sizeof line);
    return 0;
}

/* Calls /v1/secrets, or /v1/secrets/NAME. */
static int call(enum http_method method, const char *name, json_t *body, json_t **ret,
                struct pd_err *e)
{
    auto_buf target = BUF_INIT(HTTP_TARGET_MAX);
    auto_remote *r = remote_new(e);
    if (!r)
        return -1;

    /* A name that is one needs no escapes. */
    if (name && vault_check_name(name, e) < 0)
        return -1;
    buf_printf(&target, "/v1/secrets%s%s", name ? "/" : "", name ? name : "");
    struct remote_request q = {.method = method, .target = buf_cstr(&target), .json = body};
    if (!q.target)
        return pd_fail(e, PD_CAPACITY, "no memory");
    return remote_call(r, &q, ret, e) < 0 ? -1 : 0; /* else the status */
}

static int fail_option(const struct options *o, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID, "%.40s is not an option of `paddock secret %s`", o->name,
                   o->argv[0]);
}

static int set(int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    auto_buf value = BUF_INIT(VALUE_MAX);
    const char *variable = NULL;
    int count;

    o.mixed = 1;
    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--from-env"))
            return fail_option(&o, e);
        if (!(variable = options_value(&o, e)))
            return -1;
    }
    char **names = options_arguments(&o, &count);
    if (count != 1)
        return pd_fail(e, PD_INVALID,
                       "secret set takes one name; the value comes from standard "
                       "input or --from-env");
    const char *given = variable ? getenv(variable) : NULL;
    if (variable && !given)
        return pd_fail(e, PD_INVALID, "--from-env: the variable '%.60s' is not set", variable);
    if (given ? buf_puts(&value, given) : read_value(&value, e))
        return -1;

    json_auto_t *made = NULL, *body = json_pack("{ss}", "value", buf_cstr(&value));
    explicit_bzero(value.data, value.cap);
    return body ? call(HTTP_PUT, names[0], body, &made, e)
                : pd_fail(e, PD_INVALID, "the value is not UTF-8");
}

static int list(int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    json_auto_t *all = NULL;
    int as_json = 0;
    size_t i;
    json_t *one;

    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--json"))
            return fail_option(&o, e);
        as_json = 1;
    }
    if (o.at < argc)
        return pd_fail(e, PD_INVALID, "secret ls takes no argument");
    if (call(HTTP_GET, NULL, NULL, &all, e) < 0)
        return -1;
    if (as_json)
        return print_json(all);
    json_array_foreach(json_object_get(all, "secrets"), i, one) puts(json_field(one, "name"));
    return 0;
}

static int delete_all(int argc, char **argv, struct pd_err *e)
{
    if (argc < 2 || argv[1][0] == '-')
        return pd_fail(e, PD_INVALID, "secret rm takes names of secrets");
    for (int i = 1; i < argc; i++)
        if (call(HTTP_DELETE, argv[i], NULL, NULL, e) < 0)
            return -1;
    return 0;
}

int cmd_secret(int argc, char **argv)
{
    static const struct client_verb verbs[] = {{"set", set}, {"ls", list}, {"rm", delete_all}, {0}};
    return run_verb(verbs, "paddock secret: set, ls or rm", argc, argv);
}
