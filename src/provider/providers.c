/* The table of the providers in this build, and how a server's own table is filled from it.
 *
 * Test builds also read PADDOCK_PROVIDER_CANNOT, a list of capabilities such as "terminal,pause".
 * Every provider that is opened loses them together with the functions behind them, so that tests
 * see what a server answers whose provider can do less. A release has no such code. */
#include "provider/providers.h"

#include "base/banned.h"
#include "base/err.h"
#include "provider/jail.h"

static struct provider *open_jail(const struct provider_place *at, struct pd_err *e)
{
    if (at->start)
        return provider_jail_new_private(at->start, at->start_arg, at->pump, at->events, e);

    struct provider *p = provider_jail_new(at->keeper_socket, at->pump, at->events, e);
    if (p && at->data_dir)
        provider_jail_watch_disk(p, at->data_dir);
    return p;
}

static const struct provider_kind kinds[] = {
    {"jail", "jails that a keeper on this machine holds", PROVIDER_JAIL_CAN, open_jail},
};
#define KINDS (sizeof kinds / sizeof *kinds)

const struct provider_kind *provider_kind_at(unsigned i)
{
    return i < KINDS ? &kinds[i] : NULL;
}

static const struct provider_kind *find(const char *name)
{
    for (size_t i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, name))
            return &kinds[i];
    return NULL;
}

/* ---- what the configuration says ---- */

static int unknown(const char *setting, const char *name, const char *valid, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID, "%s '%.40s': valid are %s", setting, name, valid);
}

static void list_add(char *list, size_t size, const char *name)
{
    size_t at = strlen(list);
    snprintf(list + at, size - at, "%s%s", at ? ", " : "", name);
}

int providers_check(char *const *names, unsigned count, const char *mode, struct pd_err *e)
{
    char valid[200] = "", modes[200] = "auto, sandbox";

    for (size_t i = 0; i < KINDS; i++)
        list_add(valid, sizeof valid, kinds[i].name);
    if (!count)
        return pd_fail(e, PD_INVALID, "providers: none is named; valid are %s", valid);

    bool known = !mode[0] || !strcmp(mode, "auto") || !strcmp(mode, "sandbox");
    for (unsigned i = 0; i < count; i++) {
        if (!find(names[i]))
            return unknown("providers", names[i], valid, e);
        known |= !strcmp(mode, names[i]);
        list_add(modes, sizeof modes, names[i]);
    }
    return known ? 0 : unknown("sandbox_mode", mode, modes, e);
}

/* ---- opening ---- */

#ifdef PADDOCK_TEST_PROVIDERS
static void take_away(struct provider *p)
{
    const char *list = getenv("PADDOCK_PROVIDER_CANNOT");
    for (unsigned i = 0; list && i < PROVIDER_CAPABILITY_COUNT; i++) {
        const struct provider_capability *c = &provider_capabilities[i];
        size_t len = strlen(c->name);
        for (const char *at = list; (at = strstr(at, c->name)); at += len)
            if ((at == list || at[-1] == ',') && (!at[len] || at[len] == ','))
                p->can &= ~c->bit;
    }

    if (!(p->can & PROVIDER_TERMINAL)) {
        p->terminal = NULL;
        p->resize = NULL;
    }
    if (!(p->can & PROVIDER_PAUSE))
        p->pause = NULL;
    if (!(p->can & PROVIDER_USAGE))
        p->usage = NULL;
    if (!(p->can & PROVIDER_SIGNAL))
        p->signal = NULL;
    if (!(p->can & PROVIDER_SNAPSHOT))
        p->copy_root = NULL;
    if (!(p->can & PROVIDER_SLEEP))
        p->keep_root = NULL;
    if (!(p->can & PROVIDER_TREES))
        p->group_is_empty = NULL;
}
#else
static void take_away(struct provider *p)
{
    (void)p;
}
#endif

static int open_one(struct provider_table *t, const char *name, const struct provider_place *at,
                    struct pd_err *e)
{
    const struct provider_kind *kind = find(name);
    struct provider *p = kind ? kind->open(at, e) : NULL;
    if (!p)
        return pd_wrap(e, "provider %s", name);

    take_away(p);
    return provider_table_add(t, p, e);
}

int providers_open(struct provider_table *ret, char *const *names, unsigned count, const char *mode,
                   const struct provider_place *at, struct pd_err *e)
{
    struct provider_table t = {.count = 0};
    if (providers_check(names, count, mode, e) < 0)
        return -1;

    /* The default is the first of the table. */
    int r = find(mode) ? open_one(&t, mode, at, e) : 0;
    for (unsigned i = 0; i < count && r == 0; i++)
        if (strcmp(names[i], mode) != 0)
            r = open_one(&t, names[i], at, e);

    if (r < 0) {
        provider_table_done(&t);
        return -1;
    }
    *ret = t;
    return 0;
}
