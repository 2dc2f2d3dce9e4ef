/* `paddock ps`, `kill`, `port` and `top`: processes, ports and usage of sandboxes. Each asks the
 * server and prints a table; `top` asks again every interval and shows what changed between two
 * answers. */
#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"
#include "client/client.h"
#include "client/table.h"

#include <poll.h>
#include <sys/ioctl.h>

const char ps_usage[] = "usage: paddock ps [-a] [--tree] [--json] ID\n\n"
                        "Lists the commands of a sandbox that are running.\n\n"
                        "  -a, --all  also those that have ended\n"
                        "  --tree     every process in it, whoever started it\n"
                        "  --json     as JSON\n";

/* "running", "exit 1", "SIGKILL (oom)". */
static void put_process_state(struct table *t, const json_t *p)
{
    const char *signal = json_field(p, "signal"), *why = json_field(p, "stopped_by");
    char text[80];

    if (json_field_is_true(p, "running"))
        snprintf(text, sizeof text, "running");
    else if (*signal)
        snprintf(text, sizeof text, "%s", signal);
    else if (json_is_integer(json_object_get(p, "exit_code")))
        snprintf(text, sizeof text, "exit %d", (int)json_field_int(p, "exit_code"));
    else
        snprintf(text, sizeof text, "not started");

    table_printf(t, *why ? "%s (%s)" : "%s%s", text, why);
}

static int print_processes(json_t *answer, int all)
{
    auto_table t;
    size_t i;
    json_t *p;

    table_init(&t, ">PID STATE >AGE >CPU >RSS >STDOUT >STDERR TTY COMMAND");
    table_fit(&t, STDOUT_FILENO);

    int64_t now = now_ms();
    json_array_foreach(json_object_get(answer, "processes"), i, p)
    {
        if (!all && !json_field_is_true(p, "running"))
            continue;
        char text[16];
        int64_t started = parse_time_ms(json_field(p, "started_at"));
        table_printf(&t, "%lld", (long long)json_field_int(p, "pid"));
        put_process_state(&t, p);
        format_age(text, started >= 0 && now > started ? (uint64_t)(now - started) / 1000 : 0);
        table_put(&t, text);
        table_printf(&t, "%.2fs", json_field_number(p, "cpu_time_ms") / 1000);
        format_size(text, (uint64_t)json_field_int(p, "max_rss_bytes"));
        table_put(&t, text);
        format_size(text, (uint64_t)json_field_int(p, "stdout_bytes"));
        table_put(&t, text);
        format_size(text, (uint64_t)json_field_int(p, "stderr_bytes"));
        table_put(&t, text);
        table_put(&t, json_field_is_true(p, "pty") ? "yes" : NULL);
        table_put(&t, json_field(p, "command"));
    }
    return table_print(&t, stdout);
}

static int print_tree(json_t *answer)
{
    auto_table t;
    size_t i;
    json_t *p;

    table_init(&t, ">PID >PARENT STATE >UID >THREADS >CPU >RSS >AGE COMMAND");
    table_fit(&t, STDOUT_FILENO);
    json_array_foreach(json_object_get(answer, "tree"), i, p)
    {
        char text[16];
        table_printf(&t, "%lld", (long long)json_field_int(p, "pid"));
        table_printf(&t, "%lld", (long long)json_field_int(p, "parent_pid"));
        table_put(&t, json_field(p, "state"));
        table_printf(&t, "%lld", (long long)json_field_int(p, "uid"));
        table_printf(&t, "%lld", (long long)json_field_int(p, "threads"));
        table_printf(&t, "%.2fs", json_field_number(p, "cpu_time_ms") / 1000);
        format_size(text, (uint64_t)json_field_int(p, "memory_bytes"));
        table_put(&t, text);
        format_age(text, (uint64_t)json_field_int(p, "age_ms") / 1000);
        table_put(&t, text);
        table_put(&t, json_field(p, "command"));
    }
    return table_print(&t, stdout);
}

int cmd_ps(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    int all = 0, tree = 0, json = 0, count;

    o.mixed = 1;
    while (options_next(&o)) {
        if (options_is(&o, "-a", "--all"))
            all = 1;
        else if (options_is(&o, NULL, "--tree"))
            tree = 1;
        else if (options_is(&o, NULL, "--json"))
            json = 1;
        else if (usage_unknown(&o, &e) < 0)
            return usage_fail(&e);
        if (options_no_value(&o, &e) < 0)
            return usage_fail(&e);
    }

    char **args = options_arguments(&o, &count);
    if (one_id("ps", args, count, &e) < 0)
        return usage_fail(&e);

    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *answer = NULL;
    buf_printf(&b, "/v1/sandboxes/%s/processes%s", args[0], tree ? "?tree=true" : "");
    auto_remote *r = remote_new(&e);
    if (!r || remote_get(r, buf_cstr(&b), &answer, &e) < 0)
        return client_fail(&e);
    int bad = json ? print_json(answer) : tree ? print_tree(answer) : print_processes(answer, all);
    return bad < 0 ? EXIT_FAILED : 0;
}

const char kill_usage[] = "usage: paddock kill [-s SIGNAL] ID PID...\n\n"
                          "Sends a signal to commands of a sandbox, SIGTERM unless told.\n\n"
                          "  -s, --signal SIGNAL  a name or a number; KILL ends all its children, "
                          "too\n";

static json_t *parse_signal(const char *text)
{
    char name[20];
    uint64_t n;

    if (parse_u64("-s", text, 1, 64, &n, NULL) == 0)
        return json_integer((json_int_t)n);

    size_t len = strnlen(text, sizeof name - 4), skip = strncasecmp(text, "SIG", 3) ? 0 : 3;
    snprintf(name, sizeof name, "SIG%.*s", (int)(len - skip), text + skip);
    for (char *p = name; *p; p++)
        if (*p >= 'a' && *p <= 'z')
            *p = (char)(*p - 'a' + 'A');
    return json_string(name);
}

int cmd_kill(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    const char *signal = "SIGTERM";
    int count;

    o.mixed = 1;
    while (options_next(&o)) {
        if (!options_is(&o, "-s", "--signal")) {
            usage_unknown(&o, &e);
            return usage_fail(&e);
        }
        if (!(signal = options_value(&o, &e)))
            return usage_fail(&e);
    }

    char **args = options_arguments(&o, &count);
    if (count < 2) {
        pd_fail(&e, PD_INVALID, "kill: write `paddock kill [-s SIGNAL] ID PID...`");
        return usage_fail(&e);
    }

    if (check_id(args[0], &e) < 0)
        return usage_fail(&e);
    for (int i = 1; i < count; i++)
        if (check_pid(args[i], &e) < 0)
            return usage_fail(&e);

    json_auto_t *body = json_pack("{so}", "signal", parse_signal(signal));
    auto_remote *r = remote_new(&e);
    if (!r)
        return client_fail(&e);

    int status = 0;
    for (int i = 1; i < count; i++) {
        auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
        buf_printf(&b, "/v1/sandboxes/%s/processes/%s/signal", args[0], args[i]);
        struct remote_request q = {.method = HTTP_POST, .target = buf_cstr(&b), .json = body};
        if (remote_call(r, &q, NULL, &e) < 0)
            status = client_fail(&e);
    }
    return status;
}

const char port_usage[] =
    "usage: paddock port [--by WAY] [--expires TIME] [--json] ID [PORT]\n"
    "       paddock port --links [--json] ID\n"
    "       paddock port --revoke LINK ID\n\n"
    "Lists what listens in a sandbox. With a port, prints a URL that reaches "
    "it without a key.\n\n"
    "  --by WAY        host (a name of its own, as pages like an editor need), path, or either "
    "(default)\n"
    "  --expires TIME  how long the URL is good for, such as 10m; default 1h\n"
    "  --links         the URLs that were made, in place of what listens\n"
    "  --revoke LINK   take one of them back, by its id; what it has opened ends\n"
    "  --json          as JSON\n";

static int print_ports(json_t *answer)
{
    auto_table t;
    size_t i;
    json_t *p;

    table_init(&t, ">PORT ADDRESS >PID COMMAND");
    table_fit(&t, STDOUT_FILENO);
    json_array_foreach(json_object_get(answer, "ports"), i, p)
    {
        table_printf(&t, "%lld", (long long)json_field_int(p, "port"));
        table_put(&t, json_field(p, "address"));
        if (json_is_integer(json_object_get(p, "pid")))
            table_printf(&t, "%lld", (long long)json_field_int(p, "pid"));
        else
            table_put(&t, NULL);
        table_put(&t, json_field(p, "command"));
    }
    return table_print(&t, stdout);
}

static int print_links(json_t *answer)
{
    auto_table t;
    size_t i;
    json_t *l;

    table_init(&t, "LINK >PORT MADE EXPIRES REVOKED BY");
    table_fit(&t, STDOUT_FILENO);
    json_array_foreach(json_object_get(answer, "links"), i, l)
    {
        const char *revoked = json_field(l, "revoked_at"), *by = json_field(l, "made_by");
        table_put(&t, json_field(l, "id"));
        table_printf(&t, "%lld", (long long)json_field_int(l, "port"));
        table_put(&t, json_field(l, "created_at"));
        table_put(&t, json_field(l, "expires_at"));
        table_put(&t, *revoked ? revoked : NULL);
        table_put(&t, *by ? by : NULL);
    }
    return table_print(&t, stdout);
}

struct port_options {
    const char *id, *by, *revoke;
    uint64_t port, expires;
    int links, json;
};

static int parse_port(int argc, char **argv, struct port_options *p, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    int count;

    o.mixed = 1;
    while (options_next(&o)) {
        const char *v;
        int bad;
        if (options_is(&o, NULL, "--json")) {
            p->json = 1;
            bad = options_no_value(&o, e);
        } else if (options_is(&o, NULL, "--links")) {
            p->links = 1;
            bad = options_no_value(&o, e);
        } else if (options_is(&o, NULL, "--by")) {
            bad = (p->by = options_value(&o, e)) ? 0 : -1;
        } else if (options_is(&o, NULL, "--revoke")) {
            bad = (p->revoke = options_value(&o, e)) ? 0 : -1;
        } else if (options_is(&o, NULL, "--expires")) {
            v = options_value(&o, e);
            bad = v ? parse_duration("--expires", v, INT64_MAX, &p->expires, e) : -1;
        } else {
            bad = usage_unknown(&o, e);
        }
        if (bad < 0)
            return -1;
    }

    char **args = options_arguments(&o, &count);
    if (one_id("port", args, count > 1 ? count - 1 : count, e) < 0 ||
        (count > 1 && parse_u64("PORT", args[1], 1, 65535, &p->port, e) < 0))
        return -1;
    p->id = args[0];
    if (p->links + (p->revoke != NULL) + (p->port != 0) > 1)
        return pd_fail(e, PD_INVALID, "port: a port, --links and --revoke are three things");
    return 0;
}

int cmd_port(int argc, char **argv)
{
    struct pd_err e;
    struct port_options p = {0};

    if (parse_port(argc, argv, &p, &e) < 0)
        return usage_fail(&e);

    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *answer = NULL, *body = json_object();
    buf_printf(&b, "/v1/sandboxes/%s/%s", p.id, p.links || p.revoke ? "links" : "ports");
    if (p.port)
        buf_printf(&b, "/%u/preview", (unsigned)p.port);
    if (p.revoke) {
        buf_putc(&b, '/');
        put_encoded(&b, p.revoke);
    }
    if (p.expires)
        json_object_set_new(body, "expires_in_s", json_real((double)p.expires / (double)NS_PER_S));
    if (p.by)
        json_object_set_new(body, "by", json_string(p.by));

    struct remote_request q = {.method = p.port     ? HTTP_POST
                                         : p.revoke ? HTTP_DELETE
                                                    : HTTP_GET,
                               .target = buf_cstr(&b),
                               .json = p.port ? body : NULL};
    auto_remote *r = remote_new(&e);
    if (!r || remote_call(r, &q, p.revoke ? NULL : &answer, &e) < 0)
        return client_fail(&e);

    if (p.revoke)
        return 0;
    int bad = p.json    ? print_json(answer)
              : p.port  ? print_line(json_field(answer, "url"))
              : p.links ? print_links(answer)
                        : print_ports(answer);
    return bad < 0 ? EXIT_FAILED : 0;
}

const char top_usage[] = "usage: paddock top [--once] [--interval TIME] [--json]\n\n"
                         "Shows what the sandboxes use, again and again until Ctrl-C.\n\n"
                         "  --once           once, and end\n"
                         "  --interval TIME  how often; default 2s\n"
                         "  --json           a line of JSON each time\n";

/* The CPU time of a sandbox at the last look, so that its share since then can be told. */
struct seen {
    char id[32];
    double cpu_ms;
    int64_t at_ms;
};

struct top {
    struct seen *before, *now;
    size_t before_count, now_count;
    int json;
};

static double cpu_share(const struct top *t, const struct seen *s)
{
    for (size_t i = 0; i < t->before_count; i++) {
        const struct seen *b = &t->before[i];
        if (!strcmp(b->id, s->id) && s->at_ms > b->at_ms && s->cpu_ms >= b->cpu_ms)
            return 100 * (s->cpu_ms - b->cpu_ms) / (double)(s->at_ms - b->at_ms);
    }
    return -1;
}

static void put_usage_row(struct top *top, struct table *t, const json_t *s, const json_t *last)
{
    const json_t *limits = json_object_get(s, "limits");
    char text[300], limit[16];
    struct seen *seen = &top->now[top->now_count++];

    *seen = (struct seen){.cpu_ms = json_field_number(last, "cpu_time_ms"), .at_ms = now_ms()};
    snprintf(seen->id, sizeof seen->id, "%s", json_field(s, "id"));

    table_put(t, seen->id);
    table_put(t, json_field(s, "state"));
    table_put(t, sandbox_owner(s, text, sizeof text));

    double share = last ? cpu_share(top, seen) : -1;
    table_printf(t, share < 0 ? "-" : "%.1f", share);
    table_printf(t, last ? "%.1fs" : "-", seen->cpu_ms / 1000);
    format_size(text, (uint64_t)json_field_int(last, "memory_bytes"));
    table_put(t, last ? text : NULL);
    format_size(limit, (uint64_t)json_field_int(limits, "memory_bytes"));
    table_put(t, limit);
    table_printf(t, last ? "%lld" : "-", (long long)json_field_int(last, "pids"));
    table_printf(t, "%lld", (long long)json_field_int(s, "processes"));

    int64_t created = parse_time_ms(json_field(s, "created_at")), now = now_ms();
    format_age(text, created >= 0 && now > created ? (uint64_t)(now - created) / 1000 : 0);
    table_put(t, text);
}

static int add_usage(struct remote *r, json_t *s, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_t *usage = NULL;

    if (check_id(json_field(s, "id"), e) < 0)
        return -1;

    buf_printf(&b, "/v1/sandboxes/%s/metrics", json_field(s, "id"));
    if (remote_get(r, buf_cstr(&b), &usage, e) < 0) {
        /* It may have ended since it was listed. */
        return e->code == PD_LOST || e->code == PD_PROTOCOL || e->code == PD_UNAUTHENTICATED ? -1
                                                                                             : 0;
    }
    return json_object_set_new(s, "usage", usage);
}

static int show_top(struct remote *r, struct top *top, int is_screen, struct pd_err *e)
{
    json_auto_t *list = NULL;
    auto_table t;
    size_t i;
    json_t *s;
    struct winsize size = {.ws_row = 0};

    table_init(&t, "ID STATE USER/THREAD >CPU% >TIME >MEMORY >LIMIT >PIDS >PROCS >AGE");
    table_fit(&t, STDOUT_FILENO);
    if (list_sandboxes(r, "/v1/sandboxes", &list, e) < 0)
        return -1;

    size_t rows = json_array_size(list);
    if (is_screen && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 2 &&
        rows > size.ws_row - 2u)
        rows = size.ws_row - 2u;

    top->now = calloc(rows + 1, sizeof *top->now);
    top->now_count = 0;
    if (!top->now)
        return pd_fail(e, PD_CAPACITY, "no memory");

    json_array_foreach(list, i, s)
    {
        if (i >= rows)
            break;
        if (add_usage(r, s, e) < 0)
            return -1;
        put_usage_row(top, &t, s, json_object_get(s, "usage"));
    }

    if (top->json) {
        json_auto_t *whole = json_pack("{sO}", "sandboxes", list);
        return print_json(whole) < 0 ? pd_fail(e, PD_LOST, "standard output is closed") : 0;
    }

    if (is_screen)
        fputs("\033[H\033[J", stdout);
    if (table_print(&t, stdout) < 0 || fflush(stdout) != 0)
        return pd_fail(e, PD_LOST, "standard output is closed");
    if (rows < json_array_size(list))
        printf("... and %zu more", json_array_size(list) - rows);
    fflush(stdout);
    return 0;
}

static int run_top(struct top *top, int once, uint64_t interval, struct pd_err *e)
{
    auto_remote *r = remote_new(e);
    if (!r)
        return -1;

    int is_screen = !once && !top->json && isatty(STDOUT_FILENO);
    for (;;) {
        int bad = show_top(r, top, is_screen, e);
        free(top->before);
        top->before = top->now;
        top->before_count = top->now_count;
        top->now = NULL;
        if (bad < 0 || once)
            return bad;
        poll(NULL, 0, (int)(interval / NS_PER_MS));
    }
}

int cmd_top(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    struct top top = {0};
    int once = 0;
    uint64_t interval = 2 * NS_PER_S;

    while (options_next(&o)) {
        const char *v;
        if (options_is(&o, NULL, "--interval")) {
            if (!(v = options_value(&o, &e)) ||
                parse_duration("--interval", v, 3600 * NS_PER_S, &interval, &e) < 0)
                return usage_fail(&e);
            continue;
        }

        if (options_is(&o, NULL, "--once"))
            once = 1;
        else if (options_is(&o, NULL, "--json"))
            top.json = 1;
        else if (usage_unknown(&o, &e) < 0)
            return usage_fail(&e);
        if (options_no_value(&o, &e) < 0)
            return usage_fail(&e);
    }

    if (interval < 100 * NS_PER_MS)
        interval = 100 * NS_PER_MS;
    int bad = run_top(&top, once, interval, &e);
    free(top.before);
    return bad < 0 ? client_fail(&e) : 0;
}
