/* The table of a server's providers, and what they can do.
 *
 * A provider enters the table only if it has every function that its capability bits promise. From
 * then on a set bit means that the call can be made, and core/box.c relies on it. */
#include "core/provider.h"

#include "base/banned.h"
#include "base/err.h"
#include "router/rules.h"

#include <stddef.h>

const struct provider_capability provider_capabilities[] = {
#define X(id, bit, name, cannot, instead) {PROVIDER_##id, name, cannot, instead},
    PROVIDER_CAPABILITIES(X)
#undef X
};
_Static_assert(sizeof provider_capabilities / sizeof *provider_capabilities ==
                   PROVIDER_CAPABILITY_COUNT,
               "PROVIDER_CAPABILITY_COUNT counts the rows of PROVIDER_CAPABILITIES");

bool provider_has(const struct provider *p, enum provider_can bit)
{
    return p && p->can & bit;
}

int provider_must(const struct provider *p, enum provider_can bit, struct pd_err *e)
{
    if (provider_has(p, bit))
        return 0;

    if (!p)
        return pd_fail(e, PD_UNSUPPORTED, "the sandbox's provider is not configured here");

    const struct provider_capability *c = provider_capabilities;
    while (c->bit != bit)
        c++;
    return pd_fail(e, PD_UNSUPPORTED, "provider %s cannot %s: %s", p->name, c->cannot, c->instead);
}

/* ---- the table ---- */

/* The function that each capability needs; bits 0: every provider has it. */
#define NEEDS(bits, function)                                                                      \
    {                                                                                              \
        bits, offsetof(struct provider, function), #function                                       \
    }
static const struct {
    unsigned bits;
    size_t offset;
    const char *name;
} needs[] = {
    NEEDS(0, create),
    NEEDS(0, destroy),
    NEEDS(0, exec),
    NEEDS(0, kill),
    NEEDS(0, forget),
    NEEDS(0, sync),
    NEEDS(0, rung),
    NEEDS(0, best),
    NEEDS(0, health),
    NEEDS(0, free),
    NEEDS(PROVIDER_ADOPT, adopt),
    NEEDS(PROVIDER_ADOPT, end_strangers),
    NEEDS(PROVIDER_SIGNAL, signal),
    NEEDS(PROVIDER_TREES, group_is_empty),
    NEEDS(PROVIDER_TERMINAL, terminal),
    NEEDS(PROVIDER_TERMINAL, resize),
    NEEDS(PROVIDER_PAUSE, pause),
    NEEDS(PROVIDER_USAGE, usage),
    NEEDS(PROVIDER_IMAGE, check),
    NEEDS(PROVIDER_EGRESS, way_out),
    NEEDS(PROVIDER_ROOTS | PROVIDER_SLEEP | PROVIDER_SNAPSHOT, remove_root),
    NEEDS(PROVIDER_SLEEP, keep_root),
    NEEDS(PROVIDER_SNAPSHOT, copy_root),
    NEEDS(PROVIDER_STASH, stash),
    NEEDS(PROVIDER_STASH, fetch),
    NEEDS(PROVIDER_STASH, drop),
};

static int check_functions(const struct provider *p, struct pd_err *e)
{
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        void (*function)(void);
        memcpy(&function, (const char *)p + needs[i].offset, sizeof function);
        if (!function && (!needs[i].bits || p->can & needs[i].bits))
            return pd_fail(e, PD_INTERNAL, "provider %s has no function '%s', which it promises",
                           p->name, needs[i].name);
    }
    return 0;
}

static int check(const struct provider_table *t, const struct provider *p, struct pd_err *e)
{
    if (!p->name || !p->name[0] || strlen(p->name) > PROVIDER_NAME_MAX || !strcmp(p->name, "auto"))
        return pd_fail(e, PD_INTERNAL, "a provider's name has 1 to %u letters and is not 'auto'",
                       PROVIDER_NAME_MAX);

    const struct provider_patience *w = &p->patience;
    if (!w->create || !w->destroy || !w->pause || !w->keep)
        return pd_fail(e, PD_INTERNAL, "provider %s does not say how long to wait for it", p->name);

    if (provider_table_find(t, p->name))
        return pd_fail(e, PD_INVALID, "provider %s is named twice", p->name);
    if (t->count == PROVIDERS_MAX)
        return pd_fail(e, PD_INVALID, "more than %u providers", PROVIDERS_MAX);

    return check_functions(p, e);
}

int provider_table_add(struct provider_table *t, struct provider *p, struct pd_err *e)
{
    if (check(t, p, e) < 0) {
        if (p->free)
            p->free(p);
        return -1;
    }

    t->list[t->count++] = p;
    return 0;
}

struct provider *provider_table_find(const struct provider_table *t, const char *name)
{
    for (unsigned i = 0; i < t->count; i++)
        if (!strcmp(t->list[i]->name, name))
            return t->list[i];
    return NULL;
}

unsigned provider_table_index(const struct provider_table *t, const struct provider *p)
{
    unsigned i = 0;
    while (i < t->count && t->list[i] != p)
        i++;
    return i;
}

struct provider *provider_table_choose(const struct provider_table *t, const char *name,
                                       struct pd_err *e)
{
    if (!name || !strcmp(name, "auto"))
        return t->list[0];

    struct provider *p = provider_table_find(t, name);
    if (p)
        return p;

    char valid[PROVIDERS_MAX * (PROVIDER_NAME_MAX + 2) + 1];
    size_t at = 0;
    valid[0] = 0;
    for (unsigned i = 0; i < t->count; i++)
        at += (size_t)snprintf(valid + at, sizeof valid - at, ", %s", t->list[i]->name);
    pd_fail(e, PD_INVALID, "provider '%.40s' is not one of this server's: auto%s", name, valid);
    return NULL;
}

_Static_assert(PROVIDERS_MAX == ROUTER_PROVIDERS_MAX && PROVIDER_NAME_MAX < ROUTER_PROVIDER_SIZE,
               "the router has room for every provider");

unsigned provider_table_describe(const struct provider_table *t, struct route_provider *ret)
{
    for (unsigned i = 0; i < t->count; i++)
        ret[i] =
            (struct route_provider){.name = t->list[i]->name, .rung = t->list[i]->best(t->list[i])};
    return t->count;
}

const char *provider_image(const struct provider *p, const struct spec *spec)
{
    if ((spec->image && spec->image[0]) || !provider_has(p, PROVIDER_IMAGE) || !p->image)
        return spec->image ? spec->image : "";
    return p->image;
}

unsigned provider_table_describe_for(const struct provider_table *t, const struct spec *spec,
                                     struct route_provider *ret)
{
    unsigned count = provider_table_describe(t, ret);
    bool has_engine = false;
    for (unsigned i = 0; i < count; i++)
        has_engine |= t->list[i]->needs_image;
    bool has_image = (spec->image && spec->image[0]) || (spec->options && spec->options[0]);

    for (unsigned i = 0; i < count; i++) {
        const struct provider *p = t->list[i];
        bool takes = provider_has(p, PROVIDER_IMAGE);
        if (has_image && !takes)
            ret[i].unfit = "takes no image";
        else if (has_image && has_engine && !p->needs_image)
            ret[i].unfit = "leaves images to the engine"; /* unless the request names it */
        else if (!has_image && p->needs_image && !provider_image(p, spec)[0])
            ret[i].unfit = "needs an image";
        if (spec->network == NETWORK_GATE && !provider_has(t->list[i], PROVIDER_EGRESS))
            ret[i].unfit = "has no way out by rules";
        if (spec->network == NETWORK_HOST && ret[i].rung > RUNG_BASIC)
            ret[i].rung = RUNG_BASIC;
    }
    return count;
}

void provider_table_done(struct provider_table *t)
{
    while (t->count) {
        struct provider *p = t->list[--t->count];
        p->free(p);
    }
}
