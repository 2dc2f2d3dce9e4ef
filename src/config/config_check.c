/* Values that are right by themselves and wrong beside others, or that have a form of their own;
 * and what is read out of them. */
#include "base/banned.h"
#include "base/parse.h"
#include "config/config_table.h"

#define TEMPLATE_NAME_MAX 128
#define MODULE_NAME_MAX   100

static int is_host_name(const char *s)
{
    size_t len = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789.-");
    return len > 0 && !s[len] && s[0] != '.' && s[0] != '-' && s[len - 1] != '.' &&
           !strstr(s, "..");
}

unsigned config_port(const char *address)
{
    const char *colon = strrchr(address, ':');
    uint64_t port = 0;
    struct pd_err e;
    return colon && parse_u64("port", colon + 1, 1, 65535, &port, &e) == 0 ? (unsigned)port : 0;
}

static int check_listen_tls(const struct config *c, struct pd_err *e)
{
    for (unsigned i = 0; i < c->listen_tls.count; i++) {
        const char *address = c->listen_tls.items[i];
        if (!strncmp(address, "unix:", 5))
            return pd_fail(
                e, PD_INVALID,
                "listen_tls: '%.80s' needs no TLS, it is of this host: put it into listen",
                address);
        if (!strncmp(address, "fd:", 3) || !config_port(address))
            return pd_fail(e, PD_INVALID,
                           "listen_tls: '%.80s' is not of the form '0.0.0.0:8443' or '[::]:8443'",
                           address);
    }

    if (c->listen_tls.count && !*c->tls_cert)
        return pd_fail(e, PD_INVALID,
                       "listen_tls needs tls_cert and tls_key: `paddock cert` makes them, for "
                       "development");

    return 0;
}

/* How long the name in `NAME=TEMPLATE` is; 0 when it is none. */
static size_t template_name(const char *pair)
{
    size_t len =
        strspn(pair, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/:-");
    return pair[len] == '=' && len <= TEMPLATE_NAME_MAX ? len : 0;
}

const char *config_template(const struct config *c, const char *name)
{
    size_t len = strlen(name);
    for (unsigned i = 0; i < c->templates.count; i++) {
        const char *pair = c->templates.items[i];
        if (template_name(pair) == len && !strncmp(pair, name, len))
            return pair + len + 1;
    }
    return NULL;
}

static int check_templates(const struct config *c, struct pd_err *e)
{
    for (unsigned i = 0; i < c->templates.count; i++) {
        const char *pair = c->templates.items[i];
        size_t len = template_name(pair);
        char name[TEMPLATE_NAME_MAX + 1];
        if (!len || !pair[len + 1])
            return pd_fail(e, PD_INVALID,
                           "templates: '%.150s' is not NAME=TEMPLATE with a name of 1 to %d of "
                           "A-Z a-z 0-9 . _ / : -",
                           pair, TEMPLATE_NAME_MAX);
        (void)snprintf(name, sizeof name, "%.*s", (int)len, pair);
        if (config_template(c, name) != pair + len + 1)
            return pd_fail(e, PD_INVALID, "templates: '%s' is there twice", name);
    }

    return 0;
}

/* Names as `import` takes them: they end up in a request to an interpreter. */
static int check_modules(const struct config *c, struct pd_err *e)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.";
    for (unsigned i = 0; i < c->contexts_warm.count; i++) {
        const char *name = c->contexts_warm.items[i];
        size_t len = strlen(name);
        if (!len || len > MODULE_NAME_MAX || strspn(name, letters) != len)
            return pd_fail(e, PD_INVALID,
                           "contexts_warm: '%.100s' is no module of Python: a name has 1 to %d of "
                           "A-Z a-z 0-9 _ .",
                           name, MODULE_NAME_MAX);
    }
    return 0;
}

void config_public_domain(const struct config *c, char *out, size_t size)
{
    unsigned port = c->listen_tls.count ? config_port(c->listen_tls.items[0]) : 0;
    int n = 0;
    if (port == 443)
        n = snprintf(out, size, "%s", c->domain);
    else if (port)
        n = snprintf(out, size, "%s:%u", c->domain, port);
    if ((n <= 0 || (size_t)n >= size) && size)
        out[0] = 0;
}

int config_check(const struct config *c, struct pd_err *e)
{
    if (!is_host_name(c->domain))
        return pd_fail(e, PD_INVALID, "domain: '%.60s' is not a host name in lower case",
                       c->domain);
    if (check_listen_tls(c, e) < 0 || check_templates(c, e) < 0 || check_modules(c, e) < 0 ||
        config_check_images(c, e) < 0 || config_check_egress(c, e) < 0)
        return -1;
    return config_check_ceilings(c, e);
}
