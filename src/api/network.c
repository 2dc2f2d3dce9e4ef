/* The way out of a sandbox at the v1 API: rules in a body become the text that session and gate
 * have (gate/rules.h), and that text is shown as it was asked for. */
#include "api/handlers.h"
#include "api/sandbox.h"

#include "access/vault.h"
#include "base/banned.h"
#include "base/json.h"
#include "config/config.h"
#include "core/egress.h"
#include "core/secrets.h"
#include "gate/rules.h"

#define NETWORK_RULES_MAX   256u
#define NETWORK_SECRETS_MAX 16u
#define NETWORK_HOSTS_MAX   8u /* of one secret */
#define NETWORK_HEADERS_MAX 64u

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

static bool is_variable(const char *s)
{
    static const char valid[] = "_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    return strspn(s, valid) == strlen(s) && !(s[0] >= '0' && s[0] <= '9');
}

/* A secret with its hosts: a rule for each. */
static void read_secret(struct fields *o, struct buf *out)
{
    struct msg_list_writer hosts = MSG_LIST_WRITER_INIT;
    const char *env = "", *name = "";
    uint32_t pos = 0;
    struct pd_err e = {.msg = "a host has no blank in it"};

    fields_str(o, "env", FIELD_REQUIRED, 1, SECRET_WORD_MAX, &env);
    if (fields_str(o, "secret", FIELD_REQUIRED, 1, VAULT_NAME_MAX, &name) &&
        vault_check_name(name, &e) < 0)
        fields_refuse(o, "secret", "%s", e.msg);
    fields_str_list(o, "hosts", FIELD_REQUIRED, 1, NETWORK_HOSTS_MAX, RULES_NAME_MAX + 6, &hosts);

    struct msg_list l = msg_list_of(&hosts);
    for (const char *host; (host = msg_list_next(&l, &pos));) {
        struct secret_rule rule;
        char text[RULES_NAME_MAX + 2 * SECRET_WORD_MAX + 16];
        snprintf(text, sizeof text, "%s %s %s", env, name, host);
        if (strpbrk(host, " \n") || secret_rule_parse(text, &rule, &e) < 0)
            fields_refuse(o, "hosts", "%s", e.msg);
        else
            (void)buf_printf(out, "secret %s\n", text);
    }
    msg_list_writer_done(&hosts);
}

/* A variable has one secret. */
static void read_secrets(struct fields *o, struct buf *out)
{
    struct fields *item;
    const char *taken[NETWORK_SECRETS_MAX];

    for (size_t i = 0; (item = fields_item(o, "secrets", NETWORK_SECRETS_MAX, i)); i++) {
        taken[i] = "";
        if (fields_str(item, "env", FIELD_REQUIRED, 1, SECRET_WORD_MAX, &taken[i]) &&
            !is_variable(taken[i]))
            fields_refuse(item, "env", "'%.63s' is not the name of a variable", taken[i]);
        for (size_t k = 0; k < i; k++)
            if (!strcmp(taken[i], taken[k]))
                fields_refuse(item, "env", "'%.63s' has a secret already", taken[i]);
        read_secret(item, out);
    }
}

int network_put_header(struct call *c, const char *host, const char *name, const char *value,
                       struct buf *out, struct pd_err *e)
{
    struct header_rule r;

    if (header_host_parse(host, &r, e) < 0 || header_check(name, value, e) < 0)
        return -1;
    if (strstr(value, "${e2b.identity"))
        return pd_fail(e, PD_INVALID, "this server gives no workload identities");
    if (!c->api->vault)
        return pd_fail(e, PD_UNSUPPORTED, "this server has no secrets, and so sets no headers");

    buf_printf(out, "header %s", r.host);
    if (r.port)
        buf_printf(out, ":%u", r.port);
    buf_printf(out, " %s ", name);
    if (vault_seal_rule(c->api->vault, c->who.tenant, value, out, e) < 0)
        return -1;
    return buf_putc(out, '\n');
}

int network_open_header(struct call *c, const struct header_rule *r, struct buf *out,
                        struct pd_err *e)
{
    return vault_open_rule(c->api->vault, c->who.tenant, r->sealed, r->sealed_len, out, e);
}

/* May the proxy be where this says? An address is checked now; of a name that is done whenever it
 * is dialled. */
static int check_proxy(struct call *c, const struct egress_proxy *proxy, struct pd_err *e)
{
    auto_buf text = BUF_INIT(POLICY_TEXT_MAX);
    struct egress_policy *p;

    if (proxy->name)
        return 0;
    config_egress_policy(c->config, c->who.tenant, &text);
    if (egress_parse((const char *)text.data, text.len, &p, e) < 0)
        return -1;
    const char *why = egress_host(p, NULL, &proxy->address)
                          ? NULL
                          : egress_dial_refused(p, NULL, proxy->address, proxy->port, false);
    egress_free_policy(p);
    return why ? pd_fail(e, PD_INVALID, "the proxy's address is never dialled: %s", why) : 0;
}

static bool is_credential(const char *s, size_t min)
{
    size_t len = strlen(s);
    for (const char *c = s; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            return false;
    return len >= min && len <= 255;
}

int network_put_proxy(struct call *c, const char *address, const char *user, const char *password,
                      struct buf *out, struct pd_err *e)
{
    char name[RULES_NAME_MAX + 1];
    struct egress_proxy p;
    auto_buf both = BUF_INIT(1024);

    if (proxy_parse(address, &p, name, e) < 0 || check_proxy(c, &p, e) < 0)
        return -1;
    if (password && !user)
        return pd_fail(e, PD_INVALID, "a password goes with a user");
    if ((user && !is_credential(user, 1)) || (password && !is_credential(password, 0)))
        return pd_fail(e, PD_INVALID,
                       "user and password have at most 255 bytes each, and no controls");
    if (user && !c->api->vault)
        return pd_fail(e, PD_UNSUPPORTED, "this server has no secrets, and so no proxies with one");

    buf_printf(out, "proxy %s", address);
    int bad = 0;
    if (user) {
        buf_printf(&both, "%s\n%s", user, password ? password : "");
        buf_putc(out, ' ');
        bad = vault_seal_rule(c->api->vault, c->who.tenant, buf_cstr(&both), out, e);
        explicit_bzero(both.data, both.cap);
    }
    return bad < 0 ? -1 : buf_putc(out, '\n');
}

static void read_headers(struct call *c, struct fields *o, struct buf *out)
{
    struct fields *item;
    struct pd_err e;

    for (size_t i = 0; (item = fields_item(o, "headers", NETWORK_HEADERS_MAX, i)); i++) {
        const char *host = "", *name = "", *value = "";
        if (fields_str(item, "host", FIELD_REQUIRED, 1, RULES_NAME_MAX + 6, &host) &&
            fields_str(item, "name", FIELD_REQUIRED, 1, HEADER_NAME_MAX, &name) &&
            fields_str(item, "value", FIELD_REQUIRED, 0, HEADER_VALUE_MAX, &value) &&
            network_put_header(c, host, name, value, out, &e) < 0)
            fields_refuse(o, "headers", "%s", e.msg);
    }
}

static void read_proxy(struct call *c, struct fields *o, struct buf *out)
{
    const char *address = "", *user = NULL, *password = NULL;
    struct fields *p = fields_object(o, "proxy", FIELD_OPTIONAL);
    struct pd_err e;

    fields_str(p, "username", FIELD_OPTIONAL, 1, 255, &user);
    fields_secret(p, "password", FIELD_OPTIONAL, 0, 255, &password);
    if (fields_str(p, "address", FIELD_REQUIRED, 1, RULES_NAME_MAX + 8, &address) &&
        network_put_proxy(c, address, user, password, out, &e) < 0)
        fields_refuse(o, "proxy", "%s", e.msg);
}

enum egress_mode network_read(struct call *c, struct fields *o, struct buf *out)
{
    static const char *const modes[] = {"off", "list", "open", NULL};
    unsigned mode = EGRESS_LIST;
    auto_buf rules = BUF_INIT(EGRESS_RULES_MAX);

    read_rules(o, "allow", "allow", &rules);
    read_rules(o, "deny", "deny", &rules);
    read_secrets(o, &rules);
    read_headers(c, o, &rules);
    read_proxy(c, o, &rules);
    read_limits(o, &rules);
    if (!fields_enum(o, "mode", FIELD_OPTIONAL, modes, &mode) && !rules.len)
        mode = EGRESS_OFF;

    (void)buf_printf(out, "layer %s\n", modes[mode]);
    buf_put(out, rules.data, rules.len);
    if (rules.overflow || out->overflow)
        fields_refuse(o, "allow", "the rules are longer than %u bytes", EGRESS_RULES_MAX);
    return (enum egress_mode)mode;
}

/* Secrets must be the tenant's, and their hosts must be allowed: to name one does not allow it. */
static int check_secrets(struct call *c, const char *rules, struct pd_err *e)
{
    struct egress_policy *p;
    struct secret_rule r;
    int bad = 0;

    snprintf(c->field, sizeof c->field, "network.secrets");
    if (secrets_check(c->api->vault, c->who.tenant, rules, e) < 0) {
        if (e->code == PD_NOT_FOUND)
            e->code = PD_INVALID; /* of the request, not of what it is for */
        return pd_wrap(e, "network.secrets");
    }
    if (egress_parse(rules, strlen(rules), &p, e) < 0)
        return -1;
    while (bad == 0 && secret_rule_next(&rules, &r))
        if (egress_judge(p, r.host, (struct ip){0}, r.port).how != JUDGED_BY_NAME)
            bad = pd_fail(e, PD_INVALID,
                          "network.secrets: `allow` does not have %.150s:%u, which a secret is for",
                          r.host, r.port);
    egress_free_policy(p);
    if (bad == 0)
        c->field[0] = 0;
    return bad;
}

int call_check_egress(struct call *c, enum egress_mode mode, const char *rules, struct pd_err *e)
{
    if (mode == EGRESS_OFF)
        return 0;
    if (config_egress(c->config, c->who.tenant) != EGRESS_OFF)
        return rules && strstr(rules, "\nsecret ") ? check_secrets(c, rules, e) : 0;
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

/* Rules of one variable follow each other. */
static void put_secrets(struct json *j, const char *text)
{
    struct secret_rule r;
    char env[SECRET_WORD_MAX + 1] = "";

    json_key(j, "secrets");
    json_open(j, '[');
    while (secret_rule_next(&text, &r)) {
        if (strcmp(env, r.env) != 0) {
            if (env[0]) {
                json_close(j, ']');
                json_close(j, '}');
            }
            json_open(j, '{');
            json_member_cstr(j, "env", r.env);
            json_member_cstr(j, "secret", r.name);
            json_key(j, "hosts");
            json_open(j, '[');
            memcpy(env, r.env, sizeof env);
        }
        auto_buf host = BUF_INIT(RULES_NAME_MAX + 8);
        buf_puts(&host, r.host);
        if (r.port != SECRET_PORT)
            buf_printf(&host, ":%u", r.port);
        json_str(j, (const char *)host.data, host.len);
    }
    if (env[0]) {
        json_close(j, ']');
        json_close(j, '}');
    }
    json_close(j, ']');
}

/* Without their values. */
static void put_headers(struct json *j, const char *text)
{
    struct header_rule r;

    json_key(j, "headers");
    json_open(j, '[');
    while (header_rule_next(&text, &r)) {
        char host[RULES_NAME_MAX + 8];
        snprintf(host, sizeof host, r.port ? "%s:%u" : "%s", r.host, r.port);
        json_open(j, '{');
        json_member_cstr(j, "host", host);
        json_member_cstr(j, "name", r.name);
        json_close(j, '}');
    }
    json_close(j, ']');
}

/* The line of a proxy in rules, behind its word; or NULL. */
static const char *find_proxy(const char *rules)
{
    const char *line = strstr(rules, "\nproxy ");
    return line ? line + 7 : NULL;
}

bool network_proxy_json(struct call *c, struct json *j, const char *rules)
{
    const char *at = find_proxy(rules);
    auto_buf both = BUF_INIT(1024);
    if (!at)
        return false;

    size_t len = strcspn(at, " \n"), rest = strcspn(at + len, "\n");
    json_key(j, "address");
    json_str(j, at, len);
    if (rest > 1 && c->api->vault &&
        vault_open_rule(c->api->vault, c->who.tenant, at + len + 1, rest - 1, &both, NULL) == 0) {
        json_key(j, "username");
        const char *end = memchr(both.data, '\n', both.len);
        json_str(j, (const char *)both.data,
                 end ? (size_t)(end - (const char *)both.data) : both.len);
        explicit_bzero(both.data, both.cap);
    }
    return true;
}

/* Where it is, and no more. */
static void put_proxy(struct json *j, const char *rules)
{
    const char *at = find_proxy(rules);

    json_key(j, "proxy");
    if (!at) {
        json_none(j);
        return;
    }
    json_open(j, '{');
    json_key(j, "address");
    json_str(j, at, strcspn(at, " \n"));
    json_close(j, '}');
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
        put_secrets(j, text);
        put_headers(j, text);
        put_proxy(j, text);
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

    enum egress_mode mode = network_read(c, &f, &rules);
    if (call_finish(c, &f, e) < 0 || call_check_egress(c, mode, buf_cstr(&rules), e) < 0 ||
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
