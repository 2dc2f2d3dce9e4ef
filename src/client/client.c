/* The common parts of the client's commands: their table, messages for people, the API's errors as
 * errors of this program, parts of URLs, fields of JSON, and the exit status that tells how a
 * command ended.
 */
#include "client/client.h"

#include "base/banned.h"
#include "base/err.h"
#include "client/text.h"
#include "net/url.h"

const struct client_command client_commands[] = {
    {"create", "create a sandbox on a server", create_usage, cmd_create},
    {"ls", "list its sandboxes", ls_usage, cmd_ls},
    {"exec", "run a command in a sandbox", exec_usage, cmd_exec},
    {"shell", "open a terminal in a sandbox", shell_usage, cmd_shell},
    {"code", "run code whose variables stay", code_usage, cmd_code},
    {"cp", "copy files into and out of a sandbox", cp_usage, cmd_cp},
    {"ps", "list the commands of a sandbox", ps_usage, cmd_ps},
    {"logs", "print the output of a command", logs_usage, cmd_logs},
    {"kill", "send a signal to a command", kill_usage, cmd_kill},
    {"port", "list ports, or make a URL for one", port_usage, cmd_port},
    {"top", "show what sandboxes use", top_usage, cmd_top},
    {"route", "say which provider a sandbox would get", route_usage, cmd_route},
    {"mv", "move a sandbox to another provider", mv_usage, cmd_mv},
    {"fork", "make a sandbox with a copy of another one's files", fork_usage, cmd_fork},
    {"snapshot", "keep, list and remove copies of sandboxes' files", snapshot_usage, cmd_snapshot},
    {"rm", "end sandboxes", rm_usage, cmd_rm},
    {"template", "build templates, list and remove them", template_usage, cmd_template},
    {"network", "show and change a sandbox's way out, and its log", network_usage, cmd_network},
    {"secret", "keep secrets that sandboxes can use", secret_usage, cmd_secret},
    {"overview", "count what there is on a server", overview_usage, cmd_overview},
    {"audit", "tell what was done, by whom", audit_usage, cmd_audit},
    {"console", "print a link to the server's console", console_usage, cmd_console},
    {"mcp", "speak the Model Context Protocol", mcp_usage, cmd_mcp},
    {0},
};

static void put_message(const struct pd_err *e)
{
    auto_buf b = BUF_INIT(4096);
    text_escape(&b, e->msg, strlen(e->msg));
    const char *text = buf_cstr(&b);
    fprintf(stderr, "paddock: %s\n", text ? text : "no memory");
}

int usage_fail(const struct pd_err *e)
{
    put_message(e);
    return e->code == PD_INVALID ? EXIT_USAGE : EXIT_FAILED;
}

int client_fail(const struct pd_err *e)
{
    put_message(e);
    return e->code == PD_NO_COMMAND || e->code == PD_NOT_EXECUTABLE ? pd_code_exit(e->code)
                                                                    : EXIT_FAILED;
}

int usage_unknown(const struct options *o, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID, "%.40s is not an option of `paddock %s`: see `paddock help %s`",
                   o->name, o->argv[0], o->argv[0]);
}

int only_json(int argc, char **argv, int *ret_json, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);

    while (options_next(&o)) {
        if (!options_is(&o, NULL, "--json"))
            return usage_unknown(&o, e);
        if (options_no_value(&o, e) < 0)
            return -1;
        *ret_json = 1;
    }
    return o.at < argc ? pd_fail(e, PD_INVALID, "%s: '%.60s' is too much: see `paddock help %s`",
                                 argv[0], argv[o.at], argv[0])
                       : 0;
}

int run_verb(const struct client_verb *verbs, const char *otherwise, int argc, char **argv)
{
    struct pd_err e;

    for (; argc > 1 && verbs->name; verbs++) {
        if (strcmp(argv[1], verbs->name) != 0)
            continue;
        int status = verbs->run(argc - 1, argv + 1, &e);
        if (status >= 0)
            return status;
        return e.code == PD_INVALID ? usage_fail(&e) : client_fail(&e);
    }
    pd_fail(&e, PD_INVALID, "%s", otherwise);
    return usage_fail(&e);
}

int remote_error(const json_t *answer, int status, struct pd_err *e)
{
    const json_t *error = json_object_get(answer, "error");
    const char *code = json_field(error, "code"), *message = json_field(error, "message");
    enum pd_code known = PD_PROTOCOL;

    for (enum pd_code c = 0; c < PD_CODE_COUNT; c++)
        if (!strcmp(pd_code_name(c), code))
            known = c;

    if (!*message)
        return pd_fail(e, known, "the server answered %d %s", status, http_reason(status));
    return pd_fail(e, known, "%s%s", message,
                   known == PD_UNAUTHENTICATED && !getenv("PADDOCK_API_KEY")
                       ? " (PADDOCK_API_KEY is not set)"
                       : "");
}

int remote_get(struct remote *r, const char *target, json_t **ret, struct pd_err *e)
{
    struct remote_request q = {.method = HTTP_GET, .target = target};
    return remote_call(r, &q, ret, e);
}

void put_encoded_bytes(struct buf *b, const char *text, size_t len)
{
    url_encode(b, text, len, 0);
}

void put_encoded(struct buf *b, const char *text)
{
    put_encoded_bytes(b, text, strlen(text));
}

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

const char *json_field(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

int64_t json_field_int(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

double json_field_number(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

int json_field_is_true(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}

int print_json(const json_t *j)
{
    int bad = json_dumpf(j, stdout, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    return bad || putchar('\n') == EOF || fflush(stdout) ? -1 : 0;
}

int print_line(const char *text)
{
    auto_buf b = BUF_INIT(1u << 20);
    text_escape(&b, text, strlen(text));
    const char *line = buf_cstr(&b);
    return line && puts(line) >= 0 && fflush(stdout) == 0 ? 0 : -1;
}

int session_target(const char *text, struct buf *b, struct pd_err *e)
{
    const char *slash = strchr(text, '/');
    if (!slash || slash == text || !slash[1])
        return pd_fail(e, PD_INVALID, "--session '%.60s': write USER/THREAD", text);

    put_encoded_bytes(b, text, (size_t)(slash - text));
    buf_putc(b, '/');
    put_encoded(b, slash + 1);
    return 0;
}

int put_pair(json_t *object, const char *what, const char *text, struct pd_err *e)
{
    const char *equals = strchr(text, '=');
    char key[256];

    if (!equals || equals == text || (size_t)(equals - text) >= sizeof key)
        return pd_fail(e, PD_INVALID, "%s '%.60s': write NAME=VALUE", what, text);

    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    if (json_object_set_new(object, key, json_string(equals + 1)) < 0)
        return pd_fail(e, PD_INVALID, "%s %.60s: not UTF-8", what, key);
    return 0;
}

int check_id(const char *id, struct pd_err *e)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    if (strlen(id) == URL_ID_LEN && strspn(id, allowed) == URL_ID_LEN)
        return 0;
    return pd_fail(e, PD_INVALID, "'%.60s' is not a sandbox id: `paddock ls` lists them", id);
}

int check_pid(const char *pid, struct pd_err *e)
{
    size_t len = strlen(pid);
    if (len && len <= 32 && strspn(pid, "0123456789abcdef") == len)
        return 0;
    return pd_fail(e, PD_INVALID, "'%.60s' is not a pid: `paddock ps ID` lists them", pid);
}

int one_id(const char *command, char **args, int count, struct pd_err *e)
{
    if (count != 1)
        return pd_fail(e, PD_INVALID, "%s: give one id; see `paddock help %s`", command, command);
    return check_id(args[0], e);
}

int find_session(struct remote *r, const char *session, char ret[32], struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *found = NULL;

    buf_puts(&b, "/v1/sessions/");
    if (session_target(session, &b, e) < 0 || remote_get(r, buf_cstr(&b), &found, e) < 0)
        return -1;

    if (check_id(json_field(found, "id"), e) < 0)
        return pd_fail(e, PD_PROTOCOL, "the server answered a sandbox without an id");

    snprintf(ret, 32, "%s", json_field(found, "id"));
    return 0;
}

/* The names that the API uses, SIGHUP to SIGSYS and SIGRTMIN+n. */
static int signal_number(const char *name)
{
    static const char *const names[] = {
        "",     "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
        "SEGV", "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
        "TTOU", "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "IO",   "PWR",  "SYS"};
    unsigned n = 0;

    if (!*name)
        return 0;

    if (!strncmp(name, "SIG", 3))
        name += 3;
    for (size_t i = 1; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return (int)i;

    if (sscanf(name, "RTMIN+%2u", &n) == 1 || sscanf(name, "%2u", &n) == 1)
        return (int)(name[0] == 'R' ? 34 + n : n) & 0x7f;
    return !strcmp(name, "RTMIN") ? 34 : 9;
}

int end_status(const json_t *end)
{
    static const struct {
        const char *cause, *text;
    } causes[] = {
        {"timeout", "stopped by timeout: all its processes were ended"},
        {"oom", "stopped by oom: the sandbox's memory was used up"},
        {"pids", "stopped by pids: the sandbox has no process left"},
        {"disk", "stopped by disk: the sandbox has no space or files left"},
        {"output", "stopped by output: it wrote more than allowed"},
        {"syscall", "stopped by syscall: it made a call that is not allowed"},
        {"killed", "stopped: somebody ended it"},
        {"abandoned", "stopped: nobody watched it any more"},
        {"sandbox", "stopped: the sandbox was ended"},
    };
    const char *cause = json_field(end, "stopped_by");

    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (!strcmp(causes[i].cause, cause))
            fprintf(stderr, "paddock: %s\n", causes[i].text);

    if (json_field_is_true(end, "timed_out"))
        return 124;

    int signal = signal_number(json_field(end, "signal"));
    return signal ? 128 + signal : (int)json_field_int(end, "exit_code") & 0xff;
}
