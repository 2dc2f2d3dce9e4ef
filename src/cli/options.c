#include "cli/cli.h"

#include "base/banned.h"
#include "base/err.h"

int options_next(struct options *o)
{
    static char name[64];
    if (o->at >= o->argc)
        return 0;
    char *arg = o->argv[o->at];
    if (!strcmp(arg, "--")) {
        o->at++;
        return 0;
    }
    if (arg[0] != '-' || !arg[1])
        return 0;
    o->at++;
    const char *equals = strchr(arg, '=');
    if (arg[1] == '-' && equals) {
        snprintf(name, sizeof name, "%.*s", (int)(equals - arg), arg);
        o->name = name;
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
