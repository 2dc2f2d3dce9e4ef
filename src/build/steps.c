/* How this works: a step is one command, or some. A command is words, never a text that was put
 * together from what a stranger said: scripts are constants and get their values as parameters. */
#include "build/steps.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "build/templates_in.h"
#include "build/unpack.h"
#include "core/follow.h"
#include "telemetry/log.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#define PIECE      16384u
#define READY_REST (200 * NS_PER_MS)
#define SPOOL_MAX  (1u << 20)
#define VALUE_MAX  (32u << 10)
#define UNPACKED   "/tmp/.paddock-build"

/* bash where there is one, as their clients expect; else sh. */
#define SHELL "if [ -x /bin/bash ]; then exec /bin/bash -c \"$1\"; else exec /bin/sh -c \"$1\"; fi"

/* Only what every shell can by itself: an image may have little else. */
static const char provision[] =
    "[ -d /etc ] || mkdir /etc || exit 1\n"
    "shell=/bin/sh; [ -x /bin/bash ] && shell=/bin/bash\n"
    "complete() {\n"
    "  root=; user=; all=\n"
    "  if [ -f \"$1\" ]; then\n"
    "    while IFS= read -r l || [ -n \"$l\" ]; do\n"
    "      case $l in root:*) root=1;; user:*) user=1;; esac\n"
    "      all=\"$all$l\n\"\n"
    "    done <\"$1\"\n"
    "  fi\n"
    "  [ \"$root\" ] && [ \"$user\" ] && return 0\n"
    "  [ \"$root\" ] || all=\"$2\n$all\"\n"
    "  [ \"$user\" ] || all=\"$3\n$all\"\n"
    "  printf '%s' \"$all\" >\"$1\"\n"
    "}\n"
    "complete /etc/passwd root:x:0:0:root:/root:$shell user:x:1000:1000::/home/user:$shell &&\n"
    "complete /etc/group root:x:0: user:x:1000:\n";

/* $1 directory, $2 its owner or nothing. Only what is made is given away. */
static const char make_workdir[] = "[ -d \"$1\" ] && exit 0\n"
                                   "first=$1; at=$1\n"
                                   "while [ ! -d \"$at\" ]; do first=$at; at=${at%/*}; "
                                   "[ \"$at\" ] || at=/; done\n"
                                   "mkdir -p \"$1\" || exit 1\n"
                                   "if [ \"$2\" ]; then chown -R \"$2:$2\" \"$first\"; fi\n";

/* $1 what was unpacked, $2 destination, absolute, $3 does it say that it is a directory, $4 owner
 * or nothing, $5 mode or nothing. As docker has it: a directory's contents go into the destination,
 * a file becomes the destination, or goes into it. The mode is for files. */
static const char put_in_place[] =
    "from=$1; to=$2; name=${from##*/}\n"
    "own() { if [ \"$owner\" ]; then chown -h -R \"$owner\" \"$1\"; fi; }\n"
    "owner=$4; mode=$5\n"
    "chmod_all() { for f in \"$1\"/* \"$1\"/.[!.]* \"$1\"/..?*; do\n"
    "  if [ -L \"$f\" ]; then :; elif [ -d \"$f\" ]; then chmod_all \"$f\" || return 1\n"
    "  elif [ -e \"$f\" ]; then chmod \"$mode\" \"$f\" || return 1; fi; done; }\n"
    "if [ ! -e \"$from\" ] && [ ! -L \"$from\" ]; then\n"
    "  echo \"nothing was sent under this name\" >&2; exit 1; fi\n"
    "own \"$from\" || exit 1\n"
    "if [ ! \"$mode\" ] || [ -L \"$from\" ]; then :\n"
    "elif [ -d \"$from\" ]; then chmod_all \"$from\" || exit 1\n"
    "else chmod \"$mode\" \"$from\" || exit 1; fi\n"
    "if [ -d \"$from\" ] && [ ! -L \"$from\" ]; then\n"
    "  if [ ! -d \"$to\" ]; then mkdir -p \"$to\" || exit 1; own \"$to\" || exit 1; fi\n"
    "  for f in \"$from\"/* \"$from\"/.[!.]* \"$from\"/..?*; do\n"
    "    if [ -e \"$f\" ] || [ -L \"$f\" ]; then cp -a \"$f\" \"$to/\" || exit 1; fi; done\n"
    "else\n"
    "  if [ \"$3\" ] || [ -d \"$to\" ]; then mkdir -p \"$to\" || exit 1; to=$to/$name\n"
    "  else dir=${to%/*}; mkdir -p \"${dir:-/}\" || exit 1; fi\n"
    "  rm -f \"$to\" && cp -a \"$from\" \"$to\" || exit 1\n"
    "fi\n";

static bool may_root(const struct job *j)
{
    return j->plan->profile == PROFILE_DEV;
}

static const char *word(const struct msg_list *l, unsigned n)
{
    uint32_t pos = 0;
    const char *text = NULL;
    for (unsigned i = 0; i <= n; i++)
        if (!(text = msg_list_next(l, &pos)))
            return "";
    return text;
}

/* ---- commands ---- */

struct command {
    const char *words[10]; /* NULL behind the last */
    const char *user, *cwd;
    const char *level; /* of its output in the log; NULL: it is not in the log */
    struct buf *value; /* its output, or NULL */
};

/* Whole lines to the log; the rest when it has ended. */
static void put_lines(struct job *j, struct buf *text, const char *level, bool is_last)
{
    size_t begin = 0;
    for (size_t i = 0; i < text->len; i++) {
        if (text->data[i] != '\n' && i - begin < BUILD_LINE_MAX)
            continue;
        if (i > begin)
            build_log_put(&j->log, level, j->step, text->data + begin, i - begin);
        begin = i + (text->data[i] == '\n');
    }
    if (is_last && begin < text->len)
        build_log_put(&j->log, level, j->step, text->data + begin, text->len - begin);

    size_t left = is_last ? 0 : text->len - begin;
    if (left)
        memmove(text->data, text->data + begin, left);
    text->len = left;
}

static int take_output(struct job *j, struct follow *f, const struct command *c,
                       struct buf lines[STREAM_COUNT], struct pd_err *e)
{
    static const char *const levels[STREAM_COUNT] = {NULL, "warn"};
    uint8_t piece[PIECE];

    for (unsigned s = 0; s < STREAM_COUNT; s++)
        for (;;) {
            ssize_t n = follow_read(f, s, piece, sizeof piece, e);
            if (n < 0)
                return -1;
            if (f->skipped && c->level)
                build_log_printf(&j->log, "warn", j->step, "%llu bytes of output are left out",
                                 (unsigned long long)f->skipped);
            if (n == 0)
                break;
            if (c->value && s == STREAM_OUT)
                buf_put(c->value, piece, (size_t)n);
            if (!c->level)
                continue;
            (void)buf_put(&lines[s], piece, (size_t)n);
            bool quiet = !levels[s] || strcmp(c->level, "info") != 0;
            put_lines(j, &lines[s], quiet ? c->level : levels[s], false);
        }
    return 0;
}

static int check_going_on(struct job *j, struct pd_err *e)
{
    if (atomic_load(&j->cancelled))
        return pd_fail(e, PD_LOST, "the build was cancelled");
    if (deadline_passed(j->until))
        return pd_fail(e, PD_TIMEOUT, "the build took longer than %u minutes",
                       (unsigned)(BUILD_TIME_NS / NS_PER_S / 60));
    return 0;
}

int step_rest(struct job *j, uint64_t ns, struct pd_err *e)
{
    struct pollfd p = {.fd = j->wake, .events = POLLIN};
    (void)poll(&p, 1, deadline_poll_ms(deadline_in(ns)));
    return check_going_on(j, e);
}

/* Until its end, which may be ours. */
static int attend(struct job *j, struct process *p, const struct command *c, struct pd_err *e)
{
    struct follow f;
    struct buf lines[STREAM_COUNT] = {BUF_INIT(4 * PIECE), BUF_INIT(4 * PIECE)};
    struct pd_err ignored;

    int r = follow_begin(&f, p, NULL, FOLLOW_TEXT, e);
    if (r < 0)
        return -1;
    for (;;) {
        follow_look(&f);
        r = take_output(j, &f, c, lines, e);
        if (r < 0 || f.ended)
            break;
        if ((r = check_going_on(j, e)) < 0)
            break;
        if ((r = follow_wait(&f, j->wake, POLLIN, j->until, e)) < 0)
            break;
    }
    follow_end(&f);

    if (r < 0)
        (void)process_stop(p, STOP_ABANDONED, &ignored);
    for (unsigned s = 0; s < STREAM_COUNT; s++) {
        if (c->level)
            put_lines(j, &lines[s], c->level, true);
        buf_done(&lines[s]);
    }
    return r < 0 ? -1 : 0;
}

static int fail_ended(const struct process_info *i, struct pd_err *e)
{
    if (i->signal)
        pd_fail(e, PD_INVALID, "signal %d", i->signal);
    else
        pd_fail(e, PD_INVALID, "exit status %d", i->exit_code);
    return 1;
}

static int fill_request(struct job *j, const struct command *c, struct msg_list_writer *argv,
                        struct process_request *ret, struct pd_err *e)
{
    for (unsigned i = 0; c->words[i]; i++)
        if (msg_list_add(argv, c->words[i]) < 0)
            return pd_fail(e, PD_TOO_LARGE, "the command is too long");
    *ret = (struct process_request){.argv = msg_list_of(argv),
                                    .env = msg_list_of(&j->context.env),
                                    .cwd = c->cwd,
                                    .user = c->user,
                                    .spool_max = SPOOL_MAX};
    return 0;
}

/* 0: it ended with 0. 1: with something else, or it could not be started. */
static int run(struct job *j, const struct command *c, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process_request r;
    struct process *p = NULL;
    struct process_info i;
    struct pd_err why = {0};
    bool known;

    int bad = check_going_on(j, e) < 0 || fill_request(j, c, &argv, &r, e) < 0;
    if (!bad) {
        r.unseen = true;
        bad = session_start(j->session, &r, &p, &known, e) < 0;
    }
    msg_list_writer_done(&argv);
    if (bad)
        return -1;

    int result = attend(j, p, c, e);
    process_get(p, &i, &why);
    if (result == 0 && i.refused)
        result = pd_fail(e, PD_INVALID, "%s", why.msg) < 0;
    else if (result == 0 && (i.signal || i.exit_code))
        result = fail_ended(&i, e);
    process_unref(p);
    return result;
}

/* The shell with a constant script and its parameters. */
static int run_script(struct job *j, const char *script, const char *a, const char *b,
                      const char *const *more, struct pd_err *e)
{
    struct command c = {.words = {"/bin/sh", "-c", script, "build", a, b},
                        .user = may_root(j) ? "root" : "user",
                        .cwd = "/",
                        .level = "info"};
    for (unsigned i = 0; more && more[i] && i < 3; i++)
        c.words[6 + i] = more[i];
    return run(j, &c, e);
}

int step_line(struct job *j, const char *line, const char *level, struct pd_err *e)
{
    struct command c = {.words = {"/bin/sh", "-c", SHELL, "build", line},
                        .user = j->context.user,
                        .cwd = j->context.workdir,
                        .level = level};
    return run(j, &c, e);
}

int step_start(struct job *j, const char *line, struct process **ret, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct command c = {.words = {"/bin/sh", "-c", SHELL, "start", line},
                        .user = j->context.user,
                        .cwd = j->context.workdir};
    struct process_request r;
    bool known;

    int bad = fill_request(j, &c, &argv, &r, e);
    if (bad == 0) {
        r.background = true;
        bad = session_start(j->session, &r, ret, &known, e);
    }
    msg_list_writer_done(&argv);
    return bad;
}

int step_provision(struct job *j, struct pd_err *e)
{
    if (run_script(j, provision, NULL, NULL, NULL, e) != 0)
        return pd_wrap(e, "give the image its users");
    return 0;
}

/* ---- steps ---- */

static bool is_user(const char *name)
{
    return !strcmp(name, "user") || !strcmp(name, "root");
}

/* In the words of E2B's builders, which clients look for. */
static int fail_command(const char *line, struct pd_err *e)
{
    struct pd_err why = *e;
    return pd_fail(e, PD_INVALID, "failed to run command '%.150s': %.180s", line, why.msg);
}

static int run_step(struct job *j, const struct msg_list *args, struct pd_err *e)
{
    const char *line = word(args, 0);
    char before[PLAN_USER_MAX];

    if (args->count > 1 && word(args, 1)[0] && !is_user(word(args, 1)))
        return pd_fail(e, PD_INVALID,
                       "failed to run command '%.150s': command failed: unauthenticated: invalid "
                       "username: '%.60s'",
                       line, word(args, 1));

    memcpy(before, j->context.user, sizeof before);
    if (args->count > 1 && word(args, 1)[0])
        snprintf(j->context.user, sizeof j->context.user, "%s", word(args, 1));
    build_log_printf(&j->log, "info", j->step, "RUN %.900s", line);
    int r = step_line(j, line, "info", e);
    memcpy(j->context.user, before, sizeof before);
    return r == 0 ? 0 : r < 0 ? -1 : fail_command(line, e);
}

/* As a shell expands it: of variables only, whatever else the value says. */
static int expand(struct job *j, const char *value, struct buf *out, struct pd_err *e)
{
    auto_buf line = BUF_INIT(2 * VALUE_MAX + 64);

    buf_puts(&line, "printf %s \"");
    for (const char *v = value; *v; v++) {
        if (*v == '\\' && v[1] == '$') {
            buf_puts(&line, "\\$");
            v++;
        } else {
            if (*v == '\\' || *v == '"' || *v == '`' || (*v == '$' && v[1] == '('))
                buf_putc(&line, '\\');
            buf_putc(&line, *v);
        }
    }
    buf_putc(&line, '"');
    const char *text = buf_cstr(&line);
    if (!text || line.overflow)
        return pd_fail(e, PD_TOO_LARGE, "the value is longer than %u bytes", VALUE_MAX);

    struct command c = {.words = {"/bin/sh", "-c", text},
                        .user = may_root(j) ? "root" : "user",
                        .cwd = "/",
                        .value = out};
    if (run(j, &c, e) != 0)
        return pd_wrap(e, "find out the value");
    return out->overflow || !buf_cstr(out) || memchr(out->data, 0, out->len)
               ? pd_fail(e, PD_TOO_LARGE, "the value is longer than %u bytes", VALUE_MAX)
               : 0;
}

static int env_step(struct job *j, const struct msg_list *args, struct pd_err *e)
{
    uint32_t pos = 0;
    for (const char *name; (name = msg_list_next(args, &pos));) {
        const char *value = msg_list_next(args, &pos);
        auto_buf text = BUF_INIT(VALUE_MAX);
        build_log_printf(&j->log, "info", j->step, "ENV %.100s", name);
        if (strchr(value, '$')) {
            if (expand(j, value, &text, e) < 0)
                return pd_wrap(e, "ENV %.60s", name);
            value = (const char *)text.data;
        }
        if (build_context_set(&j->context, name, value ? value : "", e) < 0)
            return -1;
    }
    return 0;
}

static int workdir_step(struct job *j, const struct msg_list *args, struct pd_err *e)
{
    char path[SPEC_PATH_MAX];

    build_log_printf(&j->log, "info", j->step, "WORKDIR %.900s", word(args, 0));
    if (plan_path(j->context.workdir, word(args, 0), path, e) < 0 ||
        run_script(j, make_workdir, path, may_root(j) ? j->context.user : "", NULL, e) != 0)
        return pd_wrap(e, "make the directory %.100s", word(args, 0));
    memcpy(j->context.workdir, path, sizeof path);
    return 0;
}

static int user_step(struct job *j, const struct msg_list *args, struct pd_err *e)
{
    const char *name = word(args, 0);
    build_log_printf(&j->log, "info", j->step, "USER %.60s", name);
    if (!is_user(name))
        return pd_fail(e, PD_INVALID,
                       "failed to create user '%.60s': commands of sandboxes run as 'user' or as "
                       "'root'",
                       name);
    snprintf(j->context.user, sizeof j->context.user, "%s", name);
    return 0;
}

static int copy_step(struct job *j, const struct build_step *s, const struct msg_list *args,
                     struct pd_err *e)
{
    char source[SPEC_PATH_MAX], from[SPEC_PATH_MAX + 64], to[SPEC_PATH_MAX], owner[140] = "";
    const char *dest = word(args, 1), *who = word(args, 2);
    size_t len = strlen(dest);

    build_log_printf(&j->log, "info", j->step, "COPY %.400s %.400s", word(args, 0), dest);
    if (plan_source(word(args, 0), source, e) < 0 || plan_path(j->context.workdir, dest, to, e) < 0)
        return -1;
    if (!who[0])
        who = j->context.user;
    if (may_root(j))
        snprintf(owner, sizeof owner, strchr(who, ':') ? "%.64s" : "%.64s:%.64s", who, who);

    auto_fd file = files_open(j->all->files, j->info.tenant, s->files, NULL, e);
    if (file < 0 || run_script(j, "rm -rf \"$1\" && mkdir -p \"$1\"", UNPACKED, "", NULL, e) != 0 ||
        unpack_file(j, file, UNPACKED, e) < 0)
        return pd_wrap(e, "COPY %.100s", word(args, 0));

    snprintf(from, sizeof from, UNPACKED "%s%s", source[0] ? "/" : "", source);
    bool is_directory = (len && dest[len - 1] == '/') || !strcmp(dest, ".");
    const char *const more[] = {is_directory ? "1" : "", owner, word(args, 3), NULL};
    int r = run_script(j, put_in_place, from, to, more, e);
    struct pd_err ignored;
    if (run_script(j, "chmod -R u+rwX \"$1\"; rm -rf \"$1\"", UNPACKED, "", NULL,
                   r ? &ignored : e) != 0)
        r = -1;
    return r ? pd_wrap(e, "COPY %.100s", word(args, 0)) : 0;
}

int step_run(struct job *j, const struct build_step *s, struct pd_err *e)
{
    struct msg_list args = msg_list_of(&s->args);
    switch (s->kind) {
    case STEP_RUN:
        return run_step(j, &args, e);
    case STEP_COPY:
        return copy_step(j, s, &args, e);
    case STEP_ENV:
        return env_step(j, &args, e);
    case STEP_WORKDIR:
        return workdir_step(j, &args, e);
    case STEP_USER:
    case STEP_KIND_COUNT:
        break;
    }
    return user_step(j, &args, e);
}

/* ---- sandboxes of a template ---- */

void template_start(struct session *s, const struct template_use *u)
{
    struct templates none = {0};
    struct build_plan plan = {.profile = u->build.profile};
    struct job j = {.all = &none,
                    .plan = &plan,
                    .session = s,
                    .wake = -1,
                    .log = {.fd = -1},
                    .until = deadline_in(START_PATIENCE_NS),
                    .context = u->context};
    struct process *started = NULL;
    struct pd_err e;
    int r = 0;

    snprintf(j.step, sizeof j.step, "start");
    if (u->start)
        r = step_start(&j, u->start, &started, &e);
    for (int again = 1; r == 0 && u->ready && again;) {
        again = step_line(&j, u->ready, NULL, &e);
        if (again < 0 || (again && step_rest(&j, READY_REST, &e) < 0))
            r = -1;
    }
    if (r < 0)
        log_warn("template.start", "template=%s error=%s", u->build.name, e.msg);
    if (started)
        process_unref(started);
}
