/* Options of a command line: -x, --long, --long=VALUE, and a `--` that ends them. With `mixed`,
 * arguments between options are moved to the front of argv, where options_arguments finds them. */
#include "base/options.h"

#include "base/banned.h"
#include "base/err.h"

int options_next(struct options *o)
{
    for (; o->at < o->argc; o->at++) {
        char *arg = o->argv[o->at];
        if (!strcmp(arg, "--")) {
            o->at++;
            return 0;
        }
        if (arg[0] == '-' && arg[1])
            break;
        if (!o->mixed)
            return 0;
        o->argv[1 + o->kept++] = arg;
    }

    if (o->at >= o->argc)
        return 0;

    char *arg = o->argv[o->at++];
    const char *equals = strchr(arg, '=');
    if (arg[1] == '-' && equals) {
        snprintf(o->text, sizeof o->text, "%.*s", (int)(equals - arg), arg);
        o->name = o->text;
        o->value = equals + 1;
    } else {
        o->name = arg;
        o->value = NULL;
    }
    return 1;
}

const char *options_value(struct options *o, struct pd_err *e)
{
    if (o->value)
        return o->value;
    if (o->at < o->argc)
        return o->argv[o->at++];
    pd_fail(e, PD_INVALID, "%.40s: a value is missing", o->name);
    return NULL;
}

int options_no_value(const struct options *o, struct pd_err *e)
{
    return o->value ? pd_fail(e, PD_INVALID, "%.40s takes no value", o->name) : 0;
}

int options_is(const struct options *o, const char *short_name, const char *long_name)
{
    return (short_name && !strcmp(o->name, short_name)) ||
           (long_name && !strcmp(o->name, long_name));
}

char **options_arguments(struct options *o, int *ret_count)
{
    while (o->at < o->argc)
        o->argv[1 + o->kept++] = o->argv[o->at++];
    *ret_count = o->kept;
    return o->argv + 1;
}
