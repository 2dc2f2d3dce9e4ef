/* Rules: reading them, and what they say of a connection. How a policy is read is in policy.c. */
#include "gate/rules.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#define LABEL_MAX 63u

static const char *const mode_names[EGRESS_COUNT] = {"off", "list", "open"};

const char *egress_mode_name(enum egress_mode m)
{
    return (unsigned)m < EGRESS_COUNT ? mode_names[m] : "?";
}

int egress_mode_parse(const char *what, const char *text, enum egress_mode *ret, struct pd_err *e)
{
    for (unsigned i = 0; i < EGRESS_COUNT; i++)
        if (!strcmp(mode_names[i], text)) {
            *ret = (enum egress_mode)i;
            return 0;
        }
    return pd_fail(e, PD_INVALID, "%s: '%.40s' is not one of: off, list, open", what, text);
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '_';
}

/* Would some program read this as a number? Then a name that ends in it is an address in one of the
 * spellings that inet_aton takes: decimal, octal or hexadecimal. */
static bool is_number(const char *label, size_t len)
{
    if (len >= 2 && label[0] == '0' && label[1] == 'x') {
        for (size_t i = 2; i < len; i++)
            if (!is_digit(label[i]) && !(label[i] >= 'a' && label[i] <= 'f'))
                return false;
        return true;
    }

    for (size_t i = 0; i < len; i++)
        if (!is_digit(label[i]))
            return false;
    return true;
}

bool name_normalise(const char *text, size_t len, char ret[RULES_NAME_MAX + 1])
{
    char name[RULES_NAME_MAX + 1];
    size_t label = 0;

    if (len && text[len - 1] == '.')
        len--;
    if (!len || len > RULES_NAME_MAX)
        return false;

    for (size_t i = 0; i < len; i++) {
        name[i] = lower(text[i]);
        if (name[i] == '.') {
            if (i == label)
                return false;
            label = i + 1;
        } else if (!is_name_char(name[i]) || i - label >= LABEL_MAX) {
            return false;
        }
    }
    if (label == len || is_number(name + label, len - label))
        return false;

    name[len] = 0;
    memcpy(ret, name, len + 1);
    return true;
}

/* Cuts off the ports behind the last colon. `text` is NUL-terminated and changed. */
static int take_ports(char *text, struct rule *r, const char *whole, struct pd_err *e)
{
    char *bracket = text[0] == '[' ? strchr(text, ']') : NULL;
    char *colon = strrchr(text, ':');

    if (text[0] == '[') {
        if (!bracket || (bracket[1] && bracket[1] != ':'))
            return pd_fail(e, PD_INVALID, "rule '%.120s': write [NETWORK]:PORT", whole);
        colon = bracket[1] ? bracket + 1 : NULL;
        *bracket = 0;
        memmove(text, text + 1, strlen(text));
        if (!colon)
            return 0;
    } else if (!colon || strchr(text, ':') != colon) {
        return 0; /* no port; or an IPv6 network without brackets */
    }

    char *ports = colon + 1;
    *colon = 0;
    char *dash = strchr(ports, '-');
    if (dash)
        *dash = 0;

    uint64_t first, last;
    if (parse_u64("port", ports, 1, 65535, &first, NULL) < 0 ||
        parse_u64("port", dash ? dash + 1 : ports, first, 65535, &last, NULL) < 0)
        return pd_fail(e, PD_INVALID,
                       "rule '%.120s': a port is from 1 to 65535, several are FIRST-LAST", whole);
    r->first_port = (uint16_t)first;
    r->last_port = (uint16_t)last;
    return 0;
}

int rule_parse(const char *text, struct rule *ret, char name[RULES_NAME_MAX + 1], struct pd_err *e)
{
    char part[RULES_TEXT_MAX], normal[RULES_NAME_MAX + 1];
    struct rule r = {.name = ""};

    if (strlen(text) >= sizeof part)
        return pd_fail(e, PD_INVALID, "rule '%.60s...': longer than %u characters", text,
                       RULES_TEXT_MAX - 1);
    snprintf(part, sizeof part, "%s", text);
    if (take_ports(part, &r, text, e) < 0)
        return -1;

    if (strchr(part, '/') || strchr(part, ':') || cidr_parse(part, &r.net, NULL) == 0) {
        r.kind = RULE_NETWORK;
        if (cidr_parse(part, &r.net, e) < 0)
            return pd_wrap(e, "rule '%.60s'", text);
        name[0] = 0;
        *ret = r;
        return 0;
    }

    bool wild = part[0] == '*' && part[1] == '.';
    const char *bare = wild ? part + 2 : part;
    for (const char *c = bare; *c; c++)
        if ((unsigned char)*c >= 0x80)
            return pd_fail(e, PD_INVALID,
                           "rule '%.120s': write names with other letters as punycode (xn--...)",
                           text);
    if (!name_normalise(bare, strlen(bare), normal))
        return pd_fail(e, PD_INVALID,
                       "rule '%.120s' is not NAME[:PORT], *.NAME[:PORT] or a network such as "
                       "203.0.113.0/24:5432; for all names use mode open",
                       text);

    r.kind = wild ? RULE_SUFFIX : RULE_NAME;
    memcpy(name, normal, sizeof normal);
    r.name = name;
    *ret = r;
    return 0;
}

static void ports_text(const struct rule *r, char *out, size_t size)
{
    if (!r->first_port)
        out[0] = 0;
    else if (r->first_port == r->last_port)
        snprintf(out, size, ":%u", r->first_port);
    else
        snprintf(out, size, ":%u-%u", r->first_port, r->last_port);
}

void rule_text(const struct rule *r, char out[RULES_TEXT_MAX])
{
    char ports[16], address[IP_TEXT];

    ports_text(r, ports, sizeof ports);
    if (r->kind != RULE_NETWORK) {
        snprintf(out, RULES_TEXT_MAX, "%s%s%s", r->kind == RULE_SUFFIX ? "*." : "", r->name, ports);
        return;
    }

    /* A short prefix of ::/0 may cover the mapped ones as well: it is written as what it is. */
    bool v4 = r->net.bits >= 96 && ip_is_v4(r->net.net);
    ip_text(r->net.net, address);
    const char *open = !v4 && ports[0] ? "[" : "", *close = !v4 && ports[0] ? "]" : "";
    snprintf(out, RULES_TEXT_MAX, "%s%s/%u%s%s", open, address,
             (unsigned)(r->net.bits - (v4 ? 96 : 0)), close, ports);
}

bool rule_has_port(const struct rule *r, uint16_t port)
{
    if (r->first_port)
        return port >= r->first_port && port <= r->last_port;
    return r->kind == RULE_NETWORK || port == 80 || port == 443;
}

bool rule_has_name(const struct rule *r, const char *name)
{
    if (r->kind == RULE_NAME)
        return !strcmp(r->name, name);
    if (r->kind != RULE_SUFFIX)
        return false;

    size_t len = strlen(name), tail = strlen(r->name);
    return len > tail + 1 && name[len - tail - 1] == '.' && !strcmp(name + len - tail, r->name);
}

static const struct rule *find_name(const struct layer *l, const char *name, uint16_t port)
{
    for (unsigned i = 0; i < l->allow_count; i++)
        if (rule_has_name(&l->allow[i], name) && rule_has_port(&l->allow[i], port))
            return &l->allow[i];
    return NULL;
}

static const struct rule *find_network(const struct rule *list, unsigned count, struct ip a,
                                       uint16_t port)
{
    for (unsigned i = 0; i < count; i++)
        if (list[i].kind == RULE_NETWORK && cidr_has(&list[i].net, a) &&
            rule_has_port(&list[i], port))
            return &list[i];
    return NULL;
}

/* Does a layer let this address pass, by a rule (`ret`) or because it is open? */
static bool address_passes(const struct layer *l, struct ip a, uint16_t port,
                           const struct rule **ret)
{
    *ret = l->mode == EGRESS_OFF ? NULL : find_network(l->allow, l->allow_count, a, port);
    if (*ret)
        return true;
    return l->mode == EGRESS_OPEN && !find_network(l->deny, l->deny_count, a, port);
}

static bool name_passes(const struct layer *l, const char *name, uint16_t port,
                        const struct rule **ret)
{
    *ret = l->mode == EGRESS_OFF ? NULL : find_name(l, name, port);
    return *ret || l->mode == EGRESS_OPEN;
}

struct verdict egress_judge(const struct egress_policy *p, const char *name, struct ip to,
                            uint16_t port)
{
    struct verdict v = {.how = name && p->layer_count ? JUDGED_BY_NAME : JUDGED_NO};

    for (unsigned i = 0; i < p->layer_count && v.how; i++) {
        const struct rule *r;
        if (!name_passes(&p->layers[i], name, port, &r))
            v = (struct verdict){.how = JUDGED_NO};
        else if (!v.rule)
            v.rule = r;
    }
    if (v.how)
        return v;

    v = (struct verdict){.how = p->layer_count ? JUDGED_BY_ADDRESS : JUDGED_NO};
    for (unsigned i = 0; i < p->layer_count && v.how; i++) {
        const struct rule *r;
        if (!address_passes(&p->layers[i], to, port, &r))
            v = (struct verdict){.how = JUDGED_NO};
        else if (!v.rule)
            v.rule = r;
    }
    return v;
}

bool egress_may_ask(const struct egress_policy *p, const char *name)
{
    for (unsigned i = 0; i < p->layer_count; i++) {
        const struct layer *l = &p->layers[i];
        bool passes = l->mode == EGRESS_OPEN;
        for (unsigned k = 0; k < l->allow_count && !passes && l->mode != EGRESS_OFF; k++)
            passes = rule_has_name(&l->allow[k], name);
        if (!passes)
            return false;
    }
    return p->layer_count > 0;
}

/* A wide network of the operator's is meant for machines in it, not for this one: the machine's own
 * addresses must be named one by one. */
static bool is_lifted(const struct egress_policy *p, struct ip a, bool is_local)
{
    for (unsigned i = 0; i < p->private_count; i++)
        if (cidr_has(&p->privates[i], a) && (!is_local || cidr_is_single(&p->privates[i])))
            return true;
    return false;
}

const char *egress_dial_refused(const struct egress_policy *p, const char *name, struct ip a,
                                uint16_t port, bool is_local)
{
    const char *why = is_local ? "an address of the server's machine" : ip_forbidden(a);
    if (why && !is_lifted(p, a, is_local || !strcmp(why, "loopback")))
        return why;

    /* By name, a layer that is open still has its denied networks; a rule for the name beats
     * them. */
    for (unsigned i = 0; i < p->layer_count && name; i++) {
        const struct layer *l = &p->layers[i];
        const struct rule *r;
        if (!find_name(l, name, port) && !address_passes(l, a, port, &r))
            return "a denied network";
    }
    return NULL;
}

static bool host_has(const struct host_entry *h, const char *name)
{
    bool is_wild = h->name[0] == '*';
    struct rule r = {.kind = is_wild ? RULE_SUFFIX : RULE_NAME, .name = h->name + 2 * is_wild};
    return rule_has_name(&r, name);
}

const struct host_entry *egress_host(const struct egress_policy *p, const char *name,
                                     const struct ip *a)
{
    for (unsigned i = 0; i < p->host_count; i++) {
        const struct host_entry *h = &p->hosts[i];
        if (name ? h->name && host_has(h, name) : !h->name && ip_equal(h->key, *a))
            return h;
    }
    return NULL;
}

struct ip egress_host_address(const struct egress_policy *p, const struct host_entry *h)
{
    unsigned place = (unsigned)(h - p->hosts);
    const uint8_t bytes[4] = {192, 0, 2, (uint8_t)(3 + place)};

    return h->name && place < 250 ? ip_of_v4(bytes) : h->key;
}
