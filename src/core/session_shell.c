/* How this works: a command line runs as `bash -c SCRIPT`, where the script's first line sets a
 * trap that, when the shell ends, writes its directory and `export -p` to descriptor 63. Both are
 * builtins: no process is started for it. Lost when bash is killed or replaced (exec) or when the
 * command sets a trap of its own: the state stays as it was then, and the result says so. A shell
 * that was started before its line is known (prepared.c) has another script, with the same
 * trap.
 *
 * An image without bash has another shell as sh (dash, busybox). Its trap does the same in words
 * that every shell knows, by descriptor 8: dash has none of two digits. A line that uses 8 itself
 * does not tell its state.
 *
 * The state that comes back is data from inside: names and sizes are checked, and variables that
 * change how programs are loaded are never kept. */
#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/start.h"

#include <ctype.h>
#include <errno.h>
#include <unistd.h>

#define ENV_MAX 512u

#define TRAP                                                                                       \
    "exec 63>&3 3>&-; trap '{ r=$?; builtin printf \"%s\\0\" \"$PWD\"; builtin export -p; "        \
    "builtin printf \"\\0\"; } >&63 2>/dev/null; builtin exit $r' EXIT"

#define SH_TRAP                                                                                    \
    "exec 8>&3 3>&-; trap '{ r=$?; command printf \"%s\\0\" \"$PWD\"; export -p; "                 \
    "command printf \"\\0\"; } >&8 2>/dev/null; exit $r' EXIT"

/* The rest of that line in a shell that waits. A dry run, which touches the memory
 * that the line will need. Then the text from the pipe, which makes the line the one parameter;
 * without it, or without the session's directory, the shell ends. The byte says that the line
 * begins: in the second line of what is evaluated, as in a script, and with the same `$_` and `$?`.
 */
static const char wait_before[] = TRAP
    "; set -- :; eval \"shift; $1\"; { builtin printf \"%s\\0\" \"$PWD\"; builtin export -p; "
    "builtin printf \"\\0\"; } >/dev/null 2>/dev/null; . /proc/self/fd/0 && exec 0</dev/null && "
    "[[ $# == 1 && -x . && ";
static const char wait_after[] =
    " -ef . ]] && builtin printf \"\\n\" >&63 || { trap - EXIT; exit; }; SECONDS=0; "
    "eval \"shift; : EXIT\"$'\\n'\"$1\"";

/* As one word of the shell's. */
static void put_quoted(struct buf *out, const char *text)
{
    buf_putc(out, '\'');
    for (const char *quote; (quote = strchr(text, '\'')); text = quote + 1) {
        buf_put(out, text, (size_t)(quote - text));
        buf_puts(out, "'\\''");
    }
    buf_puts(out, text);
    buf_putc(out, '\'');
}

int shell_prepared_script(const char *cwd, struct buf *out)
{
    buf_puts(out, wait_before);
    put_quoted(out, cwd);
    buf_puts(out, wait_after);
    return buf_putc(out, 0);
}

int shell_line(const char *command, struct buf *out)
{
    buf_puts(out, "set -- ");
    put_quoted(out, command);
    return out->overflow ? -1 : 0;
}

bool shell_tells(const char *command, bool is_bash)
{
    return is_bash || (!strstr(command, "8>") && !strstr(command, "8<"));
}

int shell_script(const char *command, bool is_bash, struct buf *out)
{
    buf_puts(out, is_bash ? TRAP "\n" : SH_TRAP "\n");
    buf_puts(out, command);
    return buf_putc(out, 0);
}

const char *env_find(const struct msg_list *l, const char *name)
{
    size_t len = strcspn(name, "=");
    uint32_t pos = 0;
    for (const char *s; (s = msg_list_next(l, &pos));)
        if (!strncmp(s, name, len) && s[len] == '=')
            return s;
    return NULL;
}

/* A variable that every command has without anybody having said so. It is not the session's:
 * another user's command gets other values. */
static int is_usual(const char *pair)
{
    static const char *const pairs[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PATH=" INIT_SHIM_DIR ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME=/root",
        "HOME=/home/user",
        "USER=root",
        "USER=user",
        "LOGNAME=root",
        "LOGNAME=user",
        "SHELL=/bin/bash",
        "LANG=C.UTF-8",
        "TERM=xterm-256color"};

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!strcmp(pairs[i], pair))
            return 1;
    return 0;
}

bool session_place(struct session *s, struct box_place *ret)
{
    /* The box's own provider: the session's may be another one before the lock is had. */
    rw_read(&s->box_use);
    bool placed = s->box && box_place(s->box, ret);
    rw_release(&s->box_use);
    return placed;
}

bool session_is_far(struct session *s)
{
    lock_take(&s->lock);
    bool far = s->provider && s->provider->is_far;
    lock_release(&s->lock);
    return far;
}

static bool is_below(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    return !strncmp(path, dir, len) && (!path[len] || path[len] == '/');
}

int place_path(const struct box_place *place, const char *path, char *out, size_t size)
{
    static const char workspace[] = "/workspace", home[] = "/home/user";
    const char *to = "";

    if (place && is_below(path, workspace)) {
        to = place->workspace;
        path += sizeof workspace - 1;
    } else if (place && is_below(path, home)) {
        to = place->home;
        path += sizeof home - 1;
    }
    return snprintf(out, size, "%s%s", to, path) < (int)size ? 0 : -1;
}

/* The variables of the image that a box was made from. */
static struct msg_list image_environ(const struct box_place *place)
{
    if (!place)
        return (struct msg_list){.text = ""};
    return (struct msg_list){
        .text = place->environ, .count = place->environ_count, .bytes = place->environ_bytes};
}

/* Is it what every command in this box has, by the box's own facts? */
static bool is_of_place(const struct box_place *place, const char *pair)
{
    if (!place)
        return false;
    if (!strncmp(pair, "HOME=", 5))
        return !strcmp(pair + 5, place->home);
    if (!strncmp(pair, "SHELL=", 6))
        return !strcmp(pair + 6, place->shell);

    struct msg_list image = image_environ(place);
    const char *given = env_find(&image, pair);
    return given && !strcmp(given, pair);
}

/* Variables that say who runs a command: an image's are its own user's. */
static bool is_persons(const char *pair)
{
    static const char *const names[] = {"HOME=", "USER=", "LOGNAME=", "SHELL=", "PWD="};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(pair, names[i], strlen(names[i])))
            return true;
    return false;
}

/* A variable of the image. In `dev` sudo is found first, also where the image has a PATH of its
 * own.
 */
static int add_of_image(struct msg_list_writer *out, const char *pair, bool dev)
{
    if (!dev || strncmp(pair, "PATH=", 5) != 0)
        return msg_list_add(out, pair);

    auto_buf path = BUF_INIT(WIRE_PAYLOAD_MAX);
    buf_printf(&path, "PATH=" INIT_SHIM_DIR ":%s", pair + 5);
    const char *text = buf_cstr(&path);
    return text ? msg_list_add(out, text) : -1;
}

int session_environment(const struct session *s, const struct process_request *r,
                        const struct box_place *place, struct msg_list_writer *out)
{
    int root = r->user && !strcmp(r->user, "root");
    bool dev = s->info.spec.profile == PROFILE_DEV;
    char home[BOX_PATH_SIZE + 8], shell[BOX_PATH_SIZE + 8];
    snprintf(home, sizeof home, "HOME=%s", place ? place->home : "/home/user");
    snprintf(shell, sizeof shell, "SHELL=%s", place ? place->shell : "/bin/bash");

    const char *const usual[] = {
        dev ? "PATH=" INIT_SHIM_DIR ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            : "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        root ? "HOME=/root" : home,
        root ? "USER=root" : "USER=user",
        root ? "LOGNAME=root" : "LOGNAME=user",
        shell,
        "LANG=C.UTF-8",
        r->pty ? "TERM=xterm-256color" : NULL,
        r->usual};

    struct msg_list own = msg_list_of(&s->env);
    struct msg_list image = image_environ(place);
    int bad = 0;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (usual[i] && !env_find(&own, usual[i]) && !env_find(&r->env, usual[i]) &&
            (is_persons(usual[i]) || !env_find(&image, usual[i])))
            bad |= msg_list_add(out, usual[i]);

    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(&image, &pos));)
        if (!is_persons(v) && !env_find(&own, v) && !env_find(&r->env, v))
            bad |= add_of_image(out, v, dev);

    pos = 0;
    for (const char *v; (v = msg_list_next(&own, &pos));)
        if (!env_find(&r->env, v))
            bad |= msg_list_add(out, v);

    pos = 0;
    for (const char *v; (v = msg_list_next(&r->env, &pos));)
        bad |= msg_list_add(out, v);
    return bad;
}

/* ---- reading the state ---- */

/* The value of one `declare -x` as bash writes it: "..." with backslashes before $ ` " \ and
 * newline, or $'...' with those of C. Appends to out; returns the character behind it, or NULL. */
static const char *read_quoted(const char *at, const char *end, struct buf *out)
{
    if (at < end && *at == '"') {
        for (at++; at < end && *at != '"'; at++) {
            if (*at == '\\' && at + 1 < end)
                at++;
            buf_putc(out, *at);
        }
        return at < end ? at + 1 : NULL;
    }

    if (end - at < 2 || at[0] != '$' || at[1] != '\'')
        return NULL;

    static const char letters[] = "abtnvfrE", values[] = "\a\b\t\n\v\f\r\033";
    for (at += 2; at < end && *at != '\''; at++) {
        if (*at != '\\') {
            buf_putc(out, *at);
            continue;
        }
        if (++at >= end)
            return NULL;

        const char *letter = strchr(letters, *at);
        if (*at >= '0' && *at <= '7') {
            unsigned v = 0;
            int digits = 0;
            for (; digits < 3 && at < end && *at >= '0' && *at <= '7'; digits++, at++)
                v = v * 8 + (unsigned)(*at - '0');
            at--;
            if (!v)
                return NULL;
            buf_putc(out, (char)v);
        } else {
            buf_putc(out, *at && letter ? values[letter - letters] : *at);
        }
    }
    return at < end ? at + 1 : NULL;
}

/* The value of one `export` as dash and busybox write it: pieces in single quotes, and single
 * quotes in double ones. Another shell may mean something else by double quotes: only those are
 * read. */
static const char *read_pieces(const char *at, const char *end, struct buf *out)
{
    if (at >= end || (*at != '\'' && *at != '"'))
        return NULL;

    while (at < end && (*at == '\'' || *at == '"')) {
        char quote = *at++;
        for (; at < end && *at != quote; at++) {
            if (quote == '"' && *at != '\'')
                return NULL;
            buf_putc(out, *at);
        }
        if (at++ >= end)
            return NULL;
    }
    return at;
}

/* The word that begins a line of `export -p`, and how the value is written: the start of the name,
 * or NULL. */
static const char *read_word(const char *at, const char *end, bool *ret_is_bash)
{
    static const char bash[] = "declare -", posix[] = "export ";
    size_t left = (size_t)(end - at);

    *ret_is_bash = left >= sizeof bash && !strncmp(at, bash, sizeof bash - 1);
    if (!*ret_is_bash)
        return left >= sizeof posix && !strncmp(at, posix, sizeof posix - 1) ? at + sizeof posix - 1
                                                                             : NULL;

    at += sizeof bash - 1;
    while (at < end && isalpha((unsigned char)*at))
        at++;
    return at < end && *at == ' ' ? at + 1 : NULL;
}

/* Variables that bash sets by itself, or that change how programs are loaded or started. */
static int is_never_kept(const char *name, size_t len)
{
    static const char *const names[] = {"PWD",      "OLDPWD", "SHLVL",         "_",
                                        "BASH_ENV", "ENV",    "IFS",           "SHELLOPTS",
                                        "BASHOPTS", "PS4",    "PROMPT_COMMAND"};
    static const char *const prefixes[] = {"LD_",        "PADDOCK_",       "BASH_FUNC_",
                                           "GCONV_PATH", "GLIBC_TUNABLES", "MALLOC_"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == len && !strncmp(names[i], name, len))
            return 1;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (len >= strlen(prefixes[i]) && !strncmp(prefixes[i], name, strlen(prefixes[i])))
            return 1;
    return 0;
}

static size_t name_length(const char *at, const char *end)
{
    size_t n = 0;
    if (at < end && isdigit((unsigned char)*at))
        return 0;
    while (at + n < end && (isalnum((unsigned char)at[n]) || at[n] == '_'))
        n++;
    return n;
}

/* One line (which may hold newlines in quotes): the start of the next, or NULL when malformed. */
static const char *read_variable(const char *at, const char *end, struct msg_list_writer *env)
{
    bool is_bash;
    if (!(at = read_word(at, end, &is_bash)))
        return NULL;

    size_t len = name_length(at, end);
    if (!len || len > 256)
        return NULL;

    const char *name = at;
    auto_buf pair = BUF_INIT(STATE_MAX);
    buf_put(&pair, name, len);
    at += len;

    int has_value = at < end && *at == '=';
    if (has_value) {
        buf_putc(&pair, '=');
        at = (is_bash ? read_quoted : read_pieces)(at + 1, end, &pair);
    }
    if (!at || at >= end || *at != '\n' || pair.overflow || memchr(pair.data, 0, pair.len))
        return NULL;

    if (has_value && !is_never_kept(name, len)) {
        const char *text = buf_cstr(&pair);
        if (!text || env->count >= ENV_MAX || msg_list_add(env, text) < 0)
            return NULL;
    }
    return at + 1;
}

int shell_state_parse(const char *text, size_t len, char *ret_cwd, size_t cwd_size,
                      struct msg_list_writer *ret_env, struct pd_err *e)
{
    const char *end = text + len;
    const char *cwd_end = memchr(text, 0, len);
    if (!cwd_end || text[0] != '/' || (size_t)(cwd_end - text) >= cwd_size)
        return pd_fail(e, PD_INVALID, "the shell's directory is missing or too long");
    if (cwd_end + 1 >= end || end[-1] != 0)
        return pd_fail(e, PD_INVALID, "the shell's state is not complete");

    const char *at = cwd_end + 1;
    while (at < end - 1) {
        at = read_variable(at, end - 1, ret_env);
        if (!at)
            return pd_fail(e, PD_INVALID, "a variable of the shell's state cannot be read");
    }

    memcpy(ret_cwd, text, (size_t)(cwd_end - text) + 1);
    return 0;
}

bool session_take_state(struct session *s, struct process *p)
{
    char *text = malloc(STATE_MAX);
    char *cwd = malloc(SPEC_PATH_MAX);
    struct msg_list_writer env = MSG_LIST_WRITER_INIT, merged = MSG_LIST_WRITER_INIT;
    struct pd_err e;
    size_t len = 0;
    bool good = false;

    while (text && cwd && len < STATE_MAX) {
        ssize_t n = read(p->state_pipe, text + len, STATE_MAX - len);
        if (n <= 0)
            break; /* what the leader wrote is there by now; others may hold the pipe open */
        len += (size_t)n;
    }

    /* The pipe is done with: a command that has ended, and is kept, needs none. */
    lock_take(&p->lock);
    fd_done(&p->state_pipe);
    lock_release(&p->lock);

    if (len && len < STATE_MAX && shell_state_parse(text, len, cwd, SPEC_PATH_MAX, &env, &e) == 0) {
        struct box_place where;
        const struct box_place *place = session_place(s, &where) ? &where : NULL;

        /* A variable of this one request is not the session's, unless the command changed it. */
        struct msg_list found = msg_list_of(&env), asked = msg_list_of(&p->env);
        lock_take(&s->lock);
        struct msg_list before = msg_list_of(&s->env);
        uint32_t pos = 0;
        good = true;
        for (const char *v; (v = msg_list_next(&found, &pos));) {
            const char *given = env_find(&asked, v);
            const char *keep = given && !strcmp(given, v) ? env_find(&before, v) : v;
            bool usual = keep && (is_usual(keep) || is_of_place(place, keep));
            if (usual && !env_find(&before, keep))
                keep = NULL;
            if (keep && msg_list_add(&merged, keep) < 0)
                good = false;
        }

        bool same = merged.text.len == before.bytes && !strcmp(cwd, s->cwd) &&
                    (!before.bytes || !memcmp(merged.text.data, before.text, before.bytes));
        if (good && !same) {
            struct msg_list_writer old = s->env;
            s->env = merged;
            merged = old;
            memcpy(s->cwd, cwd, strlen(cwd) + 1);
            s->shell_version++;
            s->dirty = DIRTY;
        }
        lock_release(&s->lock);
    }

    msg_list_writer_done(&env);
    msg_list_writer_done(&merged);
    free(text);
    free(cwd);
    return good;
}
