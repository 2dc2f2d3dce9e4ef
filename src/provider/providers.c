/* The table of the providers in this build, and how a server's own table is filled from it.
 *
 * Test builds also read PADDOCK_PROVIDER_CANNOT, a list of capabilities such as "terminal,pause".
 * Every provider that is opened loses them together with the functions behind them, so that tests
 * see what a server answers whose provider can do less. A release has no such code. */
#include "provider/providers.h"

#include "base/banned.h"
#include "base/beside.h"
#include "base/err.h"
#include "jail/keeper_kind.h"

#define JAIL_PATIENCE                                                                              \
    {                                                                                              \
        .create = 30 * NS_PER_S, .destroy = 15 * NS_PER_S, .pause = 5 * NS_PER_S,                  \
        .keep = 10 * NS_PER_S                                                                      \
    }

/* An image may have to be pulled first. */
#define ENGINE_PATIENCE                                                                            \
    {                                                                                              \
        .create = 300 * NS_PER_S, .destroy = 30 * NS_PER_S, .pause = 5 * NS_PER_S,                 \
        .keep = 30 * NS_PER_S                                                                      \
    }

/* The capabilities of every box whose init is ours. */
#define CAN_ALWAYS                                                                                 \
    (PROVIDER_PAUSE | PROVIDER_TERMINAL | PROVIDER_FILES | PROVIDER_PORTS | PROVIDER_ADOPT |       \
     PROVIDER_STASH | PROVIDER_TREES | PROVIDER_USAGE | PROVIDER_SIGNAL | PROVIDER_BACKGROUND |    \
     PROVIDER_LIMITS)
/* The capabilities of boxes on other machines. */
#define CAN_FAR (CAN_ALWAYS & ~(unsigned)(PROVIDER_PAUSE | PROVIDER_USAGE))
/* The capabilities of those whose files outlive them. */
#define CAN_KEEP (PROVIDER_SNAPSHOT | PROVIDER_SLEEP | PROVIDER_ROOTS)

static const struct provider_kind kinds[] = {
    {.name = "jail",
     .what = "jails that a keeper on this machine holds",
     .can = CAN_ALWAYS | CAN_KEEP | PROVIDER_DISK | PROVIDER_EGRESS | PROVIDER_IMAGE,
     .patience = JAIL_PATIENCE,
     .has_store = true},
    {.name = "local",
     .what = "plain processes in a directory, without isolation; for development",
     .can = CAN_ALWAYS,
     .patience = JAIL_PATIENCE,
     .tells_facts = true,
     .setting = "local_allowed",
     .timeout_s = 600},
    {.name = "docker",
     .what = "containers of docker on this machine",
     .can = CAN_ALWAYS | CAN_KEEP | PROVIDER_IMAGE,
     .patience = ENGINE_PATIENCE,
     .tells_facts = true,
     .needs_image = true},
    {.name = "podman",
     .what = "containers of podman on this machine",
     .can = CAN_ALWAYS | CAN_KEEP | PROVIDER_IMAGE,
     .patience = ENGINE_PATIENCE,
     .tells_facts = true,
     .needs_image = true},
    {.name = "kubernetes",
     .what = "pods of a cluster",
     .can = CAN_FAR | PROVIDER_IMAGE,
     .patience = ENGINE_PATIENCE,
     .tells_facts = true,
     .needs_image = true,
     .is_far = true},
    {.name = "e2b",
     .what = "sandboxes that are rented from E2B, or from another server with its API",
     .can = CAN_FAR & ~(unsigned)PROVIDER_LIMITS,
     .patience = ENGINE_PATIENCE,
     .tells_facts = true,
     .is_far = true},
    {.name = "daytona",
     .what = "sandboxes that are rented from Daytona",
     .can = (CAN_FAR & ~(unsigned)PROVIDER_LIMITS) | PROVIDER_IMAGE,
     .patience = ENGINE_PATIENCE,
     .tells_facts = true,
     .is_far = true},
    {.name = "fargate",
     .what = "tasks of Amazon ECS on Fargate",
     .can = CAN_FAR,
     .patience = ENGINE_PATIENCE,
     .tells_facts = true,
     .is_far = true},
    {.name = "cloudrun",
     .what = "executions of a job of Google Cloud Run",
     .can = CAN_FAR & ~(unsigned)PROVIDER_LIMITS,
     .patience = ENGINE_PATIENCE,
     .tells_facts = true,
     .is_far = true},
};
#define KINDS (sizeof kinds / sizeof *kinds)

/* Rows that the configuration adds. */
#define ADDED_MAX  4u
#define ADDED_NAME 31u
static struct added {
    struct provider_kind kind;
    char name[ADDED_NAME + 1], program[4096];
} added[ADDED_MAX];
static unsigned added_count;

const struct provider_kind *provider_kind_at(unsigned i)
{
    if (i < KINDS)
        return &kinds[i];
    return i - KINDS < added_count ? &added[i - KINDS].kind : NULL;
}

const struct provider_kind *provider_kind_find(const char *name)
{
    const struct provider_kind *k;

    for (unsigned i = 0; (k = provider_kind_at(i)); i++)
        if (!strcmp(k->name, name))
            return k;
    return NULL;
}

const char *provider_program(const char *name)
{
    for (unsigned i = 0; i < added_count; i++)
        if (!strcmp(added[i].name, name))
            return added[i].program;
    return NULL;
}

bool provider_has_broker(const char *name)
{
    const struct keeper_kind *k = keeper_kind_find(name);
    return k && k->program;
}

int providers_add(const char *pair, struct pd_err *e)
{
    size_t len = strspn(pair, "abcdefghijklmnopqrstuvwxyz0123456789-");
    if (!len || len > ADDED_NAME || pair[len] != '=' || pair[0] == '-')
        return pd_fail(e, PD_INVALID,
                       "backends: '%.100s' is not NAME=PROGRAM with a name of 1 to %u of a-z 0-9 -",
                       pair, ADDED_NAME);
    if (added_count == ADDED_MAX)
        return pd_fail(e, PD_INVALID, "backends: at most %u", ADDED_MAX);

    struct added *a = &added[added_count];
    snprintf(a->name, sizeof a->name, "%.*s", (int)len, pair);
    if (provider_kind_find(a->name) || !strcmp(a->name, "auto") || !strcmp(a->name, "sandbox"))
        return pd_fail(e, PD_INVALID, "backends: '%s' has a meaning already, use another name",
                       a->name);
    if (program_check(pair + len + 1, e) < 0)
        return pd_wrap(e, "backends: %s", a->name);

    snprintf(a->program, sizeof a->program, "%s", pair + len + 1);
    a->kind = (struct provider_kind){.name = a->name,
                                     .what = "sandboxes that a program of the operator's makes",
                                     /* It is told the limits, and refuses what it cannot hold. */
                                     .can = CAN_ALWAYS | PROVIDER_DISK,
                                     .patience = ENGINE_PATIENCE,
                                     .tells_facts = true};
    added_count++;
    return 0;
}

int provider_socket(const char *kind, const char *jails, const char *run_dir,
                    char ret[PROVIDER_SOCKET_SIZE], struct pd_err *e)
{
    int n = !strcmp(kind, kinds[0].name)
                ? snprintf(ret, PROVIDER_SOCKET_SIZE, "%s", jails)
                : snprintf(ret, PROVIDER_SOCKET_SIZE, "%s/keeper-%s.sock", run_dir, kind);
    if (n < (int)PROVIDER_SOCKET_SIZE)
        return 0;
    return pd_fail(e, PD_INVALID, "keeper_socket of provider %s: the path is longer than %u bytes",
                   kind, PROVIDER_SOCKET_SIZE - 1);
}

static struct provider *open_kind(const struct provider_kind *kind, const struct provider_place *at,
                                  struct pd_err *e)
{
    if (at->start)
        return provider_keeper_new_private(at->start, at->start_arg, at->pump, at->events, e);

    char path[PROVIDER_SOCKET_SIZE];
    if (provider_socket(kind->name, at->keeper_socket, at->run_dir, path, e) < 0)
        return NULL;
    struct provider *p = provider_keeper_new(kind->name, path, at->pump, at->events, e);
    if (p && at->data_dir)
        provider_keeper_watch_disk(p, at->data_dir);
    return p;
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

static int not_allowed(const struct provider_kind *k, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID, "providers: '%s' is %s: set %s = true if that is what you want",
                   k->name, k->what, k->setting);
}

int providers_check(char *const *names, unsigned count, const char *mode, bool local_allowed,
                    struct pd_err *e)
{
    char valid[200] = "", modes[200] = "auto, sandbox";

    for (unsigned i = 0; provider_kind_at(i); i++)
        list_add(valid, sizeof valid, provider_kind_at(i)->name);
    if (!count)
        return pd_fail(e, PD_INVALID, "providers: none is named; valid are %s", valid);

    bool known = !mode[0] || !strcmp(mode, "auto") || !strcmp(mode, "sandbox");
    for (unsigned i = 0; i < count; i++) {
        const struct provider_kind *kind = provider_kind_find(names[i]);
        if (!kind)
            return unknown("providers", names[i], valid, e);
        if (kind->setting && !local_allowed)
            return not_allowed(kind, e);
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
    if (!(p->can & PROVIDER_IMAGE))
        p->check = NULL;
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

/* Of a box on another machine there is no cgroup here to freeze or to read. */
static void be_far(struct provider *p)
{
    p->can &= ~(PROVIDER_PAUSE | PROVIDER_USAGE);
    p->pause = NULL;
    p->usage = NULL;
    p->is_far = true;
}

static int open_one(struct provider_table *t, const char *name, const struct provider_place *at,
                    struct pd_err *e)
{
    const struct provider_kind *kind = provider_kind_find(name);
    struct provider *p = kind ? open_kind(kind, at, e) : NULL;
    if (!p)
        return pd_wrap(e, "provider %s", name);

    p->image = p->needs_image ? at->image : NULL;
    if (kind->is_far || (at->docker_is_far && !strcmp(kind->name, "docker")))
        be_far(p);
    take_away(p);
    return provider_table_add(t, p, e);
}

int providers_open(struct provider_table *ret, char *const *names, unsigned count, const char *mode,
                   const struct provider_place *at, struct pd_err *e)
{
    struct provider_table t = {.count = 0};
    /* The default is the first of the table. */
    int r = provider_kind_find(mode) ? open_one(&t, mode, at, e) : 0;
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
