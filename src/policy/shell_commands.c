/* How this works. A simple command is a row of words; `walk` looks at the first, reports it, and if
 * it is one that runs another command, finds where that one starts and looks again. Scripts (sh -c,
 * eval, trap) go back to the reader.
 *
 * Options are only skipped when they are known, because a wrong guess whether an option takes an
 * argument would take the wrong word for the command. */
#include "policy/shell_commands.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "policy/shell_words.h"

struct walk {
    struct shell_command c; /* its depth counts on while commands are unpacked */
    found_fn *fn;
    void *ctx;
    struct pd_err *e;
};

enum { RUNS_ASSIGNS = 1, RUNS_LISTED = 2, RUNS_NUMBER = 4 };

/* Commands that run the words behind their options. Options as getopt has them: "u:" takes an
 * argument, "e::" only an attached one. */
static const struct runner {
    const char *name, *shorts, *longs;
    unsigned operands; /* words between the options and the command */
    unsigned flags;    /* NAME=value before the command; must be allowed itself; -5 is an option */
} runners[] = {
    {"env", "i0vu:C:",
     " ignore-environment null unset: chdir: debug block-signal:: default-signal:: "
     "ignore-signal:: list-signal-handling ",
     0, RUNS_ASSIGNS},
    {"builtin", "", " ", 0, 0},
    {"exec", "cla:", " ", 0, 0},
    {"nohup", "", " ", 0, 0},
    {"nice", "n:", " adjustment: ", 0, RUNS_NUMBER},
    {"timeout", "k:s:v", " foreground preserve-status verbose kill-after: signal: ", 1, 0},
    {"time", "apqvf:o:", " append portability quiet verbose format: output: ", 0, 0},
    {"stdbuf", "i:o:e:", " input: output: error: ", 0, 0},
    {"setsid", "cfw", " ctty fork wait ", 0, 0},
    {"ionice", "c:n:t", " class: classdata: ignore ", 0, 0},
    {"sudo", "AbEHknPSC:D:g:p:R:T:u:", " background preserve-env non-interactive stdin ", 0,
     RUNS_ASSIGNS | RUNS_LISTED},
    {"doas", "nu:", " ", 0, RUNS_LISTED},
    {"chroot", "", " groups:: userspec:: skip-chdir ", 1, RUNS_LISTED},
    {"busybox", "", " ", 0, RUNS_LISTED},
    {"toybox", "", " ", 0, RUNS_LISTED},
};

static const struct runner xargs_runner = {
    "xargs", "0a:d:E:e::I:i::L:l::n:oP:prs:tx",
    " null arg-file: delimiter: eof:: replace:: max-lines:: max-args: open-tty max-procs: "
    "interactive no-run-if-empty max-chars: verbose exit process-slot-var:: ",
    0, 0};

/* Programs that can run others in ways that are too many to know. */
static const char launchers[] =
    " bwrap capsh catchsegv chpst choom chrt cpulimit crontab at batch daemonize dbus-run-session "
    "eatmydata entr expect fakeroot faketime firejail flock gdb i386 linux32 linux64 ltrace "
    "newgrp nsenter parallel perf pkexec prlimit proot rlwrap run-parts runcon runuser script "
    "setarch setpriv sg ssh-agent start-stop-daemon strace su systemd-run taskset torsocks "
    "unbuffer unshare uname26 valgrind watch x86_64 xvfb-run ";
static const char shells[] = " sh bash dash ash ksh ksh93 mksh zsh rbash ";
/* Long options of shells; those that bash also takes with one dash. */
static const char shell_longs[] = " norc noprofile posix login noediting verbose version help ";
static const char shell_files[] =
    " norc noprofile posix login noediting verbose version help rcfile "
    "init-file debug debugger dump-strings dump-po-strings protected "
    "restricted wordexp pretty-print ";
/* Builtins that evaluate subscripts, and thereby what is substituted in them. */
static const char evaluators[] = " declare typeset local export readonly let test [ printf read "
                                 "mapfile readarray unset wait getopts ";
/* Of these, the ones that set variables. */
static const char setters[] = " declare typeset local export readonly read mapfile readarray ";
/* Builtins that make a name mean something else, or run what no word shows. */
static const char refused[] = " alias compgen complete enable fc ";
/* Variables whose value bash runs. */
static const char run_variables[] = " PS4 PS0 BASH_ENV ENV PROMPT_COMMAND SHELLOPTS BASHOPTS ";

static int listed(const char *list, const char *name, size_t len)
{
    if (len == 0 || len > 64 || memchr(name, ' ', len))
        return 0;

    for (const char *p = list; (p = strchr(p, name[0])); p++)
        if (p[-1] == ' ' && !strncmp(p, name, len) && p[len] == ' ')
            return 1;
    return 0;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int report(struct walk *k, enum found_kind kind, const struct shell_word *words, size_t n)
{
    struct found f = {kind, words[0].text, words, n};
    return k->fn(k->ctx, &f, k->e);
}

static int report_mention(struct walk *k, const char *name)
{
    struct found f = {.kind = FOUND_MENTION, .name = name};
    return k->fn(k->ctx, &f, k->e);
}

static int refuse_word(struct walk *k, const struct shell_word *w, const char *why)
{
    int len = w->source_len < 60 ? (int)w->source_len : 60;
    return pd_fail(k->e, PD_POLICY, "'%.*s' cannot be judged by this session's policy: %s", len,
                   w->source, why);
}

static int walk(struct walk *k, const struct shell_word *words, size_t n);

static int walk_script(struct walk *k, const char *script, enum shell_mode mode)
{
    return shell_read_inside(&k->c, script, mode, k->e);
}

/* Takes one group of short options, or a long one. 0; 1 when its argument is the next word; -1 when
 * it is not known. */
static int option_argument(const struct runner *r, const char *text, const char **ret_attached)
{
    *ret_attached = NULL;
    if (text[1] == '-') {
        size_t len = strcspn(text + 2, "=");
        char name[40];
        const char *const forms[] = {"", ":", "::"};
        for (int i = 0; i < 3 && len < sizeof name - 3; i++) {
            int total = snprintf(name, sizeof name, "%.*s%s", (int)len, text + 2, forms[i]);
            if (!listed(r->longs, name, (size_t)total))
                continue;
            if (text[2 + len])
                *ret_attached = text + 3 + len;
            return i == 1 && !text[2 + len];
        }
        return -1;
    }

    if (r->flags & RUNS_NUMBER && strspn(text + 1, "0123456789-+") == strlen(text + 1))
        return 0;

    for (const char *o = text + 1; *o; o++) {
        const char *known = *o == ':' ? NULL : strchr(r->shorts, *o);
        if (!known)
            return -1;
        if (known[1] != ':')
            continue;
        if (o[1] || known[2] == ':') {
            *ret_attached = o + 1;
            return 0;
        }
        return 1;
    }
    return 0;
}

/* Moves *i behind the options. `seen` is told of each, with its argument if it has one. */
static int skip_options(struct walk *k, const struct runner *r, const struct shell_word *words,
                        size_t n, size_t *i,
                        void (*seen)(void *, const char *option, const char *argument), void *ctx)
{
    for (; *i < n; ++*i) {
        const struct shell_word *w = &words[*i];
        if (w->text[0] && w->text[0] != '-')
            return 0;
        if (!shell_word_is_literal(w))
            return refuse_word(k, w, "it could be an option or a command; write it literally");
        if (w->text[0] != '-' || (!w->text[1] && strcmp(r->name, "env") != 0))
            return 0;
        if (!strcmp(w->text, "--")) {
            ++*i;
            return 0;
        }

        const char *argument = NULL;
        int next = w->text[1] ? option_argument(r, w->text, &argument) : 0;
        if (next < 0)
            return refuse_word(k, w, "the option is not known");

        if (next && ++*i < n) {
            if (words[*i].flags & SHELL_SPLITS)
                return refuse_word(k, &words[*i], "it could be several words; quote it");
            argument = words[*i].text;
        }

        if (seen)
            seen(ctx, w->text, argument);
    }
    return 0;
}

int shell_variable_runs(const char *text)
{
    size_t len = strcspn(text, "=+[");
    return listed(run_variables, text, len) || !strncmp(text, "BASH_FUNC_", 10);
}

static int check_variable(struct walk *k, const struct shell_word *w)
{
    if (shell_variable_runs(w->text))
        return refuse_word(k, w, "bash runs what is in that variable");
    return 0;
}

static int walk_runner(struct walk *k, const struct runner *r, const struct shell_word *words,
                       size_t n)
{
    size_t i = 1;
    if (report(k, r->flags & RUNS_LISTED ? FOUND_COMMAND : FOUND_WRAPPER, words, n) < 0 ||
        skip_options(k, r, words, n, &i, NULL, NULL) < 0)
        return -1;

    for (; r->flags & RUNS_ASSIGNS && i < n && strchr(words[i].text, '='); i++) {
        if (words[i].flags & SHELL_SPLITS || words[i].flags & SHELL_PATTERN)
            return refuse_word(k, &words[i], "it could be several words; quote it");
        if (check_variable(k, &words[i]) < 0 || report(k, FOUND_ASSIGNMENT, &words[i], 1) < 0)
            return -1;
    }

    for (unsigned o = 0; o < r->operands && i < n; o++, i++)
        if (words[i].flags & (SHELL_SPLITS | SHELL_PATTERN))
            return refuse_word(k, &words[i], "it could be several words; quote it");

    return i < n ? walk(k, words + i, n - i) : 0;
}

/* command -v NAME only asks. */
static int walk_command(struct walk *k, const struct shell_word *words, size_t n)
{
    int asks = 0;
    size_t i = 1;

    if (report(k, FOUND_WRAPPER, words, n) < 0)
        return -1;

    for (; i < n && shell_word_is_literal(&words[i]) && words[i].text[0] == '-'; i++) {
        if (!strcmp(words[i].text, "--")) {
            i++;
            break;
        }
        if (strspn(words[i].text + 1, "pvV") != strlen(words[i].text + 1))
            return refuse_word(k, &words[i], "the option is not known");
        asks |= strpbrk(words[i].text, "vV") != NULL;
    }
    return asks || i >= n ? 0 : walk(k, words + i, n - i);
}

/* The words of a command that find or xargs fills in: those with the mark in them are not known. */
static struct shell_word *fill_in(const struct shell_word *words, size_t n, const char *mark,
                                  int appended, unsigned flags)
{
    static const struct shell_word input = {.text = "",
                                            .source = "what xargs reads",
                                            .source_len = 16,
                                            .flags = SHELL_EXPANDS | SHELL_SPLITS};

    struct shell_word *copy = calloc(n + 1, sizeof *copy);
    if (!copy)
        return NULL;

    if (n)
        memcpy(copy, words, n * sizeof *copy);
    for (size_t i = 0; i < n && mark && *mark; i++)
        if (strstr(copy[i].text, mark)) {
            copy[i].flags |= SHELL_EXPANDS | (strcmp(copy[i].text, mark) ? 0 : flags);
            if (!strncmp(copy[i].text, mark, strlen(mark)))
                copy[i].text = "";
        }

    if (appended)
        copy[n] = input;
    return copy;
}

/* `flags` are of the words that are nothing but the mark. */
static int walk_filled(struct walk *k, const struct shell_word *words, size_t n, const char *mark,
                       int appended, unsigned flags)
{
    struct shell_word *copy = fill_in(words, n, mark, appended, flags);
    if (!copy)
        return pd_fail(k->e, PD_INTERNAL, "no memory to judge a command line");

    int failed = walk(k, copy, n + (appended ? 1 : 0));
    free(copy);
    return failed;
}

static void see_xargs_option(void *ctx, const char *option, const char *argument)
{
    const char **mark = ctx;

    if (option[1] == 'I' || option[1] == 'i' || !strncmp(option, "--replace", 9))
        *mark = argument && *argument ? argument : "{}";
    else if (option[1] != '-' && strpbrk(option, "Ii"))
        *mark = ""; /* in a group: no telling */
}

static int walk_xargs(struct walk *k, const struct shell_word *words, size_t n)
{
    size_t i = 1;
    const char *mark = NULL;

    if (report(k, FOUND_WRAPPER, words, n) < 0 ||
        skip_options(k, &xargs_runner, words, n, &i, see_xargs_option, &mark) < 0)
        return -1;

    if (mark && !*mark)
        return refuse_word(k, &words[0], "write -I apart from its other options");
    if (i >= n)
        return 0; /* echo */
    return walk_filled(k, words + i, n - i, mark, !mark, 0);
}

static int is_exec_action(const struct shell_word *w)
{
    return shell_word_is_literal(w) && (!strcmp(w->text, "-exec") || !strcmp(w->text, "-execdir") ||
                                        !strcmp(w->text, "-ok") || !strcmp(w->text, "-okdir"));
}

/* Does the command of an -exec end here? With + only behind {}. */
static int ends_exec(const struct shell_word *words, size_t i)
{
    return !strcmp(words[i].text, ";") ||
           (!strcmp(words[i].text, "+") && !strcmp(words[i - 1].text, "{}"));
}

/* A word of find that is not literal could be "-exec" and make the next word a command. It cannot
 * if it starts with something else than a dash, or if the next word starts with one. */
static int check_find_word(struct walk *k, const struct shell_word *words, size_t n, size_t i)
{
    const struct shell_word *w = &words[i];
    int starts = w->text[0] && w->text[0] != '-';

    if (shell_word_is_literal(w) || (starts && !(w->flags & SHELL_SPLITS)))
        return 0;

    if (w->flags & SHELL_SPLITS)
        return refuse_word(k, w, "find could take a part of it for -exec; quote it");

    for (size_t j = i + 1; j < n; j++)
        if (!shell_word_is_literal(&words[j]) || !strcmp(words[j].text, ";") ||
            !strcmp(words[j].text, "+"))
            return words[i + 1].text[0] == '-' && shell_word_is_literal(&words[i + 1])
                       ? 0
                       : refuse_word(k, w, "find could take it for -exec; put ./ before it");
    return 0;
}

static int walk_find(struct walk *k, const struct shell_word *words, size_t n)
{
    if (report(k, FOUND_COMMAND, words, n) < 0)
        return -1;
    for (size_t i = 1; i < n; i++) {
        if (check_find_word(k, words, n, i) < 0)
            return -1;
        if (!is_exec_action(&words[i]))
            continue;

        size_t start = i + 1, end = start;
        while (end < n && !(end > start && ends_exec(words, end)))
            end++;
        if (end > start &&
            walk_filled(k, words + start, end - start, "{}", 0, SHELL_FOUND_PATH) < 0)
            return -1;
        i = end;
    }
    return 0;
}

/* Takes one option of a shell: *ret_c when it is a -c, *ret_input when the shell reads its commands
 * from its input whatever follows, *ret_skip words that belong to it. */
static int shell_option(struct walk *k, const struct shell_word *w, int *ret_c, int *ret_input,
                        size_t *ret_skip)
{
    const char *t = w->text;

    const char *name = t + strspn(t, "-");
    if (t[1] == '-' || listed(shell_files, name, strlen(name))) {
        if (t[1] != '-' || !listed(shell_longs, name, strlen(name)))
            return refuse_word(k, w, "the option is not known, or runs a file");
        return 0;
    }

    for (const char *o = t + 1; *o; o++) {
        if (!strchr("abcefhiklmnoprstuvxBCDEHOPT", *o))
            return refuse_word(k, w, "the option is not known");
        *ret_c |= *o == 'c' && t[0] == '-';
        *ret_input |= *o == 's' && t[0] == '-';
        *ret_skip += *o == 'o' || *o == 'O';
    }
    return 0;
}

static int skip_shell_options(struct walk *k, const struct shell_word *words, size_t n, size_t *i,
                              int *ret_c, int *ret_input)
{
    size_t skip = 0; /* arguments of options that come next */

    for (*i = 1; *i < n; ++*i) {
        const struct shell_word *w = &words[*i];
        const char *t = w->text;
        if (t[0] && t[0] != '-' && t[0] != '+' && !(w->flags & SHELL_SPLITS) && !skip)
            return 0;
        if (!shell_word_is_literal(w))
            return refuse_word(k, w, "it could be an option or a script; write it literally");

        if (skip) {
            skip--;
            continue;
        }

        if (t[0] != '-' && t[0] != '+')
            return 0;
        if (!strcmp(t, "--") || !strcmp(t, "-")) {
            ++*i;
            return 0;
        }
        if (shell_option(k, w, ret_c, ret_input, &skip) < 0)
            return -1;
    }
    return 0;
}

static int walk_shell(struct walk *k, const struct shell_word *words, size_t n)
{
    int with_c = 0, reads_input = 0;
    size_t i;

    if (skip_shell_options(k, words, n, &i, &with_c, &reads_input) < 0)
        return -1;

    const char *name = base_name(words[0].text);
    enum shell_mode mode = !strcmp(name, "bash") ? SHELL_BASH : SHELL_OTHER;
    if (!with_c) {
        if (report(k, FOUND_COMMAND, words, n) < 0)
            return -1;
        if (reads_input || i >= n)
            return refuse_word(k, &words[0],
                               "it reads its commands from its input; give them "
                               "directly");
        return 0; /* a file: what it runs is not seen */
    }

    if (report(k, FOUND_WRAPPER, words, n) < 0)
        return -1;
    if (i >= n)
        return 0;

    if (!shell_word_is_literal(&words[i]))
        return refuse_word(k, &words[i], "a script that is not literal");
    return walk_script(k, words[i].text, mode);
}

static int walk_eval(struct walk *k, const struct shell_word *words, size_t n)
{
    auto_buf script = BUF_INIT(2 * SHELL_LINE_MAX);

    if (report(k, FOUND_WRAPPER, words, n) < 0)
        return -1;

    for (size_t i = 1; i < n; i++) {
        if (!shell_word_is_literal(&words[i]))
            return refuse_word(k, &words[i], "eval of something that is not literal");
        if (i == 1 && !strcmp(words[i].text, "--"))
            continue;
        buf_puts(&script, words[i].text);
        buf_putc(&script, ' ');
    }

    const char *text = buf_cstr(&script);
    if (!text || script.overflow)
        return pd_fail(k->e, PD_INTERNAL, "no memory to judge a command line");
    return walk_script(k, text, SHELL_SAME);
}

static int walk_trap(struct walk *k, const struct shell_word *words, size_t n)
{
    size_t i = 1;

    if (report(k, FOUND_WRAPPER, words, n) < 0)
        return -1;

    if (i < n && !strcmp(words[i].text, "--") && shell_word_is_literal(&words[i]))
        i++;
    if (i >= n)
        return 0;

    if (!shell_word_is_literal(&words[i]))
        return refuse_word(k, &words[i], "a trap that is not literal");
    if (words[i].text[0] == '-' || (i + 1 >= n && !strpbrk(words[i].text, " ;&|()<>\n")))
        return 0; /* -p, -l, or a signal to reset */
    return walk_script(k, words[i].text, SHELL_SAME);
}

/* A subscript is evaluated, and a substitution in it run, even when it was quoted. */
static int hides_substitution(const char *text)
{
    const char *bracket = strchr(text, '[');
    return bracket && (strstr(bracket, "$(") || strstr(bracket, "${") || strchr(bracket, '`'));
}

static int walk_evaluator(struct walk *k, const struct shell_word *words, size_t n)
{
    int unset = !strcmp(words[0].text, "unset"), let = !strcmp(words[0].text, "let");

    int sets = listed(setters, words[0].text, strlen(words[0].text));
    if (report(k, FOUND_COMMAND, words, n) < 0)
        return -1;

    for (size_t i = 1; i < n; i++) {
        const struct shell_word *w = &words[i];
        if (hides_substitution(w->text) ||
            (let && strpbrk(w->text, "`$") && w->flags & SHELL_QUOTED))
            return refuse_word(k, w, "a subscript can run commands");
        if (sets && check_variable(k, w) < 0)
            return -1;
        if (unset && (shell_is_function(&k->c, w->text) || !shell_word_is_literal(w) ||
                      (w->text[0] == '-' && strchr(w->text, 'f'))))
            return refuse_word(k, w, "functions cannot be taken back");
        if (sets && w->text[0] == '-' && strchr(w->text, 'C'))
            return refuse_word(k, w, "a callback");
    }
    return 0;
}

/* Every word of a launcher that could be a program's name. */
static int walk_launcher(struct walk *k, const struct shell_word *words, size_t n)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "._+-/[";

    if (report(k, FOUND_COMMAND, words, n) < 0)
        return -1;

    for (size_t i = 1; i < n; i++) {
        if (!shell_word_is_literal(&words[i]))
            return refuse_word(k, &words[i], "it could be a command; write it literally");
        for (const char *p = words[i].text; *p;) {
            char name[128];
            size_t len = strspn(p, letters);
            if (len > 0 && len < sizeof name) {
                snprintf(name, sizeof name, "%.*s", (int)len, p);
                if (report_mention(k, name) < 0)
                    return -1;
            }
            p += len;
            p += strcspn(p, letters);
        }
    }
    return 0;
}

static int walk_named(struct walk *k, const struct shell_word *words, size_t n)
{
    const char *base = base_name(words[0].text);
    size_t len = strlen(base);

    for (size_t i = 0; i < sizeof runners / sizeof *runners; i++)
        if (!strcmp(runners[i].name, base))
            return walk_runner(k, &runners[i], words, n);

    if (!strcmp(base, "xargs"))
        return walk_xargs(k, words, n);
    if (!strcmp(base, "find"))
        return walk_find(k, words, n);
    if (!strcmp(base, "command"))
        return walk_command(k, words, n);
    if (!strcmp(base, "eval"))
        return walk_eval(k, words, n);
    if (!strcmp(base, "trap"))
        return walk_trap(k, words, n);

    if (listed(shells, base, len))
        return walk_shell(k, words, n);
    if (listed(launchers, base, len))
        return walk_launcher(k, words, n);

    if (listed(refused, base, len) ||
        (!strcmp(base, "hash") && n > 1 &&
         (words[1].text[0] == '-' || !shell_word_is_literal(&words[1]))))
        return refuse_word(k, &words[0], "it can give names another meaning");
    if (listed(evaluators, base, len))
        return walk_evaluator(k, words, n);

    return report(k, FOUND_COMMAND, words, n);
}

static int walk(struct walk *k, const struct shell_word *words, size_t n)
{
    if (!shell_word_is_literal(&words[0]))
        return refuse_word(k, &words[0], "a command's name must be literal");
    if (k->c.depth >= SHELL_DEPTH_MAX)
        return refuse_word(k, &words[0], "it is nested too deep");

    k->c.depth++;
    int failed = walk_named(k, words, n);
    k->c.depth--;
    return failed;
}

static int visit_command(void *ctx, const struct shell_command *c, struct pd_err *e)
{
    const struct walk *start = ctx;
    struct walk k = {.c = *c, .fn = start->fn, .ctx = start->ctx, .e = e};

    if (shell_word_is_literal(&c->words[0]) && shell_is_function(c, c->words[0].text))
        return report(&k, FOUND_FUNCTION, c->words, c->count);
    return walk(&k, c->words, c->count);
}

static int visit_assignment(void *ctx, const struct shell_word *w, struct pd_err *e)
{
    const struct walk *start = ctx;
    struct walk k = {.fn = start->fn, .ctx = start->ctx, .e = e};
    return check_variable(&k, w) < 0 ? -1 : report(&k, FOUND_ASSIGNMENT, w, 1);
}

static int visit_redirection(void *ctx, const char *op, const struct shell_word *w,
                             struct pd_err *e)
{
    const struct walk *start = ctx;
    struct found f = {FOUND_REDIRECTION, op, w, 1};
    return start->fn(start->ctx, &f, e);
}

int shell_commands(const char *line, found_fn *fn, void *ctx, struct pd_err *e)
{
    struct walk start = {.fn = fn, .ctx = ctx, .e = e};
    struct shell_visitor v = {visit_command, visit_assignment, visit_redirection, &start};
    return shell_read(line, &v, e);
}

int shell_commands_argv(const char *const *argv, found_fn *fn, void *ctx, struct pd_err *e)
{
    struct walk start = {.fn = fn, .ctx = ctx, .e = e};
    struct shell_visitor v = {visit_command, visit_assignment, visit_redirection, &start};
    size_t n = 0;

    while (argv[n])
        n++;

    struct shell_word *words = calloc(n + 1, sizeof *words);
    if (!words)
        return pd_fail(e, PD_INTERNAL, "no memory to judge a command");

    for (size_t i = 0; i < n; i++)
        words[i] =
            (struct shell_word){.text = argv[i], .source = argv[i], .source_len = strlen(argv[i])};

    int failed = shell_visit_words(words, n, &v, e);
    free(words);
    return failed;
}
