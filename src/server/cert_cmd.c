/* paddock cert: makes a certificate for development, with the authority that signs it, and prints
 * the lines that the server's configuration and its clients need. */
#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/options.h"
#include "base/parse.h"
#include "client/client.h"
#include "config/config.h"
#include "server/cert.h"
#include "server/serve.h"

#include <errno.h>
#include <sys/stat.h>

#define PORT_DEFAULT   8443
#define DOMAIN_DEFAULT "paddock.localhost"

extern char **environ;

const char cert_usage[] =
    "usage: paddock cert [--domain NAME] [--name NAME]... [--dir DIR] [--days N] [--force]\n\n"
    "Makes a certificate for development: for the domain, every name below it, localhost and the\n"
    "loopback addresses. It is signed by an authority that is made once and kept in DIR; clients\n"
    "are told to trust that. Run again it renews the certificate. Prints what to set.\n\n"
    "  --domain NAME  the server's domain (default: the setting, or paddock.localhost)\n"
    "  --name NAME    another host name or address; may be repeated\n"
    "  --dir DIR      where the files are (default: tls in the state directory)\n"
    "  --days N       how long it is good, 1 to 825 (default: 365)\n"
    "  --force        replace files that were not made by this command\n";

struct cert_options {
    const char *domain, *dir;
    uint64_t days;
    bool force;
    struct cert_names names;
};

static int read_options(struct options *o, struct cert_options *ret, struct pd_err *e)
{
    while (options_next(o)) {
        if (options_is(o, NULL, "--force")) {
            if (options_no_value(o, e) < 0)
                return -1;
            ret->force = true;
            continue;
        }

        const char *v = options_value(o, e);
        if (!v)
            return -1;
        if (options_is(o, NULL, "--domain"))
            ret->domain = v;
        else if (options_is(o, NULL, "--dir"))
            ret->dir = v;
        else if (options_is(o, NULL, "--days")) {
            if (parse_u64("--days", v, 1, CERT_DAYS_MAX, &ret->days, e) < 0)
                return -1;
        } else if (options_is(o, NULL, "--name")) {
            if (cert_names_add(&ret->names, "--name", v, e) < 0)
                return -1;
        } else {
            return usage_unknown(o, e);
        }
    }

    int count;
    char **words = options_arguments(o, &count);
    return count ? pd_fail(e, PD_INVALID, "unexpected argument '%.60s'", words[0]) : 0;
}

/* The names in their order: the domain first, since a certificate is called by it. */
static int all_names(const struct cert_options *o, const char *domain, struct cert_names *ret,
                     struct pd_err *e)
{
    static const char *const local[] = {"localhost", "127.0.0.1", "::1"};
    char below[CERT_NAME_MAX + 3];

    (void)snprintf(below, sizeof below, "*.%.*s", CERT_NAME_MAX, domain);
    if (domain[0] == '*' || strspn(domain, "0123456789.:") == strlen(domain))
        return pd_fail(e, PD_INVALID, "--domain: '%.80s' is not a host name", domain);

    if (cert_names_add(ret, "--domain", domain, e) < 0 ||
        cert_names_add(ret, "--domain", below, e) < 0)
        return -1;

    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if (cert_names_add(ret, "cert", local[i], e) < 0)
            return -1;
    for (unsigned i = 0; i < o->names.count; i++)
        if (cert_names_add(ret, "--name", o->names.items[i], e) < 0)
            return -1;
    return 0;
}

/* Makes the directory with its parents. Its path ends up in lines of a configuration and of a
 * shell. */
static int make_dir(const char *path, char out[CERT_PATH_SIZE], struct pd_err *e)
{
    char part[CERT_PATH_SIZE];

    size_t len = strlen(path);
    if (len == 0 || len >= sizeof part)
        return pd_fail(e, PD_INVALID, "--dir: '%.100s' has 0 or too many bytes", path);

    for (size_t i = 1; i <= len; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0755) < 0 && errno != EEXIST)
            return pd_fail_sys(e, "make %.150s", part);
    }

    char *whole = realpath(path, NULL);
    if (!whole)
        return pd_fail_sys(e, "find %.150s", path);
    int fits = (size_t)snprintf(out, CERT_PATH_SIZE, "%s", whole) < CERT_PATH_SIZE;
    free(whole);
    if (!fits)
        return pd_fail(e, PD_INVALID, "--dir: the path is too long");

    for (const char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || *p == '"' || *p == '\'')
            return pd_fail(e, PD_INVALID,
                           "--dir: the path has a quote or a control character, which a "
                           "configuration cannot hold");
    return 0;
}

/* Quotes where there is anything else than what a shell and a configuration take as it is. */
static const char *quote_for(const char *path, const char *mark)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "/._-+:@%";
    return path[strspn(path, plain)] ? mark : "";
}

static void show(const struct config *c, const char *domain, const struct cert_names *names,
                 const struct cert_result *r)
{
    unsigned port = c->listen_tls.count ? config_port(c->listen_tls.items[0]) : PORT_DEFAULT;
    char suffix[8] = "";

    if (port != 443)
        (void)snprintf(suffix, sizeof suffix, ":%u", port);

    printf("# A certificate for");
    for (unsigned i = 0; i < names->count; i++)
        printf("%s %s", i ? "," : "", names->items[i]);

    const char *q = quote_for(r->cert, "\"");
    printf("\n# It is good until %s. A server that runs needs a restart to use it.\n"
           "# %s: %s. Who has its key can be any server for those who trust it.\n"
           "\n# For the server's configuration:\n"
           "domain = %s\n"
           "listen_tls = ",
           r->until, r->made_ca ? "New authority" : "Authority", r->ca, domain);

    if (c->listen_tls.count == 0)
        printf("127.0.0.1:%d", PORT_DEFAULT);
    for (unsigned i = 0; i < c->listen_tls.count; i++)
        printf("%s%s", i ? ", " : "", c->listen_tls.items[i]);
    printf("\ntls_cert = %s%s%s\ntls_key = %s%s%s\n", q, r->cert, q, q, r->key, q);

    q = quote_for(r->ca, "'");
    printf("\n# For clients: names below the domain must lead to the server, by a wildcard in the "
           "DNS.\n"
           "# The certificate is for Node.js, then for Python and others that heed OpenSSL's "
           "variable.\n"
           "export E2B_DOMAIN=%s%s\n"
           "export NODE_EXTRA_CA_CERTS=%s%s%s\n"
           "export SSL_CERT_FILE=%s%s%s\n",
           domain, suffix, q, r->ca, q, q, r->ca, q);
}

static int run(const struct cert_options *o, const struct config *c, struct pd_err *e)
{
    struct cert_names *names = calloc(1, sizeof *names);
    struct cert_result *made = calloc(1, sizeof *made);
    char dir[CERT_PATH_SIZE], own[CERT_PATH_SIZE];

    /* No client accepts *.localhost: a wildcard must have two names behind it. */
    const char *domain = o->domain                        ? o->domain
                         : strcmp(c->domain, "localhost") ? c->domain
                                                          : DOMAIN_DEFAULT;

    int r = names && made ? 0 : pd_fail(e, PD_CAPACITY, "no memory");
    if (r == 0 && (size_t)snprintf(own, sizeof own, "%s/tls", c->state_dir) >= sizeof own)
        r = pd_fail(e, PD_INVALID, "state_dir: the path is too long");
    if (r == 0 &&
        (all_names(o, domain, names, e) < 0 || make_dir(o->dir ? o->dir : own, dir, e) < 0))
        r = -1;

    struct cert_request request = {
        .dir = dir, .names = names, .days = (unsigned)o->days, .force = o->force};
    if (r == 0)
        r = cert_make(&request, made, e);
    if (r == 0) {
        if (!strchr(domain, '.'))
            fprintf(stderr,
                    "paddock: most clients refuse a wildcard below '%s': choose a domain of two "
                    "names, such as %s\n",
                    domain, DOMAIN_DEFAULT);
        show(c, domain, names, made);
    }

    free(names);
    free(made);
    return r;
}

int cmd_cert(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    struct cert_options *given = calloc(1, sizeof *given);
    /* Settings that wait for a certificate are no reason not to make it. */
    static const char *const with[] = {"--tls-cert=/cert.pem", "--tls-key=/key.pem"};
    struct config_input in = {.environ = (const char *const *)environ, .argv = with, .argc = 2};
    struct config *c = NULL;
    int status = 0;

    o.mixed = 1;
    if (!given) {
        pd_fail(&e, PD_CAPACITY, "no memory");
        return usage_fail(&e);
    }

    given->days = CERT_DAYS_DEFAULT;
    if (read_options(&o, given, &e) < 0 || !(c = config_load(&in, &e)) || run(given, c, &e) < 0)
        status = usage_fail(&e);

    config_free(c);
    free(given);
    return status;
}
