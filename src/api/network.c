/* The way out of a sandbox at the v1 API: rules in a body become the text that session and gate
 * have (gate/rules.h), and that text is shown as it was asked for. */
#include "api/handlers.h"
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "core/egress.h"
#include "gate/rules.h"

#define NETWORK_RULES_MAX 256u

/* ---- reading ---- */

/* Rules of one kind, each checked by itself so that the error names it. */
static void read_rules(struct fields *o, const char *name, const char *word, struct buf *out)
{
    struct msg_list_writer given = MSG_LIST_WRITER_INIT;
    uint32_t pos = 0;
    char normal[RULES_NAME_MAX + 1];
    struct rule rule;
    struct pd_err e;

    fields_str_list(o, name, FIELD_OPTIONAL, 0, NETWORK_RULES_MAX, RULES_TEXT_MAX - 1, &given);
    struct msg_list l = msg_list_of(&given);
    for (const char *text; (text = msg_list_next(&l, &pos));) {
        if (rule_parse(text, &rule, normal, &e) < 0)
            fields_refuse(o, name, "%s", e.msg);
        else if (word[0] == 'd' && rule.kind != RULE_NETWORK)
            fields_refuse(o, name,
                          "'%.100s': only networks can be denied, names are what allow is "
                          "for",
                          text);
        else
            (void)buf_printf(out, "%s %s\n", word, text);
    }
    msg_list_writer_done(&given);
}

static void read_limits(struct fields *o, struct buf *out)
{
    static const struct {
        const char *name;
        uint64_t max;
    } limits[] = {
        {"connections", 65536}, {"rate", UINT64_C(1) << 40}, {"bytes", UINT64_C(1) << 53}};
    struct fields *l = fields_object(o, "limits", FIELD_OPTIONAL);
    uint64_t value;

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (fields_u64(l, limits[i].name, FIELD_OPTIONAL, 1, limits[i].max, &value))
            (void)buf_printf(out, "limit %s %ju\n", limits[i].name, (uintmax_t)value);
}

enum egress_mode network_read(struct fields *o, struct buf *out)
{
    static const char *const modes[] = {"off", "list", "open", NULL};
    unsigned mode = EGRESS_LIST;
    auto_buf rules = BUF_INIT(EGRESS_RULES_MAX);

    read_rules(o, "allow", "allow", &rules);
    read_rules(o, "deny", "deny", &rules);
    read_limits(o, &rules);
    if (!fields_enum(o, "mode", FIELD_OPTIONAL, modes, &mode) && !rules.len)
        mode = EGRESS_OFF;

    (void)buf_printf(out, "layer %s\n", modes[mode]);
    buf_put(out, rules.data, rules.len);
    if (rules.overflow || out->overflow)
        fields_refuse(o, "allow", "the rules are longer than %u bytes", EGRESS_RULES_MAX);
    return (enum egress_mode)mode;
}

int call_check_egress(struct call *c, enum egress_mode mode, struct pd_err *e)
{
    if (mode == EGRESS_OFF || config_egress(c->config, c->who.tenant) != EGRESS_OFF)
        return 0;
    snprintf(c->field, sizeof c->field, "network");
    return pd_fail(e, PD_DENIED,
                   "network: this server gives sandboxes of tenant '%.63s' no way to the network: "
                   "its operator can, by the setting egress",
                   c->who.tenant);
}

/* ---- showing ---- */

/* The rules of one kind, as they were given. */
static void put_rules(struct json *j, const char *text, const char *word)
{
    size_t len = strlen(word);

    json_key(j, word);
    json_open(j, '[');
    for (const char *line = text; *line;) {
        size_t size = strcspn(line, "\n");
        if (size > len + 1 && !strncmp(line, word, len) && line[len] == ' ')
            json_str(j, line + len + 1, size - len - 1);
        line += size + (line[size] == '\n');
    }
    json_close(j, ']');
}

static void put_limits(struct json *j, const struct egress_limits *l)
{
    json_key(j, "limits");
    json_open(j, '{');
    json_member_uint(j, "connections", l->connections);
    json_key(j, "rate");
    l->rate ? json_uint(j, l->rate) : json_none(j);
    json_key(j, "bytes");
    l->bytes ? json_uint(j, l->bytes) : json_none(j);
    json_close(j, '}');
}

void network_json(struct json *j, struct session *s)
{
    char *text = session_network(s);
    struct egress_policy *p;

    json_open(j, '{');
    if (text && egress_parse(text, strlen(text), &p, NULL) == 0) {
        json_member_cstr(j, "mode", egress_mode_name(p->layers[0].mode));
        put_rules(j, text, "allow");
        put_rules(j, text, "deny");
        put_limits(j, &p->limits);
        egress_free_policy(p);
    } else {
        json_member_cstr(j, "mode", egress_mode_name(EGRESS_OFF));
    }
    json_close(j, '}');
    free(text);
}

static int answer_network(struct call *c)
{
    auto_buf out = BUF_INIT(128u << 10);
    struct json j = JSON_INIT(&out);
    network_json(&j, c->session);
    return call_json(c, 200, &out);
}

int network_get(struct call *c, struct pd_err *e)
{
    return call_no_query(c, e) < 0 ? -1 : answer_network(c);
}

int network_put(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), rules = BUF_INIT(EGRESS_RULES_MAX);
    auto_fields f = {0};
    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0)
        return -1;

    enum egress_mode mode = network_read(&f, &rules);
    if (call_finish(c, &f, e) < 0 || call_check_egress(c, mode, e) < 0 ||
        session_set_network(c->session, buf_cstr(&rules), e) < 0)
        return -1;
    return answer_network(c);
}

void denied_json(struct json *j, struct session *s, uint64_t mark, struct buf *text)
{
    struct refusal list[REFUSALS_KEPT];
    int count = session_refusals(s, mark, list);
    if (count < 0)
        return;

    json_key(j, "network");
    json_open(j, '{');
    json_key(j, "denied");
    json_open(j, '[');
    for (int i = 0; i < count; i++) {
        json_open(j, '{');
        json_member_cstr(j, "host", list[i].host);
        json_member_uint(j, "port", list[i].port);
        json_member_cstr(j, "why", list[i].why);
        json_member_uint(j, "times", list[i].times);
        json_close(j, '}');
        if (text)
            buf_printf(text, "\n[network: refused %s:%u: %s]", list[i].host, list[i].port,
                       list[i].why);
    }
    json_close(j, ']');
    json_close(j, '}');
}
