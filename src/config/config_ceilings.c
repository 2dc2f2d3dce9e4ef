/* The most that one sandbox may have: of the server, worked out from the machine where nobody set
 * it, and of single tenants.
 *
 * `tenant_limits` is a list of TENANT:KEY=VALUE[:KEY=VALUE]... Each entry is checked when the
 * configuration is loaded and read again when a sandbox of that tenant is made: creations are rare
 * beside the time that they take. */
#include "config/config_table.h"

#include "base/banned.h"

#define TENANT_MAX 63
#define WORD_MAX   128

static enum config_source source_of(const struct config *c, const char *name)
{
    return c->origin[config_find(name, strlen(name), 0) - config_keys].source;
}

static void set_source(struct config *c, const char *name, enum config_source source)
{
    c->origin[config_find(name, strlen(name), 0) - config_keys].source = source;
}

/* ---- of the server ---- */

/* A ceiling and the default of what it bounds. */
static const struct pair {
    const char *ceiling, *usual;
    size_t ceiling_at, usual_at;
} pairs[] = {
    {"max_memory_bytes", "memory_bytes", offsetof(struct config, ceilings.memory),
     offsetof(struct config, memory_bytes)},
    {"max_pids", "pids", offsetof(struct config, ceilings.pids), offsetof(struct config, pids)},
    {"max_cpu", "cpu", offsetof(struct config, ceilings.cpu_milli),
     offsetof(struct config, cpu_milli)},
    {"max_disk_bytes", "disk_bytes", offsetof(struct config, ceilings.disk),
     offsetof(struct config, disk_bytes)},
};
#define PAIRS (sizeof pairs / sizeof *pairs)

static uint64_t *number_at(const struct config *c, size_t offset)
{
    return (uint64_t *)((uintptr_t)c + offset);
}

void config_derive_ceilings(struct config *c)
{
    const struct ceilings machine = ceilings_of_machine(c->state_dir);
    const uint64_t of_machine[PAIRS] = {machine.memory, machine.pids, machine.cpu_milli,
                                        machine.disk};

    for (size_t i = 0; i < PAIRS; i++) {
        const struct pair *p = &pairs[i];
        uint64_t *ceiling = number_at(c, p->ceiling_at), *usual = number_at(c, p->usual_at);
        int usual_was_set = source_of(c, p->usual) != CONFIG_FROM_DEFAULT;

        if (source_of(c, p->ceiling) == CONFIG_FROM_DEFAULT) {
            /* The operator may know better than half of the machine. */
            *ceiling = usual_was_set && *usual > of_machine[i] ? *usual : of_machine[i];
            set_source(c, p->ceiling, CONFIG_FROM_OTHERS);
        }
        if (!usual_was_set && *usual > *ceiling) {
            *usual = *ceiling;
            set_source(c, p->usual, CONFIG_FROM_OTHERS);
        }
    }
}

/* ---- of a tenant ---- */

/* Copies up to the next colon and moves behind it. Returns 0 when it is too long. */
static int next_word(const char **text, char word[WORD_MAX])
{
    size_t len = strcspn(*text, ":");
    if (len >= WORD_MAX)
        return 0;

    memcpy(word, *text, len);
    word[len] = 0;
    *text += len + ((*text)[len] == ':');
    return 1;
}

/* KEY=VALUE into the ceiling of that name. */
static int read_ceiling(const char *tenant, const char *word, struct ceilings *to, struct pd_err *e)
{
    size_t len = strcspn(word, "=");
    char what[WORD_MAX + 32];
    (void)snprintf(what, sizeof what, "tenant_limits: %s: %.40s", tenant, word);

    for (unsigned i = 0; i < CEILING_COUNT && word[len]; i++) {
        const char *name = ceilings_table[i].setting;
        if (strlen(name) == len && !strncmp(word, name, len))
            return config_read_number(config_find(name, len, 0), what, word + len + 1,
                                      (uint64_t *)((uintptr_t)to + ceilings_table[i].offset), e);
    }
    return pd_fail(e, PD_INVALID,
                   "%s: is not KEY=VALUE with max_memory_bytes, max_pids, max_cpu, max_disk_bytes "
                   "or max_life_s",
                   what);
}

/* One entry of the list. Writes the tenant's name, and changes the ceilings that it names. */
static int read_entry(const char *entry, char tenant[WORD_MAX], struct ceilings *to,
                      struct pd_err *e)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
    const char *rest = entry;
    char word[WORD_MAX];

    if (!next_word(&rest, tenant) || !*tenant || tenant[strspn(tenant, valid)] ||
        strlen(tenant) > TENANT_MAX || !*rest)
        return pd_fail(e, PD_INVALID,
                       "tenant_limits: '%.100s' is not TENANT:KEY=VALUE, such as acme:max_pids=100",
                       entry);

    while (*rest) {
        if (!next_word(&rest, word))
            return pd_fail(e, PD_INVALID, "tenant_limits: '%.100s' is too long", rest);
        if (read_ceiling(tenant, word, to, e) < 0)
            return -1;
    }
    return 0;
}

struct ceilings config_ceilings(const struct config *c, const char *tenant)
{
    struct ceilings all = c->ceilings;
    size_t len = strlen(tenant);

    for (unsigned i = 0; i < c->tenant_limits.count; i++) {
        const char *entry = c->tenant_limits.items[i];
        char name[WORD_MAX];
        if (!strncmp(entry, tenant, len) && entry[len] == ':')
            (void)read_entry(entry, name, &all, NULL); /* it was checked when it was loaded */
    }
    return all;
}

int config_check_ceilings(const struct config *c, struct pd_err *e)
{
    for (size_t i = 0; i < PAIRS; i++)
        if (*number_at(c, pairs[i].usual_at) > *number_at(c, pairs[i].ceiling_at))
            return pd_fail(e, PD_INVALID, "%s must not be larger than %s: %ju is above %ju",
                           pairs[i].usual, pairs[i].ceiling,
                           (uintmax_t)*number_at(c, pairs[i].usual_at),
                           (uintmax_t)*number_at(c, pairs[i].ceiling_at));

    for (unsigned i = 0; i < c->tenant_limits.count; i++) {
        struct ceilings unused = c->ceilings;
        char name[WORD_MAX];
        if (read_entry(c->tenant_limits.items[i], name, &unused, e) < 0)
            return -1;
    }
    return 0;
}
