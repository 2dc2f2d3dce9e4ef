/* `paddock code`: cells in a code context of a sandbox, from a prompt or from a file.
 *
 * A cell is one request whose answer is a stream of events, a JSON object on each line: what the
 * code writes, what it shows, its error, its end. Text goes to the terminal like the output of any
 * command, pictures to files when a directory for them was named. Ctrl-C interrupts the cell, not
 * this program: the variables stay. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/parse.h"
#include "client/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>

#define CODE_MAX  (1u << 20)  /* of a cell, as the server takes it */
#define LINE_MAX_ (24u << 20) /* of an event: 16 MiB of data, and its JSON */

const char code_usage[] =
    "usage: paddock code [OPTIONS] ID [OPTIONS] [FILE]\n"
    "       paddock code [OPTIONS] --session USER/THREAD [FILE]\n\n"
    "Runs code in a sandbox whose variables stay: FILE (- is standard input), or what is typed at\n"
    "a prompt. A block is ended by an empty line. Ctrl-C interrupts the code, Ctrl-D leaves.\n\n"
    "  --session USER/THREAD  the sandbox of this user and thread\n"
    "  --language LANGUAGE    python (default), javascript, typescript, bash, ...\n"
    "  --context CONTEXT      run in this context, not in the language's default one\n"
    "  -e, --env K=V          set a variable for this code\n"
    "  --timeout TIME         interrupt it after this time, such as 30s; default: never\n"
    "  --save DIR             write pictures to files in DIR\n"
    "  --raw                  do not escape what could confuse a terminal\n"
    "  --json                 print the result of FILE as JSON\n";

struct code {
    json_t *env;
    const char *sandbox, *session, *context, *file, *save;
    double timeout_s;
    int raw, json;
};

/* A cell that runs, and what becomes of its events. */
struct cell {
    const struct code *code;
    const char *sandbox;
    struct remote *remote;
    struct sink out, err;
    int signals;
    long long count;   /* the how manieth of its context it is */
    unsigned pictures; /* that it has shown */
    bool is_ended, is_interrupted;
    int given_up; /* the signal that made us leave, or 0 */
    int status;
};

static int parse_code_option(struct code *x, struct options *o, struct pd_err *e)
{
    int *flag = options_is(o, NULL, "--raw")    ? &x->raw
                : options_is(o, NULL, "--json") ? &x->json
                                                : NULL;
    if (flag) {
        *flag = 1;
        return options_no_value(o, e);
    }

    const char **text = options_is(o, NULL, "--session") ? &x->session
                        : options_is(o, NULL, "--language") || options_is(o, NULL, "--context")
                            ? &x->context
                        : options_is(o, NULL, "--save") ? &x->save
                                                        : NULL;
    if (text && text == &x->context && x->context)
        return pd_fail(e, PD_INVALID, "either --language or --context, and one of them");
    if (text)
        return (*text = options_value(o, e)) ? 0 : -1;

    const char *v;
    uint64_t ns;
    if (options_is(o, "-e", "--env"))
        return (v = options_value(o, e)) ? put_pair(x->env, "--env", v, e) : -1;
    if (!options_is(o, NULL, "--timeout"))
        return usage_unknown(o, e);

    if (!(v = options_value(o, e)) || parse_duration("--timeout", v, 86400 * NS_PER_S, &ns, e) < 0)
        return -1;
    x->timeout_s = (double)ns / (double)NS_PER_S;
    return 0;
}

static int parse_code(struct code *x, int argc, char **argv, struct pd_err *e)
{
    struct options o = OPTIONS_INIT(argc, argv);
    int count;

    o.mixed = 1;
    while (options_next(&o))
        if (parse_code_option(x, &o, e) < 0)
            return -1;

    char **args = options_arguments(&o, &count);
    if (!x->session && count)
        x->sandbox = *args++, count--;
    if (!x->sandbox && !x->session)
        return pd_fail(e, PD_INVALID, "code: which sandbox? Give an id, or --session USER/THREAD");
    if (x->sandbox && check_id(x->sandbox, e) < 0)
        return -1;
    if (count > 1)
        return pd_fail(e, PD_INVALID, "code: one FILE, not %d", count);

    if (count)
        x->file = *args;
    if (!x->context)
        x->context = "python";
    return 0;
}

static int write_text(struct sink *s, const char *text, struct pd_err *e)
{
    return sink_write(s, text, strlen(text), e);
}

/* The text, and a newline if it has none. */
static int write_line(struct sink *s, const char *text, struct pd_err *e)
{
    size_t len = strlen(text);
    if (write_text(s, text, e) < 0)
        return -1;
    return len && text[len - 1] == '\n' ? 0 : write_text(s, "\n", e);
}

/* ---- pictures ---- */

static int save_picture(struct cell *c, const char *kind, const json_t *base64, struct pd_err *e)
{
    auto_buf path = BUF_INIT(4096), data = BUF_INIT(LINE_MAX_);
    const char *text = json_string_value(base64);
    size_t len = json_string_length(base64);

    uint8_t *to = len % 4 == 0 ? buf_reserve(&data, len / 4 * 3 + 3) : NULL;
    int n = to ? EVP_DecodeBlock(to, (const uint8_t *)text, (int)len) : -1;
    if (n < 0)
        return pd_fail(e, PD_PROTOCOL, "the server sent a picture that is not base64");
    for (size_t i = len; i && text[i - 1] == '='; i--)
        n--;

    buf_printf(&path, "%s/cell-%lld-%u.%s", c->code->save, c->count, ++c->pictures, kind);
    const char *name = buf_cstr(&path);
    if (!name)
        return pd_fail(e, PD_INVALID, "--save: the path is too long");

    auto_fd fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || fd_write_all(fd, to, (size_t)n) < 0)
        return pd_fail_sys(e, "write %s", name);

    if (write_text(&c->out, "[picture: ", e) < 0 || write_text(&c->out, name, e) < 0)
        return -1;
    return write_text(&c->out, "]\n", e);
}

static int show_picture(struct cell *c, const json_t *event, const char *kind, struct pd_err *e)
{
    const json_t *picture = json_object_get(event, kind);
    char line[80];

    if (!json_is_string(picture))
        return 0;
    if (c->code->save)
        return save_picture(c, kind, picture, e);

    snprintf(line, sizeof line, "[picture: %s; --save DIR keeps it]\n", kind);
    return write_text(&c->out, line, e);
}

/* ---- events ---- */

static int show_result(struct cell *c, const json_t *event, struct pd_err *e)
{
    static const char *const texts[] = {"text", "markdown", "html", "latex", "javascript"};
    static const char *const pictures[] = {"png", "jpeg", "pdf"};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = json_field(event, texts[i]);
        if (!*text)
            continue;
        if (write_line(&c->out, text, e) < 0)
            return -1;
        break;
    }

    for (size_t i = 0; i < sizeof pictures / sizeof *pictures; i++)
        if (show_picture(c, event, pictures[i], e) < 0)
            return -1;
    return 0;
}

static int show_error(struct cell *c, const json_t *error, struct pd_err *e)
{
    const char *traceback = json_field(error, "traceback");

    c->status = 1;
    if (*traceback)
        return write_line(&c->err, traceback, e);
    if (write_text(&c->err, json_field(error, "name"), e) < 0 || write_text(&c->err, ": ", e) < 0 ||
        write_text(&c->err, json_field(error, "value"), e) < 0)
        return -1;
    return write_text(&c->err, "\n", e);
}

/* What is to be told of the end, and the status that goes with it. */
static void note_end(struct cell *c, const json_t *end)
{
    const char *reason = json_field(end, "reason");

    c->is_ended = true;
    if (!strcmp(reason, "timeout"))
        c->status = 124;
    if (!strcmp(json_field(end, "state"), "restarted"))
        fprintf(stderr, "paddock: the interpreter was started anew (%.40s): variables are gone\n",
                *reason ? reason : "it died");
    if (json_field_is_true(end, "truncated"))
        fprintf(stderr, "paddock: results were too large, and some were left out\n");
}

static int take_event(struct cell *c, const char *line, size_t len, struct pd_err *e)
{
    json_auto_t *event = json_loadb(line, len, JSON_ALLOW_NUL, NULL);
    const char *type = json_field(event, "type");

    if (!event)
        return pd_fail(e, PD_PROTOCOL, "the server sent an event that is not JSON");

    if (!strcmp(type, "stdout") || !strcmp(type, "stderr")) {
        const json_t *text = json_object_get(event, "text");
        if (!json_is_string(text))
            return 0;
        return sink_write(!strcmp(type, "stdout") ? &c->out : &c->err, json_string_value(text),
                          json_string_length(text), e);
    }
    if (!strcmp(type, "result"))
        return show_result(c, event, e);
    if (!strcmp(type, "error"))
        return show_error(c, event, e);
    if (!strcmp(type, "start"))
        c->count = json_field_int(event, "execution_count");
    if (!strcmp(type, "end"))
        note_end(c, event);
    return 0;
}

/* Takes the whole lines that were collected, and keeps the rest. */
static int take_lines(struct cell *c, struct buf *lines, struct pd_err *e)
{
    size_t at = 0;
    const char *end;

    if (lines->overflow)
        return pd_fail(e, PD_PROTOCOL, "the server sent an event of more than %u bytes", LINE_MAX_);

    while ((end = memchr(lines->data + at, '\n', lines->len - at))) {
        size_t len = (size_t)(end - (const char *)lines->data) - at;
        if (len && take_event(c, (const char *)lines->data + at, len, e) < 0)
            return -1;
        at += len + 1;
    }

    memmove(lines->data, lines->data + at, lines->len - at);
    lines->len -= at;
    return 0;
}

/* The first Ctrl-C interrupts the cell, by a connection of its own because this one is busy. Once
 * more, or another signal, and we leave: the server interrupts a cell that nobody waits for. */
static void take_signal(struct cell *c, int signal)
{
    struct pd_err e;

    if (signal == SIGWINCH || !signal)
        return;
    if (signal != SIGINT || c->is_interrupted) {
        c->given_up = signal;
        return;
    }

    c->is_interrupted = true;
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    auto_remote *r = remote_new(&e);

    buf_printf(&b, "/v1/sandboxes/%s/contexts/", c->sandbox);
    put_encoded(&b, c->code->context);
    buf_puts(&b, "/interrupt");
    struct remote_request q = {.method = HTTP_POST, .target = buf_cstr(&b)};
    if (!r || remote_call(r, &q, NULL, &e) < 0)
        (void)client_fail(&e);
}

static int read_events(struct cell *c, struct pd_err *e)
{
    auto_buf lines = BUF_INIT(LINE_MAX_);

    while (!c->is_ended && !c->given_up) {
        char bytes[65536];
        ssize_t n = remote_read_or(c->remote, bytes, sizeof bytes, c->signals, e);
        if (n == -2) {
            take_signal(c, signals_next(c->signals));
            continue;
        }
        if (n < 0)
            return -1;
        if (n == 0)
            return pd_fail(e, PD_LOST, "the connection broke off before the code had ended");

        buf_put(&lines, bytes, (size_t)n);
        if (take_lines(c, &lines, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- cells ---- */

static json_t *cell_body(const struct code *x, const char *text, size_t len)
{
    json_t *body =
        json_pack("{s:o?, s:f}", "code", json_stringn(text, len), "timeout_s", x->timeout_s);
    if (body && json_object_size(x->env))
        json_object_set(body, "env", x->env);
    return body;
}

/* Runs one cell. 0 with c->status, or -1 with *e. */
static int run_cell(struct cell *c, const char *text, size_t len, struct pd_err *e)
{
    auto_buf b = BUF_INIT(HTTP_TARGET_MAX);
    json_auto_t *body = cell_body(c->code, text, len), *answer = NULL;

    if (!body || !json_object_get(body, "code"))
        return pd_fail(e, PD_INVALID, "the code is not UTF-8");

    c->is_ended = c->is_interrupted = false;
    c->status = 0;
    buf_printf(&b, "/v1/sandboxes/%s/contexts/", c->sandbox);
    put_encoded(&b, c->code->context);
    buf_puts(&b, "/execute");
    struct remote_request q = {
        .method = HTTP_POST, .target = buf_cstr(&b), .json = body, .is_patient = 1};
    if (c->code->json) {
        if (remote_call(c->remote, &q, &answer, e) < 0)
            return -1;
        c->status = json_is_object(json_object_get(answer, "error"));
        return print_json(answer) < 0 ? pd_fail_sys(e, "write the result") : 0;
    }

    q.accept = "application/x-ndjson";
    if (remote_begin(c->remote, &q, e) < 0 || remote_answer(c->remote, e) < 0)
        return -1;

    int r = read_events(c, e);
    sink_end(&c->out);
    sink_end(&c->err);
    return r;
}

static int run_file(struct cell *c, struct pd_err *e)
{
    const char *name = c->code->file && strcmp(c->code->file, "-") ? c->code->file : NULL;
    auto_fd opened = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    auto_buf text = BUF_INIT(CODE_MAX);

    if (name && opened < 0)
        return pd_fail_sys(e, "open %.200s", name);

    for (;;) {
        char bytes[65536];
        ssize_t n = read(name ? opened : STDIN_FILENO, bytes, sizeof bytes);
        if (n < 0)
            return pd_fail_sys(e, "read %.200s", name ? name : "standard input");
        if (n == 0)
            break;
        if (buf_put(&text, bytes, (size_t)n) < 0)
            return pd_fail(e, PD_INVALID, "%.200s: more than %u bytes of code",
                           name ? name : "standard input", CODE_MAX);
    }

    return run_cell(c, text.len ? (const char *)text.data : "", text.len, e);
}

/* ---- the prompt ---- */

/* Does a line begin a block, which an empty line ends? */
static bool opens_block(const char *line, size_t len)
{
    while (len && strchr(" \t\n", line[len - 1]))
        len--;
    return len && strchr(":\\{([,", line[len - 1]);
}

enum typed { TYPED_LINE, TYPED_END, TYPED_INTERRUPT };

/* Appends a line of the terminal, which gives one at a time. */
static enum typed read_line(struct cell *c, struct buf *to)
{
    struct pollfd p[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                         {.fd = c->signals, .events = POLLIN}};

    for (;;) {
        char bytes[4096];
        if (poll(p, 2, -1) < 0)
            return TYPED_END;

        int signal = p[1].revents ? signals_next(c->signals) : 0;
        if (signal && signal != SIGWINCH) {
            c->given_up = signal == SIGINT ? 0 : signal;
            return signal == SIGINT ? TYPED_INTERRUPT : TYPED_END;
        }
        if (!p[0].revents)
            continue;

        ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
        if (n <= 0)
            return TYPED_END;
        buf_put(to, bytes, (size_t)n);
        if (bytes[n - 1] == '\n')
            return TYPED_LINE;
    }
}

/* Reads a cell. False when nothing more comes. */
static bool read_cell(struct cell *c, struct buf *cell)
{
    bool in_block = false;
    buf_clear(cell);

    for (;;) {
        (void)!write(STDOUT_FILENO, in_block ? "... " : ">>> ", 4);
        size_t before = cell->len;
        enum typed typed = read_line(c, cell);
        if (typed == TYPED_END)
            return !c->given_up && cell->len > 0;

        if (typed == TYPED_INTERRUPT) {
            (void)!write(STDOUT_FILENO, "\n", 1);
            buf_clear(cell);
            in_block = false;
            continue;
        }

        bool is_empty = cell->len - before == 1;
        if (is_empty && !before) {
            buf_clear(cell);
            continue;
        }
        in_block = in_block ? !is_empty
                            : opens_block((const char *)cell->data + before, cell->len - before);
        if (!in_block)
            return true;
    }
}

/* A cell that cannot be run is told, and the next one may be typed; without a server there is no
 * next one. */
static int run_prompt(struct cell *c, struct pd_err *e)
{
    auto_buf cell = BUF_INIT(CODE_MAX);

    while (!c->given_up && read_cell(c, &cell)) {
        if (run_cell(c, (const char *)cell.data, cell.len, e) == 0)
            continue;
        if (e->code == PD_LOST || (e->code == PD_CONFLICT && e->sys == EPIPE))
            return -1;
        (void)client_fail(e);
    }

    (void)!write(STDOUT_FILENO, "\n", 1);
    c->status = 0;
    return 0;
}

int cmd_code(int argc, char **argv)
{
    struct pd_err e;
    json_auto_t *env = json_object();
    struct code x = {.env = env};
    char id[32];

    if (parse_code(&x, argc, argv, &e) < 0)
        return usage_fail(&e);

    bool is_prompt = !x.file && isatty(STDIN_FILENO);
    if (is_prompt && x.json) {
        pd_fail(&e, PD_INVALID, "--json: is for a FILE, not for a prompt");
        return usage_fail(&e);
    }

    auto_remote *r = remote_new(&e);
    if (!r || (x.session && find_session(r, x.session, id, &e) < 0))
        return client_fail(&e);

    struct cell c = {.code = &x, .sandbox = x.session ? id : x.sandbox, .remote = r, .signals = -1};
    sink_init(&c.out, STDOUT_FILENO, x.raw);
    sink_init(&c.err, STDERR_FILENO, x.raw);
    if ((c.signals = signals_open(&e)) < 0)
        return client_fail(&e);

    int done = is_prompt ? run_prompt(&c, &e) : run_file(&c, &e);
    fd_done(&c.signals);
    return done < 0 ? stream_fail(&e) : c.given_up ? 128 + c.given_up : c.status;
}
