/* How this works: each output is written anew, line by line, with one word in the place of every
 * path of a workspace or home, and the two are compared as bytes. Of outputs that are longer than
 * what is kept of them the common beginning is compared, less what a replacement may have moved. */
#include "router/parity.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/json.h"

#include <ctype.h>

#define PLACE "/~" /* the workspace, or the home: at some providers they are one */
#define SLACK 4096u

/* ---- normalising ---- */

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.' || c == '~';
}

/* The length of `path` if it stands at `at`, whole; 0 otherwise. */
static size_t path_at(const char *text, size_t len, size_t at, const char *path)
{
    size_t n = strlen(path);
    if (n < 2 || len - at < n || memcmp(text + at, path, n) != 0)
        return 0;
    if ((at && is_name(text[at - 1])) || (at + n < len && is_name(text[at + n])))
        return 0;
    return n;
}

/* "bash: line 3: x: not found", "/bin/sh: 1: x: not found": the length of what is before the
 * complaint itself; 0: it is none. */
static size_t shell_prefix(const char *text, size_t len)
{
    static const char *const dirs[] = {"/bin/", "/usr/bin/"};
    static const char *const shells[] = {"bash: ", "sh: ", "dash: "};
    size_t at = 0, start;

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs && !at; i++)
        if (len > strlen(dirs[i]) && !memcmp(text, dirs[i], strlen(dirs[i])))
            at = strlen(dirs[i]);
    start = at;
    for (size_t i = 0; i < sizeof shells / sizeof *shells && at == start; i++)
        if (len - at > strlen(shells[i]) && !memcmp(text + at, shells[i], strlen(shells[i])))
            at += strlen(shells[i]);
    if (at == start)
        return 0;

    size_t number = at;
    if (len - number > 5 && !memcmp(text + number, "line ", 5))
        number += 5;
    size_t digits = number;
    while (digits < len && isdigit((unsigned char)text[digits]))
        digits++;
    if (digits > number && len - digits >= 2 && !memcmp(text + digits, ": ", 2))
        at = digits + 2;
    return at;
}

static void put_line(const char *text, size_t len, const char *const *places, struct buf *out)
{
    while (len && (text[len - 1] == ' ' || text[len - 1] == '\t' || text[len - 1] == '\r'))
        len--;

    for (size_t at = 0; at < len;) {
        size_t n = 0;
        for (unsigned i = 0; text[at] == '/' && places[i] && !n; i++)
            n = path_at(text, len, at, places[i]);
        if (n)
            buf_puts(out, PLACE);
        else
            buf_putc(out, text[at]);
        at += n ? n : 1;
    }
}

void parity_normalise(const struct parity_output *o, const char *workspace, const char *home,
                      bool is_err, struct buf *out)
{
    const char *const places[] = {workspace, home, "/workspace", "/home/user", NULL};

    for (size_t at = 0; at < o->len;) {
        const char *line = o->text + at, *end = memchr(line, '\n', o->len - at);
        size_t len = end ? (size_t)(end - line) : o->len - at;
        size_t prefix = is_err ? shell_prefix(line, len) : 0;

        if (prefix)
            buf_puts(out, "sh: ");
        put_line(line + prefix, len - prefix, places, out);
        if (end)
            buf_putc(out, '\n');
        at += len + (end != NULL);
    }
}

/* ---- comparing ---- */

static bool is_same_output(const struct parity_result *a, const struct parity_result *b, unsigned i)
{
    const struct parity_output *x = &a->output[i], *y = &b->output[i];
    bool x_cut = x->size > x->len, y_cut = y->size > y->len;
    auto_buf one = BUF_INIT(2 * PARITY_OUTPUT_MAX), other = BUF_INIT(2 * PARITY_OUTPUT_MAX);
    if (x_cut != y_cut)
        return false;

    parity_normalise(x, a->workspace, a->home, i == 1, &one);
    parity_normalise(y, b->workspace, b->home, i == 1, &other);
    if (!x_cut)
        return one.len == other.len && (!one.len || !memcmp(one.data, other.data, one.len));

    size_t common = one.len < other.len ? one.len : other.len;
    common = common > SLACK ? common - SLACK : 0;
    return !common || !memcmp(one.data, other.data, common);
}

unsigned parity_compare(const struct parity_result *a, const struct parity_result *b)
{
    bool seen = a->has_tree && b->has_tree;
    unsigned differs = seen ? 0 : PARITY_UNSEEN;

    if (a->timed_out != b->timed_out)
        return PARITY_TIME | PARITY_UNSEEN;
    if (a->exit_code != b->exit_code || a->signal != b->signal)
        differs |= PARITY_EXIT;
    if (!is_same_output(a, b, 0))
        differs |= PARITY_STDOUT;
    if (!is_same_output(a, b, 1))
        differs |= PARITY_STDERR;
    if (seen && memcmp(a->tree, b->tree, sizeof a->tree) != 0)
        differs |= PARITY_FILES;
    return differs;
}

/* ---- counting ---- */

void parity_note(struct parity *p, enum parity_event event, unsigned differs)
{
    p->events[event]++;
    if (event != PARITY_COMPARED)
        return;

    p->equal += !(differs & ~(unsigned)PARITY_UNSEEN);
    p->exit += !!(differs & PARITY_EXIT);
    p->out += !!(differs & PARITY_STDOUT);
    p->err += !!(differs & PARITY_STDERR);
    p->time += !!(differs & PARITY_TIME);
    p->files += !!(differs & PARITY_FILES);
    p->unseen += !!(differs & PARITY_UNSEEN);
}

static const char *const event_names[PARITY_EVENTS] = {"compared", "skipped", "dropped", "failed",
                                                       "given_up"};

void parity_json(const struct parity *p, const struct router_shadow *s, struct json *j)
{
    uint64_t all = p->events[PARITY_COMPARED];
    if (!s->name[0]) {
        json_none(j);
        return;
    }

    json_open(j, '{');
    json_member_cstr(j, "name", s->name);
    json_member_cstr(j, "provider", s->provider);
    for (unsigned i = 0; i < PARITY_EVENTS; i++)
        json_member_uint(j, event_names[i], p->events[i]);
    json_member_uint(j, "equal", p->equal);
    json_member_uint(j, "files_unseen", p->unseen);
    json_key(j, "score");
    if (all)
        json_milli(j, p->equal * 1000 / all);
    else
        json_none(j);

    json_key(j, "differ");
    json_open(j, '{');
    json_member_uint(j, "exit", p->exit);
    json_member_uint(j, "stdout", p->out);
    json_member_uint(j, "stderr", p->err);
    json_member_uint(j, "time", p->time);
    json_member_uint(j, "files", p->files);
    json_close(j, '}');
    json_close(j, '}');
}

void parity_metrics(const struct parity *p, const struct router_shadow *s, struct buf *out)
{
    static const char metric[] = "paddock_shadow_commands_total";
    if (!s->name[0])
        return;

    buf_printf(out,
               "# HELP %s Commands of the router's shadow by what became of them\n"
               "# TYPE %s counter\n",
               metric, metric);
    buf_printf(out, "%s{provider=\"%s\",result=\"equal\"} %llu\n", metric, s->provider,
               (unsigned long long)p->equal);
    buf_printf(out, "%s{provider=\"%s\",result=\"different\"} %llu\n", metric, s->provider,
               (unsigned long long)(p->events[PARITY_COMPARED] - p->equal));
    for (unsigned i = PARITY_SKIPPED; i < PARITY_GIVEN_UP; i++)
        buf_printf(out, "%s{provider=\"%s\",result=\"%s\"} %llu\n", metric, s->provider,
                   event_names[i], (unsigned long long)p->events[i]);
}
