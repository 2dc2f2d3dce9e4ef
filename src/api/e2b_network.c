/* The network settings of E2B's door: their members become rules of ours (gate/rules.h).
 *
 * Where the operator lets sandboxes out (the setting egress), one of this door has a way out unless
 * it says otherwise, as E2B's have, within what the operator allows. Elsewhere there is none, and
 * who asks for it is refused by name; what asks for less than nothing (denyOut) is true already. */
#include "api/e2b.h"
#include "api/e2b_handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "core/egress.h"
#include "gate/rules.h"

#include <jansson.h>

#define HOSTS_MAX   10u /* with rules */
#define HEADERS_MAX 32u /* of one host */

/* A host name or an address, maybe with a port; ${PORT} is replaced. */
static bool is_mask(const char *text)
{
    static const char valid[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                ".-_:[]";

    while (*text) {
        if (!strncmp(text, "${PORT}", 7))
            text += 7;
        else if (strchr(valid, *text))
            text++;
        else
            return false;
    }
    return true;
}

void e2b_refuse_unless_empty(struct fields *f, const char *name, const char *why)
{
    auto_buf text = BUF_INIT(API_BODY_MAX);
    if (fields_json(f, name, FIELD_OPTIONAL, API_BODY_MAX - 1, &text) &&
        strcmp(buf_cstr(&text), "[]") != 0 && strcmp(buf_cstr(&text), "{}") != 0)
        fields_refuse(f, name, "%s", why);
}

#define NO_NETWORK                                                                                 \
    "sandboxes of this server have no way to the internet, so nothing of it can be let through"

/* One of the lists, for the rules and for the note. */
static void read_list(struct fields *f, const char *name, struct msg_list_writer *ret,
                      struct buf *note)
{
    buf_clear(note);
    if (fields_str_list(f, name, FIELD_OPTIONAL, 0, 1000, 255, ret))
        fields_json(f, name, FIELD_OPTIONAL, NOTE_MAX / 3, note);
}

/* Appends the rules of a list that are rules; the others are refused. Is there a name among them?
 */
static bool put_rules(struct fields *f, const char *name, const char *word,
                      const struct msg_list *list, struct buf *out)
{
    char normal[RULES_NAME_MAX + 1];
    struct rule rule;
    struct pd_err e;
    uint32_t pos = 0;
    bool has_name = false;

    for (const char *text; (text = msg_list_next(list, &pos));) {
        if (rule_parse(text, &rule, normal, &e) < 0)
            fields_refuse(f, name, "%s", e.msg);
        else
            (void)buf_printf(out, "%s %s\n", word, text);
        has_name |= rule.kind != RULE_NETWORK;
    }
    return has_name;
}

static bool denies_all(const struct msg_list *list)
{
    uint32_t pos = 0;
    for (const char *text; (text = msg_list_next(list, &pos));)
        if (!strcmp(text, "0.0.0.0/0"))
            return true;
    return false;
}

/* E2B's lists as rules of ours. Theirs are `open` unless all is denied; allowOut beats denyOut, and
 * names are of use only where all else is denied. */
static void put_egress(struct fields *f, const struct msg_list *allow, const struct msg_list *deny,
                       bool internet, struct buf *out)
{
    bool all = !internet || denies_all(deny);

    (void)buf_printf(out, "layer %s\n", all ? "list" : "open");
    if (put_rules(f, "allowOut", "allow", allow, out) && !all)
        fields_refuse(f, "allowOut",
                      "When specifying allowed domains in allow out, you must include "
                      "'ALL_TRAFFIC' in deny out to block all other traffic.");
    if (!all && put_rules(f, "denyOut", "deny", deny, out))
        fields_refuse(f, "denyOut", "names cannot be denied, only networks");
    if (out->overflow)
        fields_refuse(f, "allowOut", "the rules are longer than %u bytes", EGRESS_RULES_MAX);
}

/* The headers of one rule: {"transform": {"headers": {NAME: VALUE}}}, or nothing. */
static int put_transform(struct call *c, const char *host, json_t *rule, struct buf *out,
                         struct pd_err *e)
{
    json_t *transform = NULL, *headers = NULL, *value;
    const char *name;

    if (json_unpack(rule, "{s?:o !}", "transform", &transform) < 0 ||
        (transform && !json_is_null(transform) &&
         json_unpack(transform, "{s?:o !}", "headers", &headers) < 0) ||
        (headers && !json_is_object(headers)))
        return pd_fail(e, PD_INVALID,
                       "a rule of '%.100s' is not {\"transform\": {\"headers\": {NAME: VALUE}}}",
                       host);
    if (json_object_size(headers) > HEADERS_MAX)
        return pd_fail(e, PD_INVALID, "'%.100s' has more than %u headers", host, HEADERS_MAX);

    json_object_foreach(headers, name, value)
    {
        if (!json_is_string(value))
            return pd_fail(e, PD_INVALID, "header '%.80s' of '%.100s' is no text", name, host);
        if (network_put_header(c, host, name, json_string_value(value), out, e) < 0)
            return -1;
    }
    return 0;
}

static int put_transforms(struct call *c, json_t *rules, struct buf *out, struct pd_err *e)
{
    const char *host;
    json_t *list;

    if (!json_is_object(rules))
        return pd_fail(e, PD_INVALID, "is not an object of hosts");
    if (json_object_size(rules) > HOSTS_MAX)
        return pd_fail(e, PD_INVALID, "more than %u hosts", HOSTS_MAX);
    json_object_foreach(rules, host, list)
    {
        if (!json_is_array(list) || json_array_size(list) > 1)
            return pd_fail(e, PD_INVALID, "'%.100s' is not a list of at most one rule", host);
        if (json_array_size(list) && put_transform(c, host, json_array_get(list, 0), out, e) < 0)
            return -1;
    }
    return 0;
}

/* Header rules for hosts. They allow nothing by themselves. */
static void read_transforms(struct call *c, struct fields *f, struct buf *out)
{
    auto_buf text = BUF_INIT(API_BODY_MAX);
    struct pd_err e;

    if (!fields_json(f, "rules", FIELD_OPTIONAL, API_BODY_MAX - 1, &text))
        return;
    json_auto_t *rules = json_loadb((const char *)text.data, text.len, 0, NULL);
    if (put_transforms(c, rules, out, &e) < 0)
        fields_refuse(f, "rules", "%s", e.msg);
    explicit_bzero(text.data, text.cap);
}

static void read_proxy(struct call *c, struct fields *f, struct buf *out)
{
    const char *address = "", *user = NULL, *password = NULL;
    struct fields *p = fields_object(f, "egressProxy", FIELD_OPTIONAL);
    struct pd_err e;

    fields_str(p, "username", FIELD_OPTIONAL, 0, 255, &user);
    fields_secret(p, "password", FIELD_OPTIONAL, 0, 255, &password);
    if (user && !user[0])
        user = NULL;
    if (fields_str(p, "address", FIELD_REQUIRED, 1, RULES_NAME_MAX + 8, &address) &&
        network_put_proxy(c, address, user, password, out, &e) < 0)
        fields_refuse(f, "egressProxy", "%s", e.msg);
}

/* The members that creation and PUT network share. `rules`: NULL where there is no way out. */
static void read_egress(struct call *c, struct fields *f, struct e2b_note *n, bool internet,
                        struct buf *rules)
{
    struct msg_list_writer allow = MSG_LIST_WRITER_INIT, deny = MSG_LIST_WRITER_INIT;

    if (!rules) {
        e2b_refuse_unless_empty(f, "allowOut", NO_NETWORK);
        e2b_refuse_unless_empty(f, "rules", NO_NETWORK);
        if (fields_has(f, "egressProxy"))
            fields_refuse(f, "egressProxy", NO_NETWORK);
    }

    read_list(f, "allowOut", &allow, &n->allow_out);
    read_list(f, "denyOut", &deny, &n->deny_out);
    struct msg_list allowed = msg_list_of(&allow), denied = msg_list_of(&deny);
    if (rules)
        put_egress(f, &allowed, &denied, internet, rules);
    if (rules) {
        read_transforms(c, f, rules);
        read_proxy(c, f, rules);
        if (rules->overflow)
            fields_refuse(f, "rules", "the rules are longer than %u bytes", EGRESS_RULES_MAX);
    }
    msg_list_writer_done(&allow);
    msg_list_writer_done(&deny);
}

void e2b_read_network(struct call *c, struct fields *f, struct e2b_note *n, bool internet,
                      struct buf *rules)
{
    const char *text;
    bool is_public = true;
    struct fields *o = fields_object(f, "network", FIELD_OPTIONAL);

    read_egress(c, o, n, internet, rules);
    e2b_refuse_unless_empty(o, "httpsPorts", "TLS is not taken off inside of sandboxes here");
    fields_bool(o, "allowPublicTraffic", FIELD_OPTIONAL, &is_public);
    n->private_ports = !is_public;

    if (!fields_str(o, "maskRequestHost", FIELD_OPTIONAL, 0, sizeof n->mask_host - 1, &text))
        return;
    if (is_mask(text))
        snprintf(n->mask_host, sizeof n->mask_host, "%s", text);
    else
        fields_refuse(o, "maskRequestHost",
                      "is not a host name, maybe with a port; ${PORT} is replaced");
}

int e2b_network(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), text = BUF_INIT(NOTE_MAX);
    auto_buf rules = BUF_INIT(EGRESS_RULES_MAX);
    auto_fields f = {0};
    auto_note n = {0};
    struct session_info i;
    bool internet = true;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    session_get(c->session, &i);
    const struct provider *p = provider_table_find(c->api->providers, i.provider);
    bool has_way_out =
        i.spec.network == NETWORK_GATE || (config_egress(c->config, c->who.tenant) != EGRESS_OFF &&
                                           p && provider_has(p, PROVIDER_EGRESS));
    e2b_note_read(c->session, &n);
    fields_bool(&f, "allow_internet_access", FIELD_OPTIONAL, &internet);
    read_egress(c, &f, &n, internet, has_way_out ? &rules : NULL);
    if (call_finish(c, &f, e) < 0)
        return -1;

    if (!n.is_ours)
        return pd_fail(e, PD_INVALID, "this sandbox was not made at this door");

    if (e2b_note_write(&n, &text) < 0 || !buf_cstr(&text))
        return pd_fail(e, PD_TOO_LARGE, "the network settings are too long");
    if (has_way_out && session_set_network(c->session, buf_cstr(&rules), e) < 0)
        return -1;
    return session_set_note(c->session, (const char *)text.data, e) < 0 ? -1 : call_empty(c);
}

/* ---- showing ---- */

/* {"HOST": [{"transform": {"headers": {NAME: VALUE}}}]}. Rules of one host follow each other. */
static void put_shown_rules(struct call *c, struct json *j, const char *rules)
{
    struct header_rule r;
    char host[RULES_NAME_MAX + 8] = "";

    while (header_rule_next(&rules, &r)) {
        char now[RULES_NAME_MAX + 8];
        auto_buf value = BUF_INIT(HEADER_VALUE_MAX + 1);
        snprintf(now, sizeof now, r.port ? "%s:%u" : "%s", r.host, r.port);
        if (strcmp(now, host) != 0) {
            if (host[0])
                buf_puts(j->out, "}}}]");
            j->need_comma = host[0] != 0;
            json_key(j, now);
            buf_puts(j->out, "[{\"transform\":{\"headers\":{");
            j->need_comma = 0;
            memcpy(host, now, sizeof host);
        }
        if (network_open_header(c, &r, &value, NULL) == 0) {
            json_key(j, r.name);
            json_str(j, (const char *)value.data, value.len);
        }
    }
    if (host[0])
        buf_puts(j->out, "}}}]");
}

void e2b_put_egress(struct call *c, struct json *j, const char *rules)
{
    const char *first = rules;
    struct header_rule r;

    if (header_rule_next(&first, &r)) {
        json_key(j, "rules");
        json_open(j, '{');
        put_shown_rules(c, j, rules);
        json_close(j, '}');
    }
    if (strstr(rules, "\nproxy ")) {
        json_key(j, "egressProxy");
        json_open(j, '{');
        (void)network_proxy_json(c, j, rules);
        json_close(j, '}');
    }
}
