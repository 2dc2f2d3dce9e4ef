/* `paddock snapshot` and `paddock fork`: copies of a sandbox's files, which outlive it, and another
 * sandbox that has them. */
#include "base/banned.h"
#include "base/err.h"
#include "client/client.h"
#include "client/table.h"

const char snapshot_usage[] =
    "usage: paddock snapshot create ID [NAME]\n"
    "       paddock snapshot ls [--json]\n"
    "       paddock snapshot rm NAME...\n\n"
    "Keeps a copy of a sandbox's files, which `paddock create --snapshot NAME` begins with; "
    "prints\n"
    "its id. The sandbox's processes stand still meanwhile. NAME is NAME[:TAG]; `rm` takes names\n"
    "and ids.\n\n"
    "  --json  as JSON\n";

/* One call with the path's last part, if any. */
static int call(enum http_method method, const char *path, const char *name, json_t *body,
                json_t **ret, struct pd_err *e)
{
    auto_buf target = BUF_INIT(HTTP_TARGET_MAX);
    auto_remote *r = remote_new(e);
    if (!r)
        return -1;

    buf_puts(&target, path);
    if (name)
        put_encoded(&target, name);
    struct remote_request q = {
        .method = method, .target = buf_cstr(&target), .json = body, .is_patient = 1};
    if (!q.target)
        return pd_fail(e, PD_INVALID, "the name is too long");
    return remote_call(r, &q, ret, e) < 0 ? -1 : 0;
}

static int create(int argc, char **argv, struct pd_err *e)
{
    char path[100];
    json_auto_t *body = json_object(), *made = NULL;

    if (argc < 2 || argc > 3 || argv[1][0] == '-')
        return pd_fail(e, PD_INVALID, "snapshot create takes a sandbox's id and perhaps a name");
    if (check_id(argv[1], e) < 0)
        return -1;
    if (argc == 3)
        json_object_set_new(body, "name", json_string(argv[2]));
    snprintf(path, sizeof path, "/v1/sandboxes/%.30s/snapshots", argv[1]);
    if (call(HTTP_POST, path, NULL, body, &made, e) < 0)
        return -1;
    return print_line(json_field(made, "id")) < 0 ? pd_fail(e, PD_LOST, "standard output is closed")
                                                  : 0;
}

static void put_row(struct table *t, const json_t *one)
{
    char age[16];
    const char *name = json_field(one, "name");
    int64_t made = parse_time_ms(json_field(one, "created_at")), now = now_ms();

    format_age(age, made >= 0 && now > made ? (uint64_t)(now - made) / 1000 : 0);
    table_put(t, json_field(one, "id"));
    table_put(t, *name ? name : NULL);
    table_put(t, json_field(one, "sandbox_id"));
    table_put(t, json_field(one, "template"));
    table_put(t, json_field(one, "provider"));
    table_put(t, age);
}

static int list(int argc, char **argv, struct pd_err *e)
{
    json_auto_t *all = json_array();
    char cursor[256] = "";
    json_t *one;
    size_t i;
    int json = 0;

    if (only_json(argc, argv, &json, e) < 0)
        return -1;
    do {
        json_auto_t *page = NULL;
        const char *path =
            cursor[0] ? "/v1/snapshots?limit=1000&cursor=" : "/v1/snapshots?limit=1000";
        if (call(HTTP_GET, path, cursor, NULL, &page, e) < 0)
            return -1;
        if (json_array_extend(all, json_object_get(page, "snapshots")) < 0)
            return pd_fail(e, PD_PROTOCOL, "the server's list has no snapshots");
        snprintf(cursor, sizeof cursor, "%s", json_field(page, "next_cursor"));
    } while (cursor[0]);

    if (json) {
        json_auto_t *whole = json_pack("{sO}", "snapshots", all);
        return print_json(whole) < 0 ? pd_fail(e, PD_LOST, "standard output is closed") : 0;
    }
    auto_table t;
    table_init(&t, "ID NAME SANDBOX TEMPLATE PROVIDER >AGE");
    json_array_foreach(all, i, one) put_row(&t, one);
    return table_print(&t, stdout) < 0 ? pd_fail(e, PD_CAPACITY, "no memory") : 0;
}

static int delete_all(int argc, char **argv, struct pd_err *e)
{
    if (argc < 2 || argv[1][0] == '-')
        return pd_fail(e, PD_INVALID, "snapshot rm takes names or ids of snapshots");
    for (int i = 1; i < argc; i++)
        if (call(HTTP_DELETE, "/v1/snapshots/", argv[i], NULL, NULL, e) < 0)
            return -1;
    return 0;
}

int cmd_snapshot(int argc, char **argv)
{
    static const struct client_verb verbs[] = {
        {"create", create}, {"ls", list}, {"rm", delete_all}, {0}};
    return run_verb(verbs, "snapshot: write `paddock snapshot create|ls|rm`", argc, argv);
}

const char fork_usage[] =
    "usage: paddock fork [--json] ID\n\n"
    "Makes another sandbox with a copy of this one's files and its settings; prints its id.\n"
    "Processes are not copied.\n\n"
    "  --json  as JSON\n";

int cmd_fork(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    json_auto_t *body = json_object(), *made = NULL;
    char path[100];
    int json = 0, count;

    o.mixed = 1;
    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--json")) {
            (void)usage_unknown(&o, &e);
            return usage_fail(&e);
        }
        if (options_no_value(&o, &e) < 0)
            return usage_fail(&e);
        json = 1;
    }
    char **args = options_arguments(&o, &count);
    if (one_id("fork", args, count, &e) < 0)
        return usage_fail(&e);
    snprintf(path, sizeof path, "/v1/sandboxes/%.30s/fork", args[0]);
    if (call(HTTP_POST, path, NULL, body, &made, &e) < 0)
        return client_fail(&e);
    return (json ? print_json(made) : print_line(json_field(made, "id"))) < 0 ? EXIT_FAILED : 0;
}
