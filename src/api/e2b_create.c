/* Sandboxes that are made at the E2B door: what a request may ask for, and what is refused.
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

#define MS_PER_S     UINT64_C(1000)
#define NEVER_IDLE   (UINT64_C(365) * 86400 * MS_PER_S) /* only `timeout` counts here */
#define DEFAULT_V1   (15 * MS_PER_S)
#define DEFAULT_V2   (300 * MS_PER_S)
#define METADATA_KEY 64
#define FORKS_MAX    100

void e2b_read_timeout(struct call *c, struct fields *f, enum field_need need, uint64_t min,
                      uint64_t *ret_ms)
{
    static const char name[] = "timeout";
    const struct ceilings ceilings = config_ceilings(c->config, c->who.tenant);
    uint64_t max = ceilings.life_ms / MS_PER_S;
    int64_t n;

    if (*ret_ms > ceilings.life_ms)
        *ret_ms = ceilings.life_ms;

    if (!fields_i64(f, name, need, INT64_MIN, INT64_MAX, &n))
        return;

    if (n < (int64_t)min)
        fields_refuse(f, name, min ? "Timeout must be greater than 0" : "must not be below 0");
    else if ((uint64_t)n > max)
        fields_refuse(f, name, "Timeout cannot be greater than %llu seconds (max_life_s)",
                      (unsigned long long)max);
    else
        *ret_ms = (uint64_t)n * MS_PER_S;
}

/* ---- network settings ---- */

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

/* Lists and objects with nothing in them ask for nothing. */
static void refuse_unless_empty(struct fields *f, const char *name, const char *why)
{
    auto_buf text = BUF_INIT(API_BODY_MAX);
    if (fields_json(f, name, FIELD_OPTIONAL, API_BODY_MAX - 1, &text) &&
        strcmp(buf_cstr(&text), "[]") != 0 && strcmp(buf_cstr(&text), "{}") != 0)
        fields_refuse(f, name, "%s", why);
}

#define NO_NETWORK                                                                                 \
    "sandboxes of this server have no way to the internet, so nothing of it can be let through"

#define NO_PROXY                                                                                   \
    "requests are passed on as they are: this server has no proxies and changes no headers"

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

/* The members that creation and PUT network share. `rules`: NULL where there is no way out. */
static void read_egress(struct fields *f, struct e2b_note *n, bool internet, struct buf *rules)
{
    struct msg_list_writer allow = MSG_LIST_WRITER_INIT, deny = MSG_LIST_WRITER_INIT;

    if (!rules)
        refuse_unless_empty(f, "allowOut", NO_NETWORK);
    refuse_unless_empty(f, "rules", rules ? NO_PROXY : NO_NETWORK);
    if (fields_has(f, "egressProxy"))
        fields_refuse(f, "egressProxy", rules ? NO_PROXY : NO_NETWORK);

    read_list(f, "allowOut", &allow, &n->allow_out);
    read_list(f, "denyOut", &deny, &n->deny_out);
    struct msg_list allowed = msg_list_of(&allow), denied = msg_list_of(&deny);
    if (rules)
        put_egress(f, &allowed, &denied, internet, rules);
    msg_list_writer_done(&allow);
    msg_list_writer_done(&deny);
}

static void read_network(struct fields *f, struct e2b_note *n, bool internet, struct buf *rules)
{
    const char *text;
    bool is_public = true;
    struct fields *o = fields_object(f, "network", FIELD_OPTIONAL);

    read_egress(o, n, internet, rules);
    refuse_unless_empty(o, "httpsPorts", "TLS is not taken off inside of sandboxes here");
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
    bool has_way_out = i.spec.network == NETWORK_GATE;
    e2b_note_read(c->session, &n);
    fields_bool(&f, "allow_internet_access", FIELD_OPTIONAL, &internet);
    read_egress(&f, &n, internet, has_way_out ? &rules : NULL);
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

/* ---- making one ---- */

struct making {
    struct session_request request;
    struct e2b_template template;
    struct e2b_note note;
    struct buf note_text, metadata, network;
    struct msg_list_writer env;
    char *policy; /* of what is forked; or NULL */
    char provider[PROVIDER_NAME_MAX + 1];
};

static void making_init(struct call *c, struct making *m)
{
    *m = (struct making){.note_text = BUF_INIT(NOTE_MAX),
                         .metadata = BUF_INIT(METADATA_MAX),
                         .env = MSG_LIST_WRITER_INIT,
                         .network = BUF_INIT(EGRESS_RULES_MAX),
                         .note.allow_out = BUF_INIT(NOTE_MAX),
                         .note.deny_out = BUF_INIT(NOTE_MAX)};

    request_defaults(c, &m->request);
    m->request.idle_timeout_ms = NEVER_IDLE;
}

static void making_done(struct making *m)
{
    e2b_note_done(&m->note);
    buf_done(&m->note_text);
    buf_done(&m->metadata);
    buf_done(&m->network);
    msg_list_writer_done(&m->env);
    free(m->policy);
}
#define auto_making __attribute__((cleanup(making_done))) struct making

/* The last step: texts that the request points to. */
static int making_finish(struct making *m, struct pd_err *e)
{
    struct session_request *r = &m->request;
    if (e2b_note_write(&m->note, &m->note_text) < 0 || !(r->note = buf_cstr(&m->note_text)))
        return pd_fail(e, PD_TOO_LARGE, "the network settings are too long");

    if (m->policy)
        r->policy = m->policy;
    else if (r->spec.profile == PROFILE_RESTRICTED)
        r->policy = "restricted";

    return spec_check(&r->spec, e);
}

static void read_lifecycle(struct fields *f, struct making *m)
{
    bool pause, memory = true;

    if (fields_bool(f, "autoPause", FIELD_OPTIONAL, &pause))
        m->request.pause_at_end = pause ? PAUSE_ALL : 0;
    fields_bool(f, "autoPauseMemory", FIELD_OPTIONAL, &memory);

    struct fields *o = fields_object(f, "autoResume", FIELD_OPTIONAL);
    fields_bool(o, "enabled", FIELD_REQUIRED, &m->note.auto_resume);

    if (memory || !m->request.pause_at_end)
        return;
    if (m->note.auto_resume)
        fields_refuse(f, "autoResume", "traffic does not wake what is paused without its memory");
    m->request.pause_at_end = PAUSE_FILES;
}

static void read_refused(struct fields *f)
{
    /* The client itself starts the gateway with it, by a command; what came of that it knows. */
    if (fields_has(f, "mcp") && fields_kind(f, "mcp") != FIELD_OBJECT)
        fields_refuse(f, "mcp", "is not an object");

    refuse_unless_empty(f, "iam", "this server gives no workload identities");
    refuse_unless_empty(f, "volumeMounts", "this server has no volumes");
}

/* E2B's clients have no field for a provider or a mode: both are words of the metadata. */
static int read_provider(struct call *c, struct making *m, struct pd_err *e)
{
    json_auto_t *metadata = m->request.metadata ? json_loads(m->request.metadata, 0, NULL) : NULL;
    const char *provider = json_string_value(json_object_get(metadata, "provider"));
    const char *mode = json_string_value(json_object_get(metadata, "mode"));

    if (provider) {
        snprintf(m->provider, sizeof m->provider, "%s", provider);
        m->request.provider = m->provider;
    }
    if (mode && !(m->request.mode = run_mode_of(mode))) {
        snprintf(c->field, sizeof c->field, "metadata.mode");
        return pd_fail(e, PD_INVALID, "metadata.mode '%.40s': valid are " RUN_MODE_LIST, mode);
    }
    if (call_check_provider(c, &m->request, e) == 0)
        return 0;
    snprintf(c->field, sizeof c->field, "metadata.%s", m->request.mode ? "mode" : "provider");
    return -1;
}

/* Sandboxes of this door have a way out wherever there can be one. A request that names another
 * provider has what that one has. */
static bool may_go_out(const struct call *c, const struct making *m)
{
    json_auto_t *metadata = m->request.metadata ? json_loads(m->request.metadata, 0, NULL) : NULL;
    const char *name = json_string_value(json_object_get(metadata, "provider"));
    const char *mode = json_string_value(json_object_get(metadata, "mode"));
    const struct provider *p = provider_table_choose(c->api->providers, name, NULL);

    return config_egress(c->config, c->who.tenant) != EGRESS_OFF &&
           provider_has(p, PROVIDER_EGRESS) && !(mode && !strcmp(mode, "local"));
}

static int read_making(struct call *c, struct fields *f, struct making *m, int v2, struct pd_err *e)
{
    struct session_request *r = &m->request;
    const char *template = NULL;

    r->max_life_ms = v2 ? DEFAULT_V2 : DEFAULT_V1;
    r->cwd = E2B_HOME;
    m->note.secure = v2;

    fields_str(f, "templateID", FIELD_REQUIRED, 1, 255, &template);
    e2b_read_timeout(c, f, FIELD_OPTIONAL, 1, &r->max_life_ms);
    if (fields_strings(f, "metadata", FIELD_OPTIONAL, METADATA_KEY, METADATA_MAX - 1, &m->metadata))
        r->metadata = buf_cstr(&m->metadata);
    fields_env(f, "envVars", FIELD_OPTIONAL, &m->env, NULL);
    r->env = msg_list_of(&m->env);

    read_lifecycle(f, m);
    /* Clients say true by default, and mean that they do not mind. */
    bool internet = true;
    fields_bool(f, "allow_internet_access", FIELD_OPTIONAL, &internet);
    read_network(f, &m->note, internet, may_go_out(c, m) ? &m->network : NULL);
    read_refused(f);

    if (v2)
        m->note.secure = true;
    else
        fields_bool(f, "secure", FIELD_OPTIONAL, &m->note.secure);

    if (call_finish(c, f, e) < 0 || e2b_template_read(c, template, &m->template, e) < 0)
        return -1;

    if (m->network.len) {
        r->spec.network = NETWORK_GATE;
        r->network = buf_cstr(&m->network);
    }
    r->template_name = m->template.name;
    r->spec.profile = m->template.profile;
    r->snapshot = m->template.snapshot[0] ? m->template.snapshot : NULL;
    return read_provider(c, m, e) < 0 ? -1 : making_finish(m, e);
}

static int create(struct call *c, int v2, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(8192);
    auto_fields f = {0};
    auto_making m;
    char key[API_KEY_MAX + 1];
    struct queue_place place = {0};
    struct session *s = NULL;
    bool known = false;

    making_init(c, &m);
    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, 0, e) < 0 ||
        read_making(c, &f, &m, v2, e) < 0 ||
        call_key(c, &body, key, &m.request.key, &m.request.key_hash, e) < 0 ||
        call_may_create(c, e) < 0)
        return -1;

    int r = sessions_create(c->api->sessions, &m.request, &s, &known, &place, e);
    call_count_create(c, r, s, &place);
    if (r < 0)
        return -1;

    struct json j = JSON_INIT(&out);
    e2b_sandbox_json(c, &j, s);
    session_unref(s);
    return call_json(c, 201, &out);
}

int e2b_create(struct call *c, struct pd_err *e)
{
    return create(c, 0, e);
}

int e2b_create_v2(struct call *c, struct pd_err *e)
{
    return create(c, 1, e);
}

/* ---- forks ---- */

/* A fork is as what it was made from, except for its time. */
static int copy_making(struct call *c, struct making *m, struct pd_err *e)
{
    struct session_info i;

    session_get(c->session, &i);

    e2b_note_done(&m->note);
    e2b_note_read(c->session, &m->note);

    char *metadata = session_metadata(c->session);
    m->policy = session_policy(c->session);
    if (!m->policy || !metadata || buf_puts(&m->metadata, metadata) < 0) {
        free(metadata);
        return pd_fail(e, PD_CAPACITY, "no memory for the fork");
    }
    free(metadata);

    m->request.metadata = buf_cstr(&m->metadata);
    m->request.pause_at_end = i.pause_at_end;
    m->request.spec.profile = i.spec.profile;
    m->request.spec.limits = i.spec.limits;

    snprintf(m->template.given, sizeof m->template.given, "%s", i.template_name);
    m->request.template_name = m->template.given;

    /* The original may have been made under higher ceilings; it goes on, and its fork is new. */
    if (call_check_ceilings(c, &m->request, e) < 0)
        return -1;
    return making_finish(m, e);
}

static int fork_one(struct call *c, struct making *m, struct json *j, struct pd_err *e)
{
    struct session *s = NULL;
    struct queue_place place = {0};

    if (call_may_create(c, e) < 0)
        return -1;

    int r = session_fork(c->session, &m->request, &s, e);
    call_count_create(c, r, s, &place);
    /* The audit log is to tell of the one that was forked. */
    snprintf(c->sandbox, sizeof c->sandbox, "%.*s", SESSION_ID_LEN, c->var[0]);
    if (r < 0)
        return -1;

    json_open(j, '{');
    json_key(j, "sandbox");
    e2b_sandbox_json(c, j, s);
    json_close(j, '}');
    session_unref(s);
    return 0;
}

int e2b_fork(struct call *c, struct pd_err *e)
{
    auto_buf body = BUF_INIT(API_BODY_MAX), out = BUF_INIT(1u << 20);
    auto_fields f = {0};
    auto_making m;
    uint64_t count = 1;
    struct json j = JSON_INIT(&out);

    making_init(c, &m);
    m.request.max_life_ms = DEFAULT_V1;

    if (call_no_query(c, e) < 0 || call_body(c, &body, &f, FIELDS_MAY_BE_EMPTY, e) < 0)
        return -1;

    e2b_read_timeout(c, &f, FIELD_OPTIONAL, 1, &m.request.max_life_ms);
    fields_u64(&f, "count", FIELD_OPTIONAL, 1, FORKS_MAX, &count);
    if (call_finish(c, &f, e) < 0 || copy_making(c, &m, e) < 0)
        return -1;

    json_open(&j, '[');
    for (uint64_t i = 0; i < count; i++) {
        if (fork_one(c, &m, &j, e) == 0)
            continue;
        /* The first one tells whether this can be done at all. */
        if (i == 0)
            return -1;
        json_open(&j, '{');
        json_key(&j, "error");
        e2b_error_json(c, &j, e);
        json_close(&j, '}');
    }

    json_close(&j, ']');
    return call_json(c, 201, &out);
}
