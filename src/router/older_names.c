/* The variables are looked up in the environment that is given, so that tests give one. */
#include "router/older_names.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#define FLAG       "USE_CLOUDRUN_JOBS_SANDBOX"
#define PERCENTAGE "CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE"
#define PROJECT    "SANDBOX_GCP_PROJECT"
#define PROVIDER   "cloudrun"

static const char *variable(const char *const *env, const char *name)
{
    size_t len = strlen(name);
    for (; env && *env; env++)
        if (!strncmp(*env, name, len) && (*env)[len] == '=')
            return *env + len + 1;
    return NULL;
}

static int read_switch(const char *name, const char *text, bool *ret, struct pd_err *e)
{
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};

    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(words[i], text)) {
            *ret = i & 1;
            return 0;
        }
    return pd_fail(e, PD_INVALID, "%s: '%.40s' is neither true nor false", name, text);
}

int older_names_read(const char *const *env, const struct route_provider *providers, unsigned count,
                     struct router_rules *r, struct pd_err *e)
{
    const char *flag = variable(env, FLAG), *percentage = variable(env, PERCENTAGE);
    const char *project = variable(env, PROJECT);
    uint64_t share = 100 * 1000;
    bool on = false;

    if (flag && *flag && read_switch(FLAG, flag, &on, e) < 0)
        return -1;
    if (percentage && *percentage &&
        parse_milli(PERCENTAGE, percentage, 0, 100 * 1000, &share, e) < 0)
        return -1;
    if (!on)
        return 0;
    if (r->flag_count == ROUTER_FLAGS_MAX)
        return pd_fail(e, PD_INVALID, "%s: the router has %u flags already", FLAG,
                       ROUTER_FLAGS_MAX);

    struct router_flag *f = &r->flags[r->flag_count++];
    *f = (struct router_flag){.name = FLAG,
                              .salt = FLAG,
                              .provider = PROVIDER,
                              .share = (unsigned)(share / 10),
                              .is_older = true};

    unsigned i = 0;
    while (i < count && strcmp(providers[i].name, PROVIDER) != 0)
        i++;
    if (i == count)
        snprintf(f->off, sizeof f->off, "provider " PROVIDER " is not configured here");
    else if (!project || !*project)
        snprintf(f->off, sizeof f->off, "%s is not set", PROJECT);
    return 0;
}
