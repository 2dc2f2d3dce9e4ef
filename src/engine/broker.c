/* The options that a keeper starts its brokers with. */
#include "engine/broker.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "engine/remote.h"

#include <string.h>

static int parse_pull(const char *value, enum pull_policy *ret, struct pd_err *e)
{
    static const char *const names[PULL_COUNT] = {"never", "missing", "always"};

    for (int i = 0; i < PULL_COUNT; i++)
        if (!strcmp(value, names[i])) {
            *ret = (enum pull_policy)i;
            return 0;
        }
    return pd_fail(e, PD_INVALID, "--pull '%.40s': use never, missing or always", value);
}

/* It becomes a part of names and paths. */
static int check_instance(const char *value, struct pd_err *e)
{
    size_t len = strspn(value, "0123456789abcdefghijklmnopqrstuvwxyz");

    if (len == 0 || len > 31 || value[len])
        return pd_fail(e, PD_INVALID, "--instance '%.40s': use 1 to 31 of a-z and 0-9", value);
    return 0;
}

/* One of the kind's own words, once. */
static int add_setting(struct broker_config *c, const char *value, struct pd_err *e)
{
    const char *equals = strchr(value, '=');
    size_t len = equals ? (size_t)(equals - value) : 0;
    const char *const *word = c->kind ? c->kind->settings : NULL;

    while (word && *word && (strlen(*word) != len || strncmp(*word, value, len) != 0))
        word++;
    if (!len || !word || !*word)
        return pd_fail(e, PD_INVALID, "--set '%.40s': %s has no such setting", value,
                       c->kind ? c->kind->name : "this kind");
    if (c->setting_count == BROKER_SETTINGS_MAX || broker_setting(c, *word)[0])
        return pd_fail(e, PD_INVALID, "--set '%.40s': it was given before", value);

    c->settings[c->setting_count++] = value;
    return 0;
}

const char *broker_setting(const struct broker_config *c, const char *word)
{
    size_t len = strlen(word);

    for (unsigned i = 0; i < c->setting_count; i++)
        if (!strncmp(c->settings[i], word, len) && c->settings[i][len] == '=')
            return c->settings[i] + len + 1;
    return "";
}

int broker_option(struct broker_config *c, const char *name, const char *value, struct pd_err *e)
{
    const struct {
        const char *name;
        const char **ret;
    } texts[] = {{"--instance", &c->instance}, {"--state", &c->state_dir},
                 {"--host", &c->host},         {"--certs", &c->cert_path},
                 {"--runtime", &c->runtime},   {"--auth", &c->auth_file}};

    if (!strcmp(name, "--pull"))
        return parse_pull(value, &c->pull, e);
    if (!strcmp(name, "--set"))
        return add_setting(c, value, e);

    if (!strcmp(name, "--owner")) {
        uint64_t uid;
        if (parse_u64(name, value, 0, UINT32_MAX - 1, &uid, e) < 0)
            return -1;
        c->owner = (uid_t)uid;
        return 0;
    }

    if (!strcmp(name, "--lease")) {
        uint64_t lease;
        if (parse_u64(name, value, BROKER_LEASE_LEAST, BROKER_LEASE_MOST, &lease, e) < 0)
            return -1;
        c->lease = (uint32_t)lease;
        return 0;
    }

    if (!strcmp(name, "--instance") && check_instance(value, e) < 0)
        return -1;
    if (!strcmp(name, "--state") && value[0] && value[0] != '/')
        return pd_fail(e, PD_INVALID, "--state '%.80s': use an absolute path", value);

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(name, texts[i].name)) {
            *texts[i].ret = value;
            return 0;
        }
    return pd_fail(e, PD_INVALID,
                   "'%.40s' is no option of a broker: --instance, --state, --host, --certs, "
                   "--lease, --runtime, --pull, --auth, --owner, --set",
                   name);
}
