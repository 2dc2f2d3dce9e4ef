/* Reading a policy: lines of words, one blank between them. Everything goes into one block of
 * memory that is sized by the number of lines, and names stay where they are in a copy of the text.
 */
#include "gate/rules.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#define HOSTS_MAX 250u

/* What is being read, and where its lists are. */
struct reader {
    struct egress_policy *p;
    struct rule *rules; /* of the layer, allow and deny: one room, filled from both ends */
    unsigned rules_left;
    char *names; /* room for names of rules */
    size_t names_left;
};

static int take_layer(struct reader *r, const char *mode, struct pd_err *e)
{
    struct egress_policy *p = r->p;
    if (p->layer_count == POLICY_LAYERS)
        return pd_fail(e, PD_INVALID, "more than %u layers", POLICY_LAYERS);

    struct layer *l = &p->layers[p->layer_count];
    if (egress_mode_parse("layer", mode, &l->mode, e) < 0)
        return -1;
    p->layer_count++;
    return 0;
}

static int take_rule(struct reader *r, const char *text, bool allow, struct pd_err *e)
{
    char name[RULES_NAME_MAX + 1];
    struct rule rule;

    if (!r->p->layer_count)
        return pd_fail(e, PD_INVALID, "a rule before its layer");
    if (rule_parse(text, &rule, name, e) < 0)
        return -1;
    if (!allow && rule.kind != RULE_NETWORK)
        return pd_fail(e, PD_INVALID,
                       "deny '%.100s': only networks can be denied, names are what allow is for",
                       text);

    size_t len = strlen(name) + 1;
    if (!r->rules_left || len > r->names_left)
        return pd_fail(e, PD_INVALID, "too many rules");
    memcpy(r->names, name, len);
    rule.name = r->names;
    r->names += len;
    r->names_left -= len;

    struct layer *l = &r->p->layers[r->p->layer_count - 1];
    struct rule **list = allow ? &l->allow : &l->deny;
    unsigned *count = allow ? &l->allow_count : &l->deny_count;

    /* A list lies together: rules of one kind follow each other in a layer. */
    if (*count && *list + *count != r->rules)
        return pd_fail(e, PD_INVALID, "allow and deny of a layer must not be mixed");
    if (!*count)
        *list = r->rules;
    *r->rules++ = rule;
    r->rules_left--;
    (*count)++;
    return 0;
}

static int take_private(struct reader *r, const char *text, struct pd_err *e)
{
    struct egress_policy *p = r->p;
    if (cidr_parse(text, &p->privates[p->private_count], e) < 0)
        return -1;
    p->private_count++;
    return 0;
}

/* ADDRESS, ADDRESS:PORT, [ADDRESS6]:PORT. `text` is changed. */
static bool take_place(char *text, struct host_entry *h)
{
    uint64_t port = 0;

    if (ip_parse(text, &h->to))
        return true;
    char *colon = strrchr(text, ':');
    if (!colon || parse_u64("port", colon + 1, 1, 65535, &port, NULL) < 0)
        return false;

    *colon = 0;
    size_t len = strlen(text);
    if (text[0] == '[' && len && text[len - 1] == ']') {
        text[len - 1] = 0;
        text++;
    }
    h->to_port = (uint16_t)port;
    return ip_parse(text, &h->to);
}

/* A name, or all below one, normalised. */
static bool take_host_name(const char *text, char ret[RULES_NAME_MAX + 3])
{
    size_t wild = !strncmp(text, "*.", 2) ? 2 : 0;

    memcpy(ret, "*.", wild);
    return name_normalise(text + wild, strlen(text) - wild, ret + wild);
}

static int take_host(struct reader *r, char *text, struct pd_err *e)
{
    struct egress_policy *p = r->p;
    struct host_entry h = {0};
    char name[RULES_NAME_MAX + 3] = "";

    char *equals = strchr(text, '=');
    if (!equals || p->host_count == HOSTS_MAX)
        return pd_fail(e, PD_INVALID,
                       "host '%.100s' is not NAME=ADDRESS[:PORT], or one of more "
                       "than %u",
                       text, HOSTS_MAX);
    *equals = 0;
    bool is_name = !ip_parse(text, &h.key);
    if ((is_name && !take_host_name(text, name)) || !take_place(equals + 1, &h))
        return pd_fail(e, PD_INVALID, "host '%.60s=%.60s' is not NAME=ADDRESS[:PORT]", text,
                       equals + 1);

    size_t len = strlen(name) + 1;
    if (len > r->names_left)
        return pd_fail(e, PD_INVALID, "too many hosts");
    if (is_name) {
        memcpy(r->names, name, len);
        h.name = r->names;
        r->names += len;
        r->names_left -= len;
    }
    p->hosts[p->host_count++] = h;
    return 0;
}

static int take_resolver(struct egress_policy *p, char *text, struct pd_err *e)
{
    struct host_entry h = {0};

    if (p->resolver_count == POLICY_RESOLVERS || !take_place(text, &h))
        return pd_fail(e, PD_INVALID,
                       "resolver '%.60s' is not ADDRESS[:PORT], or one of more than "
                       "%u",
                       text, POLICY_RESOLVERS);
    p->resolvers[p->resolver_count++] = h;
    return 0;
}

static int take_secret(struct reader *r, const char *text, struct pd_err *e)
{
    struct egress_policy *p = r->p;
    struct secret_rule rule;

    if (secret_rule_parse(text, &rule, e) < 0)
        return -1;
    size_t len = strlen(rule.host) + 1;
    if (len > r->names_left)
        return pd_fail(e, PD_INVALID, "too many secrets");
    memcpy(r->names, rule.host, len);
    p->secrets[p->secret_count++] = (struct secret_host){.name = r->names, .port = rule.port};
    r->names += len;
    r->names_left -= len;
    return 0;
}

/* The value, if there is one, is for others. */
static int take_header(struct reader *r, const char *text, struct pd_err *e)
{
    struct egress_policy *p = r->p;
    struct header_rule rule;
    char host[RULES_NAME_MAX + 8];

    snprintf(host, sizeof host, "%.*s", (int)strcspn(text, " "), text);
    if (header_host_parse(host, &rule, e) < 0)
        return -1;
    size_t len = strlen(rule.host) + 1;
    if (len > r->names_left)
        return pd_fail(e, PD_INVALID, "too many headers");
    memcpy(r->names, rule.host, len);
    p->secrets[p->secret_count++] =
        (struct secret_host){.name = r->names, .port = rule.port, .is_header = true};
    r->names += len;
    r->names_left -= len;
    return 0;
}

int proxy_parse(const char *text, struct egress_proxy *ret, char name[RULES_NAME_MAX + 1],
                struct pd_err *e)
{
    char copy[RULES_TEXT_MAX];
    struct host_entry h = {0};
    struct egress_proxy p = {.credentials = ""};
    uint64_t port = 0;
    const char *colon = strrchr(text, ':');

    snprintf(copy, sizeof copy, "%s", text);
    if (strlen(text) < sizeof copy && take_place(copy, &h) && h.to_port) {
        p.address = h.to;
        p.port = h.to_port;
    } else if (colon && name_normalise(text, (size_t)(colon - text), name) &&
               parse_u64("port", colon + 1, 1, 65535, &port, NULL) == 0) {
        p.name = name;
        p.port = (uint16_t)port;
    } else {
        return pd_fail(e, PD_INVALID,
                       "'%.100s' is not HOST:PORT of a SOCKS5 proxy, such as "
                       "proxy.example.com:1080",
                       text);
    }
    *ret = p;
    return 0;
}

static int take_proxy(struct reader *r, char *text, struct pd_err *e)
{
    char name[RULES_NAME_MAX + 1];
    char *credentials = strchr(text, ' ');
    struct egress_policy *p = r->p;

    if (credentials)
        *credentials++ = 0;
    if (p->proxy.port)
        return pd_fail(e, PD_INVALID, "more than one proxy");
    if (proxy_parse(text, &p->proxy, name, e) < 0)
        return -1;
    p->proxy.credentials = credentials ? credentials : "";
    if (!p->proxy.name)
        return 0;

    size_t len = strlen(name) + 1;
    p->proxy.name = NULL;
    if (len > r->names_left)
        return pd_fail(e, PD_INVALID, "too many names");
    p->proxy.name = memcpy(r->names, name, len);
    r->names += len;
    r->names_left -= len;
    return 0;
}

bool egress_same_proxy(const struct egress_policy *a, const struct egress_policy *b)
{
    const struct egress_proxy *p = &a->proxy, *q = &b->proxy;

    if (p->port != q->port || !p->port)
        return p->port == q->port;
    return !p->name == !q->name && ip_equal(p->address, q->address) &&
           (!p->name || !strcmp(p->name, q->name)) && !strcmp(p->credentials, q->credentials);
}

static int take_limit(struct egress_policy *p, char *text, struct pd_err *e)
{
    struct egress_limits *l = &p->limits;
    const struct {
        const char *name;
        uint64_t *value;
    } limits[] = {
        {"connections", &l->connections},
        {"tenant_connections", &l->tenant_connections},
        {"loans", &l->loans},
        {"starts", &l->starts},
        {"questions", &l->questions},
        {"rate", &l->rate},
        {"bytes", &l->bytes},
    };

    char *number = strchr(text, ' ');
    if (number)
        *number++ = 0;
    for (size_t i = 0; number && i < sizeof limits / sizeof *limits; i++)
        if (!strcmp(limits[i].name, text))
            return parse_u64(text, number, 0, UINT64_C(1) << 60, limits[i].value, e);
    return pd_fail(e, PD_INVALID, "limit '%.40s' is not known", text);
}

static int take_line(struct reader *r, char *line, struct pd_err *e)
{
    char *rest = strchr(line, ' ');
    if (!rest)
        return pd_fail(e, PD_INVALID, "'%.40s' has no value", line);
    *rest++ = 0;

    if (!strcmp(line, "layer"))
        return take_layer(r, rest, e);
    if (!strcmp(line, "allow") || !strcmp(line, "deny"))
        return take_rule(r, rest, line[0] == 'a', e);
    if (!strcmp(line, "private"))
        return take_private(r, rest, e);
    if (!strcmp(line, "host"))
        return take_host(r, rest, e);
    if (!strcmp(line, "resolver"))
        return take_resolver(r->p, rest, e);
    if (!strcmp(line, "secret"))
        return take_secret(r, rest, e);
    if (!strcmp(line, "header"))
        return take_header(r, rest, e);
    if (!strcmp(line, "proxy"))
        return take_proxy(r, rest, e);
    if (!strcmp(line, "limit"))
        return take_limit(r->p, rest, e);
    if (!strcmp(line, "tenant")) {
        r->p->tenant = rest;
        return 0;
    }
    return pd_fail(e, PD_INVALID, "'%.40s' is not known", line);
}

static int read_lines(struct reader *r, char *text, struct pd_err *e)
{
    unsigned number = 0;

    for (char *line = text, *next; line && *line; line = next) {
        number++;
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (*line && take_line(r, line, e) < 0)
            return pd_wrap(e, "line %u of the policy", number);
    }
    return 0;
}

int egress_parse(const char *text, size_t len, struct egress_policy **ret, struct pd_err *e)
{
    unsigned lines = 1;
    for (size_t i = 0; i < len; i++)
        lines += text[i] == '\n';
    if (len > POLICY_TEXT_MAX || lines > POLICY_LINES_MAX || memchr(text, 0, len))
        return pd_fail(e, PD_INVALID, "a policy has at most %u bytes and %u lines", POLICY_TEXT_MAX,
                       POLICY_LINES_MAX);

    struct egress_policy *p = calloc(1, sizeof *p);
    char *copy = malloc(len + 1);
    /* A line is one entry of one list at most; a name is shorter than its line. */
    size_t rules = lines * sizeof(struct rule), privates = lines * sizeof(struct cidr);
    size_t hosts = (lines < HOSTS_MAX ? lines : HOSTS_MAX) * sizeof(struct host_entry);
    size_t secrets = lines * sizeof(struct secret_host);
    char *room = calloc(1, rules + hosts + privates + secrets + len + lines + 1);
    if (!p || !copy || !room) {
        free(p);
        free(copy);
        free(room);
        return pd_fail(e, PD_CAPACITY, "no memory for a policy");
    }

    memcpy(copy, text, len);
    copy[len] = 0;
    p->text = copy;
    p->room = room;
    p->tenant = "";
    p->proxy.credentials = "";
    p->limits = (struct egress_limits){
        .connections = EGRESS_CONNECTIONS, .starts = EGRESS_STARTS, .questions = EGRESS_QUESTIONS};
    p->hosts = (struct host_entry *)(void *)(room + rules);
    p->privates = (struct cidr *)(void *)(room + rules + hosts + secrets);
    p->secrets = (struct secret_host *)(void *)(room + rules + hosts);

    struct reader r = {.p = p,
                       .rules = (struct rule *)(void *)room,
                       .rules_left = lines,
                       .names = room + rules + hosts + secrets + privates,
                       .names_left = len + lines + 1};
    if (read_lines(&r, copy, e) < 0) {
        egress_free_policy(p);
        return -1;
    }

    *ret = p;
    return 0;
}

void egress_free_policy(struct egress_policy *p)
{
    if (!p)
        return;
    free(p->text);
    free(p->room);
    free(p);
}
