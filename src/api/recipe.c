/* Templates that are files (config/recipe.h), applied. How it works: what the file says goes into
 * the request for a sandbox wherever the request itself says nothing; then, in the sandbox that was
 * made, its files are written, its programs looked for and if need be installed, its start command
 * is started, and its ready check waited for. What cannot be had ends the sandbox, and the error
 * says what is missing. */
#include "api/sandbox.h"

#include "base/banned.h"
#include "base/character.h"
#include "base/json.h"
#include "config/config.h"
#include "config/recipe.h"
#include "core/egress.h"
#include "core/follow.h"

#define STEP_TIME     (20 * NS_PER_S)  /* a small step */
#define INSTALL_TIME  (600 * NS_PER_S) /* packages */
#define STOP_PATIENCE (5 * NS_PER_S)
#define SPOOL         (64u << 10)
#define TAIL          130u
#define USUAL_PATH                                                                                 \
    "PATH=/home/user/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* ---- the request ---- */

static bool has_variable(const struct msg_list *l, const char *pair)
{
    size_t len = strcspn(pair, "=") + 1;
    uint32_t pos = 0;

    for (const char *v; (v = msg_list_next(l, &pos));)
        if (!strncmp(v, pair, len))
            return true;
    return false;
}

int recipe_env(const struct recipe *t, struct msg_list_writer *env)
{
    struct msg_list before = msg_list_of(env);
    auto_buf asked = BUF_INIT(WIRE_PAYLOAD_MAX);
    int bad = 0;

    /* What is appended may move the text. */
    if (before.bytes && buf_put(&asked, before.text, before.bytes) < 0)
        return -1;
    before.text = before.bytes ? (const char *)asked.data : "";
    for (unsigned i = 0; i < t->env.count; i++)
        if (!has_variable(&before, t->env.items[i]))
            bad |= msg_list_add(env, t->env.items[i]);
    if (t->packages.count && !has_variable(&before, USUAL_PATH))
        bad |= msg_list_add(env, USUAL_PATH);
    return bad;
}

void recipe_limits(const struct recipe *t, struct limits *l)
{
    l->memory = t->memory ? t->memory : l->memory;
    l->pids = t->pids ? t->pids : l->pids;
    l->cpu_milli = t->cpu_milli ? t->cpu_milli : l->cpu_milli;
    l->disk = t->disk ? t->disk : l->disk;
}

enum egress_mode recipe_network(const struct call *c, const struct recipe *t, struct buf *rules)
{
    bool may_leave = config_egress(c->config, c->who.tenant) != EGRESS_OFF;
    bool must_leave = t->allow.count || t->secrets.count;

    /* What packages come from is of no use to whoever has them already. */
    if (!must_leave && !(may_leave && t->packages_from.count))
        return EGRESS_OFF;

    if (!rules->len)
        (void)buf_puts(rules, "layer list\n");
    for (unsigned i = 0; i < t->allow.count; i++)
        (void)buf_printf(rules, "allow %s\n", t->allow.items[i]);
    for (unsigned i = 0; i < t->packages_from.count; i++)
        (void)buf_printf(rules, "allow %s\n", t->packages_from.items[i]);
    for (unsigned i = 0; i < t->secrets.count; i++)
        (void)buf_printf(rules, "secret %s\n", t->secrets.items[i]);
    return EGRESS_LIST;
}

/* ---- steps in the sandbox ---- */

struct setting_up {
    struct call *c;
    struct session *session;
    const struct recipe *recipe;
    char tail[TAIL + 1]; /* what the last step has said, for people */
    int exit_code;
};

static int fail(const struct setting_up *u, enum pd_code code, struct pd_err *e, const char *what)
{
    return pd_fail(e, code, "template '%s': %.180s", u->recipe->name, what);
}

/* The end of what it has said, in one line without anything that a terminal obeys. */
static void keep_tail(struct setting_up *u, struct follow *f)
{
    size_t n = follow_tail(f, STREAM_ERR, u->tail, TAIL);

    if (n == 0)
        n = follow_tail(f, STREAM_OUT, u->tail, TAIL);
    while (n > 0 && (u->tail[n - 1] == '\n' || u->tail[n - 1] == ' '))
        n--;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)u->tail[i] < ' ' || u->tail[i] == 0x7f)
            u->tail[i] = ' ';
    u->tail[n] = 0;
}

/* Waits for a step's end, and ends it when its time is over or its client has gone. */
static int await(struct setting_up *u, struct process *p, uint64_t time, struct pd_err *e)
{
    struct follow f;
    struct process_info i;
    struct pd_err why;

    if (follow_begin(&f, p, NULL, 0, e) < 0)
        return -1;
    int r = follow_await_end(&f, conn_fd(u->c->r->conn), deadline_in(time), e);
    keep_tail(u, &f);

    if (r != 0) {
        bool late = r < 0 && e->code == PD_TIMEOUT;
        struct pd_err ignored;
        (void)process_stop(p, late ? STOP_TIMEOUT : STOP_ABANDONED, &ignored);
        (void)follow_await_end(&f, -1, deadline_in(STOP_PATIENCE), &ignored);
        r = r == 1 ? pd_fail(e, PD_LOST, "its client has gone") : -1;
    }
    follow_end(&f);

    process_get(p, &i, &why);
    u->exit_code = i.signal ? 128 + i.signal : i.exit_code;
    if (r == 0 && i.refused) {
        *e = why;
        r = -1;
    }
    return r;
}

/* Runs `script` by sh, with the words behind it as its arguments. `cwd` NULL: where commands of the
 * sandbox begin. */
static int step_in(struct setting_up *u, const char *cwd, const char *script,
                   const struct recipe_list *words, const char *input, const char *user,
                   uint64_t time, struct pd_err *e)
{
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct process *p = NULL;
    bool known = false;
    int bad = msg_list_add(&argv, "sh") | msg_list_add(&argv, "-c") | msg_list_add(&argv, script) |
              msg_list_add(&argv, "paddock");

    for (unsigned i = 0; words && i < words->count; i++)
        bad |= msg_list_add(&argv, words->items[i]);
    struct process_request r = {.argv = msg_list_of(&argv),
                                .cwd = cwd,
                                .user = user,
                                .input = input,
                                .input_len = input ? strlen(input) : 0,
                                .timeout_ns = time,
                                .spool_max = SPOOL,
                                .unseen = true};
    bad = bad ? pd_fail(e, PD_CAPACITY, "no memory for a command")
              : session_start(u->session, &r, &p, &known, e);
    msg_list_writer_done(&argv);
    if (bad < 0)
        return -1;

    bad = await(u, p, time, e);
    process_unref(p);
    return bad;
}

static int step(struct setting_up *u, const char *script, const struct recipe_list *words,
                const char *input, const char *user, uint64_t time, struct pd_err *e)
{
    return step_in(u, NULL, script, words, input, user, time, e);
}

/* The sandbox's workspace and home may be elsewhere (provider local): the one is where this script
 * runs, the other its HOME. */
static int write_files(struct setting_up *u, struct pd_err *e)
{
    static const char script[] = "case $1 in \"~/\"*) p=$HOME/${1#??} ;;\n"
                                 "/home/user/*) p=$HOME/${1#/home/user/} ;;\n"
                                 "/workspace/*) p=./${1#/workspace/} ;; *) p=$1 ;; esac\n"
                                 "mkdir -p -- \"$(dirname -- \"$p\")\" && cat >\"$p\"";

    for (unsigned i = 0; i < u->recipe->file_count; i++) {
        const struct recipe_file *file = &u->recipe->files[i];
        const struct recipe_list path = {.items = {file->path}, .count = 1};
        auto_buf text = BUF_INIT(RECIPE_TEXT_MAX + 2);

        /* Its last line has an end, too. */
        (void)buf_printf(&text, "%s%s", file->content, *file->content ? "\n" : "");
        if (step_in(u, "/workspace", script, &path, buf_cstr(&text), NULL, STEP_TIME, e) < 0)
            return -1;
        if (u->exit_code != 0) {
            char what[256];
            snprintf(what, sizeof what, "%.60s cannot be written: %s", file->path, u->tail);
            return fail(u, PD_INVALID, e, what);
        }
    }
    return 0;
}

/* 1: all programs are there. 0: u->tail has those that are not. */
static int find_programs(struct setting_up *u, struct pd_err *e)
{
    static const char script[] = "m=; for p; do command -v \"$p\" >/dev/null || m=\"$m $p\"; done\n"
                                 "[ -z \"$m\" ] || { echo $m; exit 9; }";

    if (step(u, script, &u->recipe->programs, NULL, NULL, STEP_TIME, e) < 0)
        return -1;
    if (u->exit_code != 0 && u->exit_code != 9)
        return fail(u, PD_INVALID, e, u->tail);
    return u->exit_code == 0;
}

static const struct {
    const char *kind, *user, *script;
} installers[] = {
    {"apt:", "root",
     "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && exec apt-get install -qq --yes "
     "--no-install-recommends -- \"$@\""},
    {"npm:", NULL,
     "exec npm install --global --prefix \"$HOME/.local\" --no-fund --no-audit --loglevel=error -- "
     "\"$@\""},
    {"pip:", NULL,
     "export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1; exec python3 -m pip "
     "install --user --quiet --no-warn-script-location -- \"$@\""},
};

static int install(struct setting_up *u, struct pd_err *e)
{
    const struct recipe_list *all = &u->recipe->packages;

    for (size_t k = 0; k < sizeof installers / sizeof *installers; k++) {
        struct recipe_list names = {0};
        for (unsigned i = 0; i < all->count; i++)
            if (!strncmp(all->items[i], installers[k].kind, 4))
                names.items[names.count++] = all->items[i] + 4;
        if (names.count == 0)
            continue;

        if (step(u, installers[k].script, &names, NULL, installers[k].user, INSTALL_TIME, e) < 0)
            return -1;
        if (u->exit_code != 0) {
            char what[256];
            snprintf(what, sizeof what, "packages by %.3s cannot be installed (%d): %s",
                     installers[k].kind, u->exit_code, u->tail);
            return fail(u, PD_UNSUPPORTED, e, what);
        }
    }
    return 0;
}

/* Names what is missing, and what would help. */
static int fail_missing(struct setting_up *u, bool tried, struct pd_err *e)
{
    const struct recipe_list *packages = &u->recipe->packages;
    char what[256];

    if (packages->count == 0 || tried)
        snprintf(what, sizeof what,
                 "its sandbox has no %.60s%s: they must be in the host's /usr or in its image",
                 u->tail, tried ? ", though the packages are installed" : "");
    else
        snprintf(what, sizeof what,
                 "its sandbox has no %.60s, and %.60s cannot be fetched without a way out: install "
                 "it on the host or in an image, or set egress",
                 u->tail, packages->items[0]);
    return fail(u, PD_UNSUPPORTED, e, what);
}

static int have_programs(struct setting_up *u, struct pd_err *e)
{
    struct session_info i;

    if (u->recipe->programs.count == 0)
        return 0;
    int there = find_programs(u, e);
    if (there != 0)
        return there < 0 ? -1 : 0;

    session_get(u->session, &i);
    if (u->recipe->packages.count == 0 || i.spec.network == NETWORK_NONE)
        return fail_missing(u, false, e);
    if (install(u, e) < 0)
        return -1;
    there = find_programs(u, e);
    return there < 0 ? -1 : there ? 0 : fail_missing(u, true, e);
}

/* ---- what it starts ---- */

/* A loop in the sandbox that ends with 0 when it is ready, and with 97 when what was started has
 * ended. */
static int ready_script(const struct recipe *t, struct buf *out)
{
    (void)buf_puts(out, "until (");
    if (t->ready_port)
        (void)buf_printf(out, "grep -Eqi ':%04X [0-9A-F]+:0000 0A ' /proc/net/tcp /proc/net/tcp6",
                         t->ready_port);
    else
        (void)buf_printf(out, "%s\n", t->ready);
    return buf_puts(out, ") >/dev/null 2>&1; do [ -z \"$1\" ] || kill -0 \"$1\" 2>/dev/null || "
                         "exit 97; sleep 0.1; done");
}

static int fail_start(struct setting_up *u, struct process *started, struct pd_err *e)
{
    struct follow f;
    struct process_info i;
    struct pd_err ignored;
    char what[256];

    u->tail[0] = 0;
    if (follow_begin(&f, started, NULL, 0, &ignored) == 0) {
        keep_tail(u, &f);
        follow_end(&f);
    }
    process_get(started, &i, &ignored);
    if (i.running)
        snprintf(what, sizeof what, "it was not ready within %ju s: %s",
                 (uintmax_t)(u->recipe->ready_within_ms / 1000), u->tail);
    else
        snprintf(what, sizeof what, "its start command ended with %d: %s",
                 i.signal ? 128 + i.signal : i.exit_code, u->tail);
    return fail(u, PD_UNSUPPORTED, e, what);
}

static int await_ready(struct setting_up *u, struct process *started, struct pd_err *e)
{
    const struct recipe *t = u->recipe;
    const deadline end = deadline_in(t->ready_within_ms * NS_PER_MS);
    auto_buf script = BUF_INIT(RECIPE_TEXT_MAX + 1024);
    struct process_info i;
    char pid[16];

    if (ready_script(t, &script) < 0 || !buf_cstr(&script))
        return pd_fail(e, PD_CAPACITY, "no memory for a command");
    process_get(started, &i, NULL);
    snprintf(pid, sizeof pid, "%d", i.pid);

    struct recipe_list words = {.items = {pid}, .count = 1};
    for (;;) {
        const uint64_t now = clock_now(), left = end > now ? end - now : NS_PER_MS;
        int r = step(u, buf_cstr(&script), &words, NULL, NULL, left, e);
        if (r < 0)
            return e->code == PD_TIMEOUT ? fail_start(u, started, e) : -1;
        if (u->exit_code == 0)
            return 0;

        /* One that puts itself into the background may still be on its way. */
        process_get(started, &i, NULL);
        if (u->exit_code != 97 || i.running || i.signal || i.exit_code != 0 || !*words.items[0])
            return fail_start(u, started, e);
        words.items[0] = "";
    }
}

static int start(struct setting_up *u, struct pd_err *e)
{
    struct process *p;
    bool known = false;
    struct process_request r = {.command = u->recipe->start,
                                .spool_max = u->c->config->spool_max_bytes,
                                .background = true};

    if (!u->recipe->start)
        return 0;
    if (session_start(u->session, &r, &p, &known, e) < 0)
        return -1;

    int bad = process_await_pid(p, e);
    if (bad == 0 && (u->recipe->ready || u->recipe->ready_port))
        bad = await_ready(u, p, e);
    process_unref(p);
    return bad;
}

int recipe_set_up(struct call *c, struct session *s, struct pd_err *e)
{
    struct session_info i;
    struct pd_err ignored;

    session_get(s, &i);
    struct setting_up u = {
        .c = c, .session = s, .recipe = recipes_find(&c->config->recipes, i.template_name)};
    if (!u.recipe)
        return 0;

    session_attend_begin(s);
    int bad = write_files(&u, e) < 0 || have_programs(&u, e) < 0 || start(&u, e) < 0 ? -1 : 0;
    session_attend_end(s);

    if (bad < 0 && session_end(s, END_FAILED, e->msg, &ignored) == 0)
        session_forget_thread(s);
    return bad;
}
