/* The operator's word on where sandboxes may connect to: one layer of rules, which every sandbox's
 * own must agree with, and where addresses and names are that only the operator may lead to. It is
 * written as the text that the gate reads (gate/rules.h), and read once when the settings are
 * loaded, so that what is wrong is said then. */
#include "config/config_table.h"

#include "base/banned.h"
#include "gate/rules.h"

/* The mode behind TENANT=, or NULL when the pair is of another tenant. */
static const char *mode_of(const char *pair, const char *tenant)
{
    size_t len = strlen(tenant);
    return !strncmp(pair, tenant, len) && pair[len] == '=' ? pair + len + 1 : NULL;
}

unsigned config_egress(const struct config *c, const char *tenant)
{
    enum egress_mode mode = (enum egress_mode)c->egress;

    for (unsigned i = 0; mode != EGRESS_OFF && i < c->tenant_egress.count; i++) {
        const char *word = mode_of(c->tenant_egress.items[i], tenant);
        if (word && egress_mode_parse("tenant_egress", word, &mode, NULL) == 0)
            break;
    }
    return mode;
}

static void put_lines(struct buf *out, const char *word, const struct config_list *l)
{
    for (unsigned i = 0; i < l->count; i++)
        (void)buf_printf(out, "%s %s\n", word, l->items[i]);
}

/* Names below the server's own lead to its TLS address, which no other way would: it is the
 * machine's. So a sandbox reaches the ports of others by their names, as everybody does. */
static void put_own_domain(const struct config *c, struct buf *out)
{
    const char *at = c->listen_tls.count ? c->listen_tls.items[0] : "";
    const char *port = strrchr(at, ':');

    if (!strcmp(c->domain, "localhost") || !port || !config_port(at))
        return;
    if (!strncmp(at, "0.0.0.0:", 8) || !strncmp(at, "[::]:", 5))
        (void)buf_printf(out, "host *.%s=127.0.0.1%s\n", c->domain, port);
    else
        (void)buf_printf(out, "host *.%s=%s\n", c->domain, at);
}

void config_egress_policy(const struct config *c, const char *tenant, struct buf *out)
{
    (void)buf_printf(out, "layer %s\n",
                     egress_mode_name((enum egress_mode)config_egress(c, tenant)));
    put_lines(out, "allow", &c->egress_allow);
    put_lines(out, "private", &c->egress_private);
    put_lines(out, "host", &c->egress_hosts);
    put_own_domain(c, out);
    put_lines(out, "resolver", &c->egress_resolvers);
    (void)buf_printf(out, "limit connections %ju\nlimit tenant_connections %ju\n",
                     (uintmax_t)c->egress_connections, (uintmax_t)c->egress_tenant_connections);
    (void)buf_printf(out, "limit loans %ju\nlimit rate %ju\nlimit bytes %ju\n",
                     (uintmax_t)c->egress_secret_connections, (uintmax_t)c->egress_rate,
                     (uintmax_t)c->egress_bytes);
}

static int check_tenants(const struct config *c, struct pd_err *e)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

    for (unsigned i = 0; i < c->tenant_egress.count; i++) {
        const char *pair = c->tenant_egress.items[i];
        size_t len = strspn(pair, valid);
        enum egress_mode mode;
        if (!len || len > 63 || pair[len] != '=' ||
            egress_mode_parse("tenant_egress", pair + len + 1, &mode, NULL) < 0)
            return pd_fail(e, PD_INVALID,
                           "tenant_egress: '%.100s' is not TENANT=off, TENANT=list or TENANT=open",
                           pair);
    }
    return 0;
}

/* A blank would begin another word in the policy; controls are refused for every setting. */
static int check_words(const char *name, const struct config_list *l, struct pd_err *e)
{
    for (unsigned i = 0; i < l->count; i++)
        if (strchr(l->items[i], ' '))
            return pd_fail(e, PD_INVALID, "%s: '%.100s' has a blank in it", name, l->items[i]);
    return 0;
}

int config_check_egress(const struct config *c, struct pd_err *e)
{
    auto_buf text = BUF_INIT(POLICY_TEXT_MAX);
    struct egress_policy *p;

    if (check_tenants(c, e) < 0 || check_words("egress_allow", &c->egress_allow, e) < 0 ||
        check_words("egress_private", &c->egress_private, e) < 0 ||
        check_words("egress_hosts", &c->egress_hosts, e) < 0 ||
        check_words("egress_resolvers", &c->egress_resolvers, e) < 0)
        return -1;

    if (c->egress_ca[0] && c->egress_ca[0] != '/')
        return pd_fail(e, PD_INVALID, "egress_ca: '%.100s' is not a whole path, from / on",
                       c->egress_ca);
    config_egress_policy(c, "", &text);
    /* What a sandbox brings itself has to have room beside it. */
    if (text.overflow || text.len > POLICY_TEXT_MAX - (24u << 10))
        return pd_fail(e, PD_INVALID, "egress_allow, egress_hosts: all together are too long");
    if (egress_parse((const char *)text.data, text.len, &p, e) < 0)
        return pd_wrap(e, "egress_allow, egress_private, egress_hosts or egress_resolvers");
    egress_free_policy(p);
    return 0;
}
