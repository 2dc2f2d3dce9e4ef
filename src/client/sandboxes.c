/* `paddock ls`, `create` and `rm`: sandboxes as a whole. A list is read page by page until the
 * server gives no cursor any more; options of `create` become the members of the request's body. */
#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "client/client.h"
#include "client/table.h"

#include <stdbool.h>

#define PAGE 200

const char ls_usage[] =
    "usage: paddock ls [OPTIONS]\n\n"
    "Lists sandboxes, oldest first.\n\n"
    "  -a, --all            also those that are gone, as long as they are remembered\n"
    "  -q, --quiet          only ids\n"
    "  --state STATE        only this state: creating, running, paused, stopping, gone, all\n"
    "  --user-id ID         only this user's\n"
    "  --thread-id ID       only this thread's\n"
    "  --metadata K=V       only with this metadata; up to 8 times\n"
    "  --search WORDS       only where each word is somewhere in id, owner, template or metadata\n"
    "  --newest             newest first\n"
    "  --json               as JSON\n";

/* A query that grows: "?a=b&c=d". */
static void query_put(struct buf *b, const char *name, const char *value)
{
    buf_putc(b, memchr(b->data, '?', b->len) ? '&' : '?');
    buf_puts(b, name);
    buf_putc(b, '=');
    put_encoded(b, value);
}

struct ls_options {
    int all, quiet, json;
    struct buf target;
};

static int parse_ls(int argc, char **argv, struct ls_options *l, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    const char *state = NULL, *v;

    while (options_next(&o)) {
        if (options_is(&o, "-a", "--all")) {
            l->all = 1;
        } else if (options_is(&o, "-q", "--quiet")) {
            l->quiet = 1;
        } else if (options_is(&o, NULL, "--json")) {
            l->json = 1;
        } else if (options_is(&o, NULL, "--state")) {
            if (!(state = options_value(&o, e)))
                return -1;
            continue;
        } else if (options_is(&o, NULL, "--user-id") || options_is(&o, NULL, "--thread-id")) {
            int is_user = o.name[2] == 'u';
            if (!(v = options_value(&o, e)))
                return -1;
            query_put(&l->target, is_user ? "user_id" : "thread_id", v);
            continue;
        } else if (options_is(&o, NULL, "--search")) {
            if (!(v = options_value(&o, e)))
                return -1;
            query_put(&l->target, "q", v);
            continue;
        } else if (options_is(&o, NULL, "--newest")) {
            query_put(&l->target, "order", "newest");
        } else if (options_is(&o, NULL, "--metadata")) {
            if (!(v = options_value(&o, e)))
                return -1;
            const char *equals = strchr(v, '=');
            if (!equals || equals == v)
                return pd_fail(e, PD_INVALID, "--metadata '%.60s': write KEY=VALUE", v);
            buf_putc(&l->target, memchr(l->target.data, '?', l->target.len) ? '&' : '?');
            buf_puts(&l->target, "metadata.");
            put_encoded_bytes(&l->target, v, (size_t)(equals - v));
            buf_putc(&l->target, '=');
            put_encoded(&l->target, equals + 1);
            continue;
        } else {
            return usage_unknown(&o, e);
        }

        if (options_no_value(&o, e) < 0)
            return -1;
    }

    if (o.at < o.argc)
        return pd_fail(e, PD_INVALID, "'%.60s': ls takes no argument", o.argv[o.at]);

    if (l->all && !state)
        state = "all";
    if (state)
        query_put(&l->target, "state", state);
    return 0;
}

/* All pages as one list. */
int list_sandboxes(struct remote *r, const char *base, json_t **ret, struct pd_err *e)
{
    json_auto_t *all = json_array();
    char cursor[256] = "";

    do {
        auto_buf target = BUF_INIT(HTTP_TARGET_MAX);
        json_auto_t *page = NULL;
        buf_puts(&target, base);
        buf_printf(&target, "%climit=%d", strchr(base, '?') ? '&' : '?', PAGE);
        if (cursor[0])
            query_put(&target, "cursor", cursor);

        const char *text = buf_cstr(&target);
        if (!text)
            return pd_fail(e, PD_INVALID, "the filters are too long");
        if (remote_get(r, text, &page, e) < 0)
            return -1;

        json_t *list = json_object_get(page, "sandboxes");
        if (!json_is_array(list) || json_array_extend(all, list) < 0)
            return pd_fail(e, PD_PROTOCOL, "the server's list has no sandboxes");
        snprintf(cursor, sizeof cursor, "%s", json_field(page, "next_cursor"));
    } while (cursor[0]);

    *ret = json_incref(all);
    return 0;
}

const char *sandbox_owner(const json_t *s, char *out, size_t size)
{
    const char *user = json_field(s, "user_id"), *thread = json_field(s, "thread_id");
    snprintf(out, size, "%s%s%s", user, *user || *thread ? "/" : "", thread);
    return out;
}

static void put_metadata(struct table *t, json_t *metadata)
{
    char text[512] = "";
    size_t at = 0;
    const char *key;
    json_t *value;

    json_object_foreach(metadata, key, value)
    {
        int n = snprintf(text + at, sizeof text - at, "%s%s=%s", at ? " " : "", key,
                         json_is_string(value) ? json_string_value(value) : "");
        at += n > 0 ? (size_t)n : 0;
        if (at >= sizeof text)
            break;
    }
    table_put(t, text);
}

static void put_sandbox(struct table *t, const json_t *s, int64_t now)
{
    char text[300];
    const char *state = json_field(s, "state"), *cause = json_field(s, "end_cause");

    table_put(t, json_field(s, "id"));
    table_put(t, *cause ? cause : state);
    table_put(t, sandbox_owner(s, text, sizeof text));
    table_put(t, json_field(s, "profile"));
    table_put(t, json_field(s, "isolation"));

    int64_t created = parse_time_ms(json_field(s, "created_at"));
    int64_t expires = parse_time_ms(json_field(s, "expires_at"));
    format_age(text, created >= 0 && now > created ? (uint64_t)(now - created) / 1000 : 0);
    table_put(t, text);
    format_age(text, expires > now ? (uint64_t)(expires - now) / 1000 : 0);
    table_put(t, !strcmp(state, "gone") || expires < 0 ? NULL : text);
    table_printf(t, "%lld", (long long)json_field_int(s, "processes"));
    put_metadata(t, json_object_get(s, "metadata"));
}

static int print_sandboxes(const json_t *list, const struct ls_options *l)
{
    size_t i;
    json_t *s;

    if (l->quiet) {
        json_array_foreach(list, i, s) if (check_id(json_field(s, "id"), NULL) == 0)
            puts(json_field(s, "id"));
        return 0;
    }

    if (l->json) {
        json_auto_t *whole = json_pack("{sO}", "sandboxes", list);
        return print_json(whole);
    }

    auto_table t;
    table_init(&t, "ID STATE USER/THREAD PROFILE ISOLATION >AGE >LEFT >PROCS METADATA");
    table_fit(&t, STDOUT_FILENO);
    int64_t now = now_ms();
    json_array_foreach(list, i, s) put_sandbox(&t, s, now);
    return table_print(&t, stdout);
}

int cmd_ls(int argc, char **argv)
{
    struct pd_err e;
    struct ls_options l = {.target = BUF_INIT(HTTP_TARGET_MAX)};
    json_auto_t *list = NULL;

    buf_puts(&l.target, "/v1/sandboxes");

    int status = 0;
    if (parse_ls(argc, argv, &l, &e) < 0) {
        status = usage_fail(&e);
    } else {
        auto_remote *r = remote_new(&e);
        const char *base = buf_cstr(&l.target);
        if (!r || !base || list_sandboxes(r, base, &list, &e) < 0)
            status = client_fail(&e);
        else if (print_sandboxes(list, &l) < 0)
            status = EXIT_FAILED;
    }

    buf_done(&l.target);
    return status;
}

const char create_usage[] =
    "usage: paddock create [OPTIONS]\n\n"
    "Creates a sandbox and prints its id.\n\n"
    "  --session USER/THREAD  the sandbox of this user and thread; made if there is none\n"
    "  --auto-retry           with --session: a lost or expired one is made anew\n"
    "  --user-id ID           whose it is, with --thread-id\n"
    "  --thread-id ID         what it is for, with --user-id\n"
    "  --template NAME        what it is made of\n"
    "  --snapshot NAME        it begins with a copy of the files of this snapshot\n"
    "  --provider NAME        who makes it: auto, or one of the server's providers\n"
    "  --image REF            what it is made from, where the provider takes images\n"
    "  --pull WHEN            fetch the image: never, missing or always; default the server's way\n"
    "  --git-url URL          clone this into /workspace first (provider daytona)\n"
    "  --mode MODE            what its commands may run in: local (no isolation), sandbox, auto\n"
    "  --profile PROFILE      strict (default), dev, restricted\n"
    "  --allow RULE           a way to NAME[:PORTS], *.NAME[:PORTS] or NETWORK[:PORTS]; "
    "repeatable\n"
    "  --deny NETWORK[:PORTS] not there, with --egress open; repeatable\n"
    "  --egress MODE          off, list (what --allow names) or open\n"
    "  --secret VARIABLE=NAME@HOST[,HOST]...  a secret that it can use at these hosts and not "
    "read:\n"
    "                         the variable has a placeholder\n"
    "  --policy POLICY        which commands may run: open, restricted, allow:A,B or deny:A,B\n"
    "  --memory SIZE          of all its processes, such as 512M\n"
    "  --pids N               processes and threads\n"
    "  --cpu CORES            such as 0.5\n"
    "  --disk SIZE            space in its root\n"
    "  --files N              files in its root\n"
    "  -e, --env K=V          a variable for its commands\n"
    "  -w, --workdir DIR      where its commands start\n"
    "  --metadata K=V         text of your own\n"
    "  --idle-timeout TIME    end it when nobody used it for so long, such as 30m\n"
    "  --max-life TIME        end it at this age\n"
    "  --queue-timeout TIME   how long to wait for capacity\n"
    "  --idempotency-key KEY  a retry with the same key gets the same sandbox\n"
    "  -q, --quiet            no progress on the terminal while an image is pulled\n"
    "  --json                 print the whole sandbox as JSON\n";

struct create {
    json_t *body, *limits, *env, *metadata, *network;
    const char *session, *key;
    int json;
    bool quiet;
};

enum value_kind { TEXT, SIZE, COUNT, DECIMAL, SECONDS };
static const struct {
    const char *option, *field;
    enum value_kind kind;
    int is_limit;
} create_fields[] = {
    {"--user-id", "user_id", TEXT, 0},
    {"--thread-id", "thread_id", TEXT, 0},
    {"--template", "template", TEXT, 0},
    {"--snapshot", "snapshot", TEXT, 0},
    {"--provider", "provider", TEXT, 0},
    {"--image", "image", TEXT, 0},
    {"--pull", "pull", TEXT, 0},
    {"--git-url", "git_url", TEXT, 0},
    {"--mode", "mode", TEXT, 0},
    {"--profile", "profile", TEXT, 0},
    {"--workdir", "cwd", TEXT, 0},
    {"-w", "cwd", TEXT, 0},
    {"--idle-timeout", "idle_timeout_s", SECONDS, 0},
    {"--max-life", "max_life_s", SECONDS, 0},
    {"--queue-timeout", "queue_timeout_s", SECONDS, 0},
    {"--memory", "memory_bytes", SIZE, 1},
    {"--pids", "pids", COUNT, 1},
    {"--cpu", "cpu", DECIMAL, 1},
    {"--disk", "disk_bytes", SIZE, 1},
    {"--files", "files", COUNT, 1},
};

static json_t *parse_value(enum value_kind kind, const char *what, const char *v, struct pd_err *e)
{
    uint64_t n = 0;

    int bad = kind == SIZE      ? parse_size(what, v, 0, INT64_MAX, &n, e)
              : kind == COUNT   ? parse_u64(what, v, 0, INT64_MAX, &n, e)
              : kind == DECIMAL ? parse_milli(what, v, 0, UINT32_MAX, &n, e)
              : kind == SECONDS ? parse_duration(what, v, INT64_MAX, &n, e)
                                : 0;
    if (bad)
        return NULL;

    json_t *j = kind == TEXT      ? json_string(v)
                : kind == DECIMAL ? json_real((double)n / 1000)
                : kind == SECONDS ? json_real((double)n / (double)NS_PER_S)
                                  : json_integer((json_int_t)n);
    if (!j)
        pd_fail(e, PD_INVALID, "%s: the value is not UTF-8", what);
    return j;
}

/* open, restricted, allow:A,B, deny:A,B. */
static int put_policy(json_t *body, const char *v, struct pd_err *e)
{
    int is_allow = !strncmp(v, "allow:", 6), is_deny = !strncmp(v, "deny:", 5);
    if (!is_allow && !is_deny)
        return json_object_set_new(body, "policy", json_string(v)) < 0
                   ? pd_fail(e, PD_INVALID, "--policy: the value is not UTF-8")
                   : 0;

    json_t *commands = json_array();
    for (const char *p = strchr(v, ':') + 1; *p;) {
        size_t len = strcspn(p, ",");
        if (len)
            json_array_append_new(commands, json_stringn(p, len));
        p += len + (p[len] == ',');
    }

    json_object_set_new(
        body, "policy",
        json_pack("{ssso}", "mode", is_allow ? "allow" : "deny", "commands", commands));
    return 0;
}

static int parse_create_option(struct create *c, struct options *o, struct pd_err *e)
{
    if (options_is(o, "-q", "--quiet")) {
        c->quiet = true;
        return options_no_value(o, e);
    }

    int is_json = options_is(o, NULL, "--json");
    if (is_json || options_is(o, NULL, "--auto-retry")) {
        if (is_json)
            c->json = 1;
        else
            json_object_set_new(c->body, "auto_retry", json_true());
        return options_no_value(o, e);
    }

    for (size_t i = 0; i < sizeof create_fields / sizeof *create_fields; i++) {
        if (!options_is(o, NULL, create_fields[i].option))
            continue;
        const char *what = create_fields[i].option, *v = options_value(o, e);
        json_t *j = v ? parse_value(create_fields[i].kind, what, v, e) : NULL;
        json_t *to = create_fields[i].is_limit ? c->limits : c->body;
        return j ? json_object_set_new(to, create_fields[i].field, j) : -1;
    }

    int taken = network_option(c->network, o, e);
    if (taken)
        return taken < 0 ? -1 : 0;

    int is_env = options_is(o, "-e", "--env"), is_metadata = options_is(o, NULL, "--metadata");
    int is_session = options_is(o, NULL, "--session"), is_policy = options_is(o, NULL, "--policy");
    if (!is_env && !is_metadata && !is_session && !is_policy &&
        !options_is(o, NULL, "--idempotency-key"))
        return usage_unknown(o, e);

    const char *v = options_value(o, e);
    if (!v)
        return -1;

    if (is_env || is_metadata)
        return put_pair(is_env ? c->env : c->metadata, is_env ? "--env" : "--metadata", v, e);
    if (is_policy)
        return put_policy(c->body, v, e);
    *(is_session ? &c->session : &c->key) = v;
    return 0;
}

static int parse_create(struct create *c, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    while (options_next(&o))
        if (parse_create_option(c, &o, e) < 0)
            return -1;

    if (o.at < o.argc)
        return pd_fail(e, PD_INVALID, "'%.60s': create takes no argument", o.argv[o.at]);
    if (!c->session && json_object_get(c->body, "auto_retry"))
        return pd_fail(e, PD_INVALID, "--auto-retry is for --session");

    if (json_object_size(c->limits))
        json_object_set(c->body, "limits", c->limits);
    if (json_object_size(c->env))
        json_object_set(c->body, "env", c->env);
    if (json_object_size(c->metadata))
        json_object_set(c->body, "metadata", c->metadata);
    if (json_object_size(c->network))
        json_object_set(c->body, "network", c->network);
    return 0;
}

static int create(const struct create *c, json_t **ret, struct pd_err *e)
{
    auto_buf target = BUF_INIT(HTTP_TARGET_MAX);

    auto_remote *r = remote_new(e);
    if (!r)
        return -1;

    if (c->session) {
        buf_puts(&target, "/v1/sessions/");
        if (session_target(c->session, &target, e) < 0)
            return -1;
    } else {
        buf_puts(&target, "/v1/sandboxes");
    }

    struct remote_request q = {.method = c->session ? HTTP_PUT : HTTP_POST,
                               .target = buf_cstr(&target),
                               .json = c->body,
                               .key = c->key,
                               .is_patient = 1};
    if (!q.target)
        return pd_fail(e, PD_INVALID, "--session is too long");
    return c->quiet || !isatty(STDERR_FILENO) ? remote_call(r, &q, ret, e)
                                              : create_on_terminal(r, &q, ret, e);
}

int cmd_create(int argc, char **argv)
{
    struct pd_err e;
    json_auto_t *body = json_object(), *limits = json_object(), *env = json_object(),
                *metadata = json_object(), *network = json_object(), *made = NULL;
    struct create c = {
        .body = body, .limits = limits, .env = env, .metadata = metadata, .network = network};

    if (parse_create(&c, argc, argv, &e) < 0)
        return usage_fail(&e);

    if (create(&c, &made, &e) < 0)
        return client_fail(&e);

    if (c.json)
        return print_json(made) < 0 ? EXIT_FAILED : 0;
    if (check_id(json_field(made, "id"), &e) < 0)
        return client_fail(&e);

    if (json_field_is_true(made, "recreated"))
        fprintf(stderr, "paddock: the sandbox of this session was gone; this is a fresh one\n");
    puts(json_field(made, "id"));
    return 0;
}

const char rm_usage[] = "usage: paddock rm ID...\n"
                        "       paddock rm --session USER/THREAD\n\n"
                        "Ends sandboxes: every process in them, and their files.\n\n"
                        "  --session USER/THREAD  the sandbox of this user and thread\n";

int cmd_rm(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    const char *session = NULL;
    int count;

    o.mixed = 1;
    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--session")) {
            usage_unknown(&o, &e);
            return usage_fail(&e);
        }
        if (!(session = options_value(&o, &e)))
            return usage_fail(&e);
    }

    char **ids = options_arguments(&o, &count);
    if (!count && !session) {
        pd_fail(&e, PD_INVALID, "rm: which one? Give ids, or --session USER/THREAD");
        return usage_fail(&e);
    }

    for (int i = 0; i < count; i++)
        if (check_id(ids[i], &e) < 0)
            return usage_fail(&e);

    auto_remote *r = remote_new(&e);
    if (!r)
        return client_fail(&e);

    int status = 0;
    for (int i = session ? -1 : 0; i < count; i++) {
        auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
        buf_puts(&b, i < 0 ? "/v1/sessions/" : "/v1/sandboxes/");
        if (i < 0 && session_target(session, &b, &e) < 0)
            return usage_fail(&e);
        if (i >= 0)
            buf_puts(&b, ids[i]);
        struct remote_request q = {.method = HTTP_DELETE, .target = buf_cstr(&b)};
        if (!q.target || remote_call(r, &q, NULL, &e) < 0)
            status = client_fail(&e);
    }
    return status;
}
