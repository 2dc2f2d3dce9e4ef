/* Lines of a policy that are about what is changed on the way, secrets and headers: read by the
 * server, which has the values, and by the gate, which has to know the hosts and nothing else. */
#include "gate/rules.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#include <strings.h>

#define PLAIN_PORT 80u
#define TLS_PORT   443u

/* Takes a word up to the next blank, or to the end. False: it is empty, or too long. */
static bool take_word(const char **text, char *ret, size_t size)
{
    size_t len = strcspn(*text, " \n");
    if (!len || len >= size)
        return false;
    memcpy(ret, *text, len);
    ret[len] = 0;
    *text += len + ((*text)[len] == ' ');
    return true;
}

static bool is_variable(const char *s)
{
    static const char first[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    return strchr(first, s[0]) && strspn(s + 1, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                "abcdefghijklmnopqrstuvwxyz_") == strlen(s + 1);
}

static int take_host(const char *text, struct secret_rule *ret, struct pd_err *e)
{
    uint64_t port = SECRET_PORT;
    size_t len = strcspn(text, ":");

    if ((text[len] && parse_u64("port", text + len + 1, 1, 65535, &port, NULL) < 0) ||
        port == PLAIN_PORT || !name_normalise(text, len, ret->host))
        return pd_fail(e, PD_INVALID,
                       "'%.100s' is not NAME or NAME:PORT of a host that speaks TLS: a secret goes "
                       "to hosts that are named, one by one",
                       text);
    ret->port = (uint16_t)port;
    return 0;
}

int secret_rule_parse(const char *text, struct secret_rule *ret, struct pd_err *e)
{
    const char *rest = text;

    if (!take_word(&rest, ret->env, sizeof ret->env) || !is_variable(ret->env) ||
        !take_word(&rest, ret->name, sizeof ret->name))
        return pd_fail(e, PD_INVALID, "secret '%.100s' is not VARIABLE NAME HOST", text);
    return take_host(rest, ret, e);
}

bool secret_rule_next(const char **text, struct secret_rule *ret)
{
    char line[2 * SECRET_WORD_MAX + RULES_NAME_MAX + 32];

    while (**text) {
        const char *at = *text;
        size_t len = strcspn(at, "\n");
        *text += len + (at[len] == '\n');

        if (len < 8 || len - 7 >= sizeof line || strncmp(at, "secret ", 7) != 0)
            continue;
        memcpy(line, at + 7, len - 7);
        line[len - 7] = 0;
        if (secret_rule_parse(line, ret, NULL) == 0)
            return true;
    }
    return false;
}

/* ---- headers ---- */

int header_host_parse(const char *text, struct header_rule *ret, struct pd_err *e)
{
    uint64_t port = 0;
    size_t len = strcspn(text, ":");

    if ((text[len] && parse_u64("port", text + len + 1, 1, 65535, &port, NULL) < 0) ||
        !name_normalise(text, len, ret->host))
        return pd_fail(e, PD_INVALID,
                       "'%.100s' is not NAME or NAME:PORT: headers are set for hosts that are "
                       "named, one by one",
                       text);
    ret->port = (uint16_t)port;
    return 0;
}

static bool is_token(const char *s)
{
    static const char token[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "!#$%&'*+-.^_`|~";
    return *s && strspn(s, token) == strlen(s);
}

static bool is_visible(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
            return false;
    return true;
}

int header_check(const char *name, const char *value, struct pd_err *e)
{
    /* What is between two hops, how long a request is, and whom it is for. */
    static const char *const ours[] = {"Host",
                                       "Content-Length",
                                       "Transfer-Encoding",
                                       "Connection",
                                       "Keep-Alive",
                                       "TE",
                                       "Trailer",
                                       "Upgrade",
                                       "Expect",
                                       "Proxy-Connection",
                                       "Proxy-Authorization"};

    if (!is_token(name) || strlen(name) > HEADER_NAME_MAX)
        return pd_fail(e, PD_INVALID, "'%.80s' is not the name of a header", name);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcasecmp(name, ours[i]))
            return pd_fail(e, PD_INVALID,
                           "%s cannot be set: it is of the connection, not of what "
                           "is asked for",
                           ours[i]);
    /* The error must not have any of the value in it. */
    if (strlen(value) > HEADER_VALUE_MAX || !is_visible(value))
        return pd_fail(e, PD_INVALID,
                       "the value of %.80s is not at most %u bytes of printable "
                       "ASCII",
                       name, HEADER_VALUE_MAX);
    return 0;
}

bool header_rule_next(const char **text, struct header_rule *ret)
{
    char host[RULES_NAME_MAX + 8];

    while (**text) {
        const char *at = *text, *rest = at + 7;
        size_t len = strcspn(at, "\n");
        *text += len + (at[len] == '\n');

        if (len < 8 || strncmp(at, "header ", 7) != 0 || !take_word(&rest, host, sizeof host) ||
            header_host_parse(host, ret, NULL) < 0 || rest >= at + len ||
            !take_word(&rest, ret->name, sizeof ret->name) || rest >= at + len)
            continue;
        ret->sealed = rest;
        ret->sealed_len = (size_t)(at + len - rest);
        return true;
    }
    return false;
}

/* ---- what a connection is ---- */

static bool has_header_port(const struct secret_host *h, uint16_t port, bool is_tls)
{
    return h->port ? h->port == port : port == (is_tls ? TLS_PORT : PLAIN_PORT);
}

struct changed egress_changed(const struct egress_policy *p, const char *name, uint16_t port,
                              bool is_tls)
{
    struct changed found = {0};

    for (unsigned i = 0; i < p->secret_count; i++) {
        const struct secret_host *h = &p->secrets[i];
        if (strcmp(h->name, name) != 0)
            continue;
        if (!h->is_header && port == (is_tls ? h->port : PLAIN_PORT))
            return (struct changed){.port = h->port};
        if (h->is_header && has_header_port(h, port, is_tls))
            found = (struct changed){.port = port, .is_plain = !is_tls};
    }
    return found;
}
