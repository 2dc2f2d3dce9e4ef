/* `paddock shell`: a terminal in a sandbox. Starts a shell there, or takes one that runs
 * (--attach), puts the terminal here into raw mode while it is attached, and restores it however
 * that ends. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "client/stream.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

const char shell_usage[] =
    "usage: paddock shell [OPTIONS] ID [OPTIONS] [--] [COMMAND [ARGUMENT...]]\n"
    "       paddock shell [OPTIONS] --session USER/THREAD [--] [COMMAND [ARGUMENT...]]\n\n"
    "Opens a terminal in a sandbox: bash, unless told. Ctrl-] leaves it running.\n\n"
    "  --session USER/THREAD  the sandbox of this user and thread\n"
    "  --attach PID           go back to one that is running\n"
    "  -e, --env K=V          set a variable\n"
    "  -w, --workdir DIR      start in this directory\n"
    "  -u, --user USER        user (default) or root\n";

/* A server that is restarted is back within seconds. */
#define RETRIES       20
#define RETRY_WAIT_MS 500

struct shell {
    json_t *body, *env;
    const char *sandbox, *session, *pid;
};

static int parse_shell_option(struct shell *x, struct options *o, struct pd_err *e)
{
    int is_env = options_is(o, "-e", "--env"), is_workdir = options_is(o, "-w", "--workdir");

    int is_user = options_is(o, "-u", "--user"), is_session = options_is(o, NULL, "--session");
    if (!is_env && !is_workdir && !is_user && !is_session && !options_is(o, NULL, "--attach"))
        return usage_unknown(o, e);

    const char *v = options_value(o, e);
    if (!v)
        return -1;

    if (is_env)
        return put_pair(x->env, "--env", v, e);
    if (is_workdir || is_user) {
        if (json_object_set_new(x->body, is_user ? "user" : "cwd", json_string(v)) < 0)
            return pd_fail(e, PD_INVALID, "%s: the value is not UTF-8", o->name);
        return 0;
    }
    *(is_session ? &x->session : &x->pid) = v;
    return 0;
}

static int parse_shell(struct shell *x, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);

    for (;;) {
        while (options_next(&o))
            if (parse_shell_option(x, &o, e) < 0)
                return -1;
        if (x->sandbox || x->session || o.at >= o.argc)
            break;
        x->sandbox = o.argv[o.at++];
    }

    if (!x->sandbox == !x->session)
        return pd_fail(e, PD_INVALID, "shell: give an id or --session USER/THREAD");
    if (x->sandbox && check_id(x->sandbox, e) < 0)
        return -1;
    if (x->pid && check_pid(x->pid, e) < 0)
        return -1;
    if (x->pid && o.at < o.argc)
        return pd_fail(e, PD_INVALID, "either --attach or a command, not both");

    json_t *argv_list = json_array();
    json_object_set_new(x->body, "argv", argv_list);
    for (int i = o.at; i < o.argc; i++)
        if (json_array_append_new(argv_list, json_string(o.argv[i])) < 0)
            return pd_fail(e, PD_INVALID, "argument %d of the command is not UTF-8", i - o.at);

    if (o.at >= o.argc) {
        json_array_append_new(argv_list, json_string("bash"));
        json_array_append_new(argv_list, json_string("-l"));
    }
    return 0;
}

static int start(struct stream *s, struct shell *x, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *process = NULL;
    struct winsize size;

    const char *term = getenv("TERM");
    if (term && !json_object_get(x->env, "TERM"))
        json_object_set_new(x->env, "TERM", json_string(term));
    if (json_object_size(x->env))
        json_object_set(x->body, "env", x->env);

    json_object_set_new(x->body, "pty", json_true());
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col) {
        json_object_set_new(x->body, "rows", json_integer(size.ws_row));
        json_object_set_new(x->body, "cols", json_integer(size.ws_col));
    }

    buf_printf(&b, "/v1/sandboxes/%s/processes", s->sandbox);
    struct remote_request q = {.method = HTTP_POST, .target = buf_cstr(&b), .json = x->body};
    if (remote_call(s->remote, &q, &process, e) < 0)
        return -1;

    snprintf(s->process, sizeof s->process, "%lld", (long long)json_field_int(process, "pid"));
    return 0;
}

/* When a program is left running, the terminal keeps what that had switched on: colours, a hidden
 * cursor, mouse reports, bracketed paste, the other screen. */
static void reset_terminal(void)
{
    static const char off[] = "\033[0m\033[?25h\033[?1000l\033[?1002l\033[?1003l\033[?1006l"
                              "\033[?2004l\033[?1049l\033[?1l\033>";
    (void)fd_write_all(STDOUT_FILENO, off, sizeof off - 1);
}

/* Attaches again when a server that restarts cut the connection. */
static int attach(struct stream *s, struct pd_err *e)
{
    int done = -1;

    for (int i = 0; i < RETRIES; i++) {
        uint64_t before = s->offset[0];
        done = stream_attach(s, ATTACH_KEYS, e);
        if (done >= 0 || (e->code != PD_LOST && e->code != PD_SHUTTING_DOWN))
            break;

        if (s->offset[0] > before)
            i = 0;
        struct pollfd p = {.fd = s->signals, .events = POLLIN};
        if (poll(&p, 1, RETRY_WAIT_MS) > 0)
            break;
    }
    return done;
}

static int run_shell(struct shell *x, struct stream *s, struct pd_err *e)
{
    struct termios before, raw;

    if (x->pid)
        snprintf(s->process, sizeof s->process, "%s", x->pid);
    else if (start(s, x, e) < 0)
        return -1;

    if ((s->signals = signals_open(e)) < 0)
        return -1;
    if (tcgetattr(STDIN_FILENO, &before) < 0)
        return pd_fail_sys(e, "read the terminal's settings");

    raw = before;
    cfmakeraw(&raw);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);

    int done = attach(s, e);
    if (!s->end)
        reset_terminal();
    tcsetattr(STDIN_FILENO, TCSADRAIN, &before);

    if (done == 1)
        fprintf(stderr, "\npaddock: left; `paddock shell --attach %s %s` goes back\n", s->process,
                s->sandbox);
    return done;
}

int cmd_shell(int argc, char **argv)
{
    struct pd_err e;
    json_auto_t *body = json_object(), *env = json_object();
    struct shell x = {.body = body, .env = env};
    char id[32];

    if (parse_shell(&x, argc, argv, &e) < 0)
        return usage_fail(&e);
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        pd_fail(&e, PD_INVALID, "shell needs a terminal; `paddock exec` does without");
        return usage_fail(&e);
    }

    auto_remote *r = remote_new(&e);
    if (!r || (x.session && find_session(r, x.session, id, &e) < 0))
        return client_fail(&e);

    struct stream s = {.remote = r, .sandbox = x.session ? id : x.sandbox, .signals = -1};
    /* The sandbox was given a terminal: what it says to it is what was asked for. */
    sink_init(&s.out, STDOUT_FILENO, 1);
    sink_init(&s.err, STDERR_FILENO, 1);

    int done = run_shell(&x, &s, &e);
    int status = done < 0 ? client_fail(&e) : s.end ? end_status(s.end) : 0;

    json_decref(s.end);
    fd_done(&s.signals);
    return status;
}
