/* exec and logs: commands, their output and their end. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "client/stream.h"

#include <errno.h>
#include <openssl/evp.h>
#include <signal.h>
#include <sys/stat.h>

#define INPUT_MAX (1u << 20) /* what a request can carry */

const char exec_usage[] =
    "usage: paddock exec [OPTIONS] ID [OPTIONS] [--] COMMAND [ARGUMENT...]\n"
    "       paddock exec [OPTIONS] --session USER/THREAD [--] COMMAND [ARGUMENT...]\n\n"
    "Runs a command in a sandbox, with its output and its exit status.\n\n"
    "  --session USER/THREAD  the sandbox of this user and thread\n"
    "  -c, --command LINE     a line for bash instead of COMMAND; cd and export hold for the next\n"
    "  -d, --detach           leave it running and print its pid\n"
    "  -e, --env K=V          set a variable\n"
    "  -w, --workdir DIR      start in this directory\n"
    "  -u, --user USER        user (default) or root\n"
    "  --mode MODE            what it may run in: local (no isolation), sandbox, or auto, which\n"
    "                         judges the command\n"
    "  --timeout TIME         end it after this time, such as 30s; default: never\n"
    "  --idempotency-key KEY  a retry with the same key joins the command of the first time\n"
    "  --raw                  do not escape what could confuse a terminal\n"
    "  --json                 print the result as JSON\n";

struct exec {
    json_t *body, *env;
    const char *sandbox, *session, *line, *key;
    int detach, raw, json;
};

static int set_text(json_t *body, const char *what, const char *field, const char *v,
                    struct pd_err *e)
{
    if (!v)
        return -1;

    if (json_object_set_new(body, field, json_string(v)) < 0)
        return pd_fail(e, PD_INVALID, "%s: the value is not UTF-8", what);
    return 0;
}

static int parse_exec_option(struct exec *x, struct options *o, struct pd_err *e)
{
    int *flag = options_is(o, "-d", "--detach") ? &x->detach
                : options_is(o, NULL, "--raw")  ? &x->raw
                : options_is(o, NULL, "--json") ? &x->json
                                                : NULL;
    if (flag) {
        *flag = 1;
        return options_no_value(o, e);
    }

    const char **text = options_is(o, NULL, "--session")           ? &x->session
                        : options_is(o, "-c", "--command")         ? &x->line
                        : options_is(o, NULL, "--idempotency-key") ? &x->key
                                                                   : NULL;
    if (text)
        return (*text = options_value(o, e)) ? 0 : -1;

    if (options_is(o, "-w", "--workdir"))
        return set_text(x->body, "--workdir", "cwd", options_value(o, e), e);
    if (options_is(o, "-u", "--user"))
        return set_text(x->body, "--user", "user", options_value(o, e), e);
    if (options_is(o, NULL, "--mode"))
        return set_text(x->body, "--mode", "mode", options_value(o, e), e);

    const char *v;
    if (options_is(o, "-e", "--env"))
        return (v = options_value(o, e)) ? put_pair(x->env, "--env", v, e) : -1;
    if (options_is(o, NULL, "--timeout")) {
        uint64_t ns;
        if (!(v = options_value(o, e)) ||
            parse_duration("--timeout", v, 86400 * NS_PER_S, &ns, e) < 0)
            return -1;
        return json_object_set_new(x->body, "timeout_s", json_real((double)ns / (double)NS_PER_S));
    }
    return usage_unknown(o, e);
}

/* Options may stand before and behind the id; the command begins behind `--` or with the first
 * argument that is neither. */
static int parse_exec(struct exec *x, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);

    json_object_set_new(x->body, "timeout_s", json_integer(0));

    for (;;) {
        while (options_next(&o))
            if (parse_exec_option(x, &o, e) < 0)
                return -1;
        if (x->sandbox || x->session || o.at >= o.argc)
            break;
        x->sandbox = o.argv[o.at++];
        if (!strcmp(o.argv[o.at - 2], "--"))
            break;
    }

    if (x->sandbox && x->session)
        return pd_fail(e, PD_INVALID, "either an id or --session, not both");
    if (!x->sandbox && !x->session)
        return pd_fail(e, PD_INVALID, "exec: which sandbox? Give an id, or --session USER/THREAD");
    if (x->sandbox && check_id(x->sandbox, e) < 0)
        return -1;

    if (!x->line == (o.at >= o.argc))
        return pd_fail(e, PD_INVALID,
                       x->line ? "either --command or a command, not both" : "no command");

    if (json_object_size(x->env))
        json_object_set(x->body, "env", x->env);
    if (x->line)
        return set_text(x->body, "--command", "command", x->line, e);

    json_t *list = json_array();
    json_object_set_new(x->body, "argv", list);
    for (int i = o.at; i < o.argc; i++)
        if (json_array_append_new(list, json_string(o.argv[i])) < 0)
            return pd_fail(e, PD_INVALID, "argument %d of the command is not UTF-8", i - o.at);
    return 0;
}

enum input { INPUT_NONE, INPUT_CARRIED, INPUT_STREAMED };

/* Puts all of standard input into the request. 1 when it is too much for that. */
static int carry_input(struct exec *x, struct pd_err *e)
{
    auto_buf b = BUF_INIT(INPUT_MAX + 1);

    for (;;) {
        size_t room = INPUT_MAX + 1 - b.len;
        uint8_t *at = room ? buf_reserve(&b, room > 65536 ? 65536 : room) : NULL;
        if (!room)
            return 1;

        ssize_t n = at ? read(STDIN_FILENO, at, room > 65536 ? 65536 : room) : -1;
        if (n < 0)
            return pd_fail_sys(e, "read standard input");
        if (n == 0)
            break;
        b.len += (size_t)n;
    }

    auto_buf text = BUF_INIT(INPUT_MAX * 2);
    uint8_t *to = buf_reserve(&text, b.len / 3 * 4 + 8);
    if (!to)
        return pd_fail(e, PD_CAPACITY, "no memory for standard input");
    int len = EVP_EncodeBlock(to, b.len ? b.data : (const uint8_t *)"", (int)b.len);
    json_object_set_new(x->body, "stdin_base64", json_stringn((char *)to, (size_t)len));
    return 0;
}

/* A terminal and /dev/null give nothing; a small file travels with the request; a pipe may never
 * end, so it is streamed. */
static int plan_input(struct exec *x, enum input *ret, struct pd_err *e)
{
    struct stat st;

    *ret = INPUT_NONE;
    if (x->detach || fstat(STDIN_FILENO, &st) < 0 || S_ISCHR(st.st_mode))
        return 0;

    if (!S_ISREG(st.st_mode) && !x->json) {
        *ret = INPUT_STREAMED;
        return 0;
    }

    off_t at = S_ISREG(st.st_mode) ? lseek(STDIN_FILENO, 0, SEEK_CUR) : 0;
    if (S_ISREG(st.st_mode) && at >= 0 && st.st_size - at > (off_t)INPUT_MAX && !x->json) {
        *ret = INPUT_STREAMED;
        return 0;
    }

    int too_much = carry_input(x, e);
    if (too_much > 0)
        return pd_fail(e, PD_INVALID, "--json: standard input is longer than %u bytes", INPUT_MAX);
    *ret = INPUT_CARRIED;
    return too_much;
}

static int begin_exec(struct stream *s, const struct exec *x, const char *accept, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);

    buf_printf(&b, "/v1/sandboxes/%s/exec", s->sandbox);
    struct remote_request q = {.method = HTTP_POST,
                               .target = buf_cstr(&b),
                               .json = x->body,
                               .accept = accept,
                               .key = x->key};
    return remote_begin(s->remote, &q, e) < 0 ? -1 : remote_answer(s->remote, e);
}

static int exec_json(struct stream *s, struct exec *x, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *answer = NULL;

    if (x->detach)
        json_object_set_new(x->body, "detached", json_true());

    buf_printf(&b, "/v1/sandboxes/%s/exec", s->sandbox);
    struct remote_request q = {.method = HTTP_POST,
                               .target = buf_cstr(&b),
                               .json = x->body,
                               .key = x->key,
                               .is_patient = 1};
    if (remote_call(s->remote, &q, &answer, e) < 0)
        return -1;

    if (x->detach && !x->json)
        return printf("%lld\n", (long long)json_field_int(answer, "pid")) < 0 ? EXIT_FAILED : 0;
    if (print_json(answer) < 0)
        return EXIT_FAILED;
    return x->detach ? 0 : end_status(answer);
}

/* Standard input is a pipe: the command becomes a process that is attached to, and ended if we give
 * up. */
static int exec_attached(struct stream *s, struct exec *x, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *process = NULL;

    json_object_set_new(x->body, "stdin", json_true());
    buf_printf(&b, "/v1/sandboxes/%s/processes", s->sandbox);
    struct remote_request q = {
        .method = HTTP_POST, .target = buf_cstr(&b), .json = x->body, .key = x->key};
    if (remote_call(s->remote, &q, &process, e) < 0)
        return -1;

    snprintf(s->process, sizeof s->process, "%s", json_field(process, "process_id"));
    int done = stream_attach(s, ATTACH_INPUT, e);
    if (done == 0 && s->end)
        return 0;

    buf_clear(&b);
    buf_printf(&b, "/v1/sandboxes/%s/processes/%s", s->sandbox, s->process);
    struct remote_request end = {.method = HTTP_DELETE, .target = buf_cstr(&b)};
    (void)remote_call(s->remote, &end, NULL, NULL);
    return done;
}

static int exec_streamed(struct stream *s, struct exec *x, struct pd_err *e)
{
    if (begin_exec(s, x, "text/event-stream", e) < 0)
        return -1;

    snprintf(s->process, sizeof s->process, "%s", remote_header(s->remote, "X-Process-Id"));
    int done = stream_read_events(s, e);
    if (done < 0 && e->code == PD_LOST && s->process[0])
        return stream_follow(s, e);
    return done;
}

static int finish(struct stream *s, int done, const struct pd_err *e)
{
    sink_end(&s->out);
    sink_end(&s->err);
    int status = done < 0 ? stream_fail(e) : s->end ? end_status(s->end) : 128 + s->given_up;
    json_decref(s->end);
    fd_done(&s->signals);
    return status;
}

static int run_exec(struct exec *x)
{
    struct pd_err e;
    enum input input;
    char id[32];

    auto_remote *r = remote_new(&e);
    if (!r || (x->session && find_session(r, x->session, id, &e) < 0))
        return client_fail(&e);

    if (plan_input(x, &input, &e) < 0)
        return e.code == PD_INVALID ? usage_fail(&e) : client_fail(&e);

    struct stream s = {.remote = r, .sandbox = x->session ? id : x->sandbox, .signals = -1};
    sink_init(&s.out, STDOUT_FILENO, x->raw);
    sink_init(&s.err, STDERR_FILENO, x->raw);

    if (x->detach || x->json) {
        int status = exec_json(&s, x, &e);
        return status < 0 ? client_fail(&e) : status;
    }

    if ((s.signals = signals_open(&e)) < 0)
        return client_fail(&e);
    int done = input == INPUT_STREAMED ? exec_attached(&s, x, &e) : exec_streamed(&s, x, &e);
    return finish(&s, done, &e);
}

int cmd_exec(int argc, char **argv)
{
    struct pd_err e;
    json_auto_t *body = json_object(), *env = json_object();
    struct exec x = {.body = body, .env = env};

    if (parse_exec(&x, argc, argv, &e) < 0)
        return usage_fail(&e);
    return run_exec(&x);
}

const char logs_usage[] =
    "usage: paddock logs [OPTIONS] ID PID\n\n"
    "Prints the output of a command, running or ended, as far as it is kept.\n\n"
    "  -f, --follow     go on until it ends\n"
    "  --stream STREAM  only stdout or only stderr\n"
    "  --raw            do not escape what could confuse a terminal\n";

static int copy_stream(struct stream *s, const char *name, int follow, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    int which = !strcmp(name, "stderr");
    char bytes[65536];
    ssize_t n;

    buf_printf(&b, "/v1/sandboxes/%s/processes/%s/output?stream=%s&offset=%llu%s", s->sandbox,
               s->process, name, (unsigned long long)s->offset[which],
               follow ? "&follow=true" : "");

    struct remote_request q = {.method = HTTP_GET,
                               .target = buf_cstr(&b),
                               .accept = "application/octet-stream",
                               .is_patient = follow};
    if (remote_begin(s->remote, &q, e) < 0 || remote_answer(s->remote, e) < 0)
        return -1;

    while ((n = remote_read_or(s->remote, bytes, sizeof bytes, s->signals, e)) > 0 || n == -2) {
        if (n == -2 && (s->given_up = signals_next(s->signals)))
            return 0;
        if (n > 0 && sink_write(which ? &s->err : &s->out, bytes, (size_t)n, e) < 0)
            return -1;
    }
    return n < 0 ? -1 : 0;
}

/* The oldest offsets that are kept are where a log begins. */
static int find_begin(struct stream *s, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *process = NULL;

    buf_printf(&b, "/v1/sandboxes/%s/processes/%s", s->sandbox, s->process);
    if (remote_get(s->remote, buf_cstr(&b), &process, e) < 0)
        return -1;

    s->offset[0] = (uint64_t)json_field_int(process, "stdout_first");
    s->offset[1] = (uint64_t)json_field_int(process, "stderr_first");
    return 0;
}

static int copy_logs(struct stream *s, const char *only, int follow, struct pd_err *e)
{
    if (find_begin(s, e) < 0)
        return -1;

    if (only)
        return copy_stream(s, only, follow, e);
    if (follow)
        return stream_follow(s, e);
    return copy_stream(s, "stdout", 0, e) < 0 ? -1 : copy_stream(s, "stderr", 0, e);
}

int cmd_logs(int argc, char **argv)
{
    struct pd_err e;
    struct options o = OPTIONS_INIT(argc, argv);
    const char *only = NULL;
    int follow = 0, raw = 0, count;

    o.mixed = 1;
    while (options_next(&o)) {
        int bad;
        if (options_is(&o, NULL, "--stream")) {
            only = options_value(&o, &e);
            bad = !only ? -1
                  : strcmp(only, "stdout") && strcmp(only, "stderr")
                      ? pd_fail(&e, PD_INVALID, "--stream '%.40s': stdout or stderr", only)
                      : 0;
        } else if (options_is(&o, "-f", "--follow") || options_is(&o, NULL, "--raw")) {
            *(options_is(&o, NULL, "--raw") ? &raw : &follow) = 1;
            bad = options_no_value(&o, &e);
        } else {
            bad = usage_unknown(&o, &e);
        }

        if (bad < 0)
            return usage_fail(&e);
    }

    char **args = options_arguments(&o, &count);
    if (count != 2) {
        pd_fail(&e, PD_INVALID, "logs: write `paddock logs [-f] ID PID`");
        return usage_fail(&e);
    }
    if (check_id(args[0], &e) < 0 || check_pid(args[1], &e) < 0)
        return usage_fail(&e);

    auto_remote *r = remote_new(&e);
    struct stream s = {.remote = r, .sandbox = args[0], .signals = -1};
    snprintf(s.process, sizeof s.process, "%s", args[1]);
    sink_init(&s.out, STDOUT_FILENO, raw);
    sink_init(&s.err, STDERR_FILENO, raw);

    int done = r ? copy_logs(&s, only, follow, &e) : -1;
    sink_end(&s.out);
    sink_end(&s.err);
    json_decref(s.end);
    return done < 0 ? stream_fail(&e) : 0;
}
