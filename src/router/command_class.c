/* How this works. `judge` is told of every command, assignment and redirection of a line, wherever
 * they stand. A command's words are walked along the row of its program: options must be in the
 * row, operands that are paths must lie below the workspace. The first thing that is not certain
 * makes the whole line unknown and ends the search. */
#include "router/command_class.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"
#include "policy/shell_commands.h"
#include "policy/shell_words.h"
#include "router/command_table.h"

#include <stdarg.h>

#define ARGV_MAX (1u << 20) /* of the words of a program and its quotes */

struct judge {
    struct command_verdict *verdict;
    const char *workspace;
};

const char *command_class_name(enum command_class c)
{
    static const char *const names[] = {"read", "write", "install", "network", "unknown"};
    return names[c];
}

/* ---- the verdict ---- */

static void add_class(struct judge *j, enum command_class what, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void add_class(struct judge *j, enum command_class what, const char *fmt, ...)
{
    struct command_verdict *v = j->verdict;
    va_list ap;

    if (!v->classes || what > v->what) {
        v->what = what;
        va_start(ap, fmt);
        (void)vsnprintf(v->reason, sizeof v->reason, fmt, ap);
        va_end(ap);
    }
    v->classes |= 1u << what;
}

/* Always -1: nothing more has to be looked at. */
static int doubt(struct judge *j, const struct shell_word *w, const char *why)
{
    int len = w->source_len < 50 ? (int)w->source_len : 50;
    add_class(j, COMMAND_UNKNOWN, "'%.*s' %s", len, w->source, why);
    return -1;
}

/* ---- words ---- */

static bool listed(const char *list, const char *name, size_t len)
{
    if (!len || strchr(name, ' '))
        return false;
    for (const char *p = list; (p = strstr(p, name)); p++)
        if ((p == list || p[-1] == ' ') && (p[len] == ' ' || !p[len]))
            return true;
    return false;
}

static bool climbs(const char *path)
{
    for (const char *p = path; (p = strstr(p, "..")); p += 2)
        if ((p == path || p[-1] == '/') && (!p[2] || p[2] == '/'))
            return true;
    return false;
}

static bool is_inside(const struct judge *j, const char *path)
{
    static const char devices[] = "/dev/null /dev/stdin /dev/stdout /dev/stderr";
    size_t len = strlen(j->workspace);

    if (climbs(path))
        return false;
    if (path[0] != '/')
        return true;
    return listed(devices, path, strlen(path)) ||
           (!strncmp(path, j->workspace, len) && (!path[len] || path[len] == '/'));
}

/* A glob whose matches lie where it does: nothing in it can become another directory. */
static bool is_tame_pattern(const struct judge *j, const struct shell_word *w)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_.-/*?[]!+,@=:";
    char text[256];

    if (w->flags & (SHELL_EXPANDS | SHELL_QUOTED) || w->source_len >= sizeof text)
        return false;
    memcpy(text, w->source, w->source_len);
    text[w->source_len] = 0;
    return strspn(text, letters) == w->source_len && is_inside(j, text) &&
           (text[0] != '.' || text[1] != '*'); /* .* has been .. in older shells */
}

static int check_path(struct judge *j, const struct shell_word *w, const char *text)
{
    if (w->flags & SHELL_FOUND_PATH)
        return 0;
    if (w->flags & SHELL_PATTERN && text == w->text)
        return is_tame_pattern(j, w) ? 0 : doubt(j, w, "could be a path outside the workspace");
    if (!shell_word_is_literal(w))
        return doubt(j, w, "is not known before it runs");
    return is_inside(j, text) ? 0 : doubt(j, w, "is outside the workspace");
}

/* ---- options ---- */

/* How an option takes its argument; the letter behind it in a row says so. */
enum argument { TAKES_NONE, TAKES_TEXT = ':', TAKES_PATH = ';', TAKES_ATTACHED = '=' };

/* -1: the row does not have it. */
static int find_long(const char *longs, const char *name, size_t len)
{
    for (const char *p = longs; len && (p = strchr(p, ' ')); p++)
        if (!strncmp(p + 1, name, len) && strchr(" :;=", p[1 + len]))
            return p[1 + len] == ' ' || !p[1 + len] ? TAKES_NONE : p[1 + len];
    return -1;
}

static int find_short(const char *shorts, char letter)
{
    const char *p = letter && !strchr(":;=#", letter) ? strchr(shorts, letter) : NULL;
    if (!p)
        return -1;
    return p[1] && strchr(":;=", p[1]) ? p[1] : TAKES_NONE;
}

/* A command while its words are walked. */
struct walk {
    struct judge *j;
    const struct program *row;
    const struct shell_word *words;
    size_t count, at;
    unsigned operands;
    bool has_script; /* given by an option, so that every operand is a path */
};

static int take_argument(struct walk *k, int takes, const char *attached)
{
    const struct shell_word *w = &k->words[k->at];

    if (takes == TAKES_NONE || takes == TAKES_ATTACHED)
        return 0;
    if (!attached) {
        if (++k->at >= k->count)
            return 0; /* the program will complain */
        w = &k->words[k->at];
        attached = w->text;
        if (w->flags & (SHELL_SPLITS | SHELL_PATTERN))
            return doubt(k->j, w, "could be several words");
    }

    if (takes == TAKES_PATH)
        return check_path(k->j, w, attached);
    if (k->row->flags & AT_IS_A_FILE && strchr(attached, '@'))
        return doubt(k->j, w, "may name a file to send");
    return 0;
}

static int take_long(struct walk *k)
{
    const struct shell_word *w = &k->words[k->at];
    size_t len = strcspn(w->text + 2, "=");
    int takes = find_long(k->row->longs, w->text + 2, len);
    if (takes < 0)
        return doubt(k->j, w, "is an option that is not known");

    k->has_script |= len == 6 && !strncmp(w->text + 2, "regexp", 6);
    const char *attached = w->text[2 + len] ? w->text + 3 + len : NULL;
    if (attached && takes == TAKES_NONE)
        return doubt(k->j, w, "is an option that takes no value");
    return take_argument(k, takes, attached);
}

static int take_shorts(struct walk *k, const char *letters)
{
    const struct shell_word *w = &k->words[k->at];

    if (strchr(k->row->shorts, '#') && strspn(letters, "0123456789") == strlen(letters))
        return 0;

    for (const char *o = letters; *o; o++) {
        int takes = find_short(k->row->shorts, *o);
        if (takes < 0)
            return doubt(k->j, w, "has an option that is not known");
        k->has_script |= (*o == 'e' || *o == 'f') && takes != TAKES_NONE;
        if (k->row->flags & DASH_I_WRITES && *o == 'i')
            add_class(k->j, COMMAND_WRITES, "'%s -i' writes below the workspace", k->row->name);
        if (takes != TAKES_NONE)
            return take_argument(k, takes, o[1] ? o + 1 : NULL);
    }
    return 0;
}

/* ---- operands ---- */

/* sed: one command, which prints, deletes or replaces. w, r and e reach files and programs. */
static bool is_tame_sed(const char *s)
{
    s += strspn(s, "0123456789,$");
    if ((*s == 'p' || *s == 'd' || *s == 'q') && !s[1])
        return true;
    if (*s != 's' || !s[1] || strchr("\\\n;", s[1]) || strchr(s, '\n'))
        return false;

    char mark = s[1];
    unsigned marks = 1;
    for (s += 2; *s && marks < 3; s++) {
        if (*s == '\\' && s[1])
            s++;
        else if (*s == mark)
            marks++;
    }
    return marks == 3 && strspn(s, "gIip0123456789") == strlen(s);
}

static bool is_tame_script(const char *program, const char *text)
{
    static const char *const awk[] = {"system", "getline", "ARG", "|", ">", "@", NULL};
    static const char *const jq[] = {"import", "include", "input_filename", NULL};

    if (!strcmp(program, "sed"))
        return is_tame_sed(text);
    for (const char *const *word = !strcmp(program, "jq") ? jq : awk; *word; word++)
        if (strstr(text, *word))
            return false;
    return true;
}

static int take_operand(struct walk *k)
{
    const struct shell_word *w = &k->words[k->at];
    const struct program *row = k->row;
    unsigned n = k->operands++;

    if (row->operands == OPERANDS_NONE)
        return doubt(k->j, w, "is more than the program is known for");
    if (row->operands == OPERANDS_FORMAT && w->text[0] != '+')
        return doubt(k->j, w, "is more than a format");
    if (row->flags & SECOND_WRITES && n == 1)
        add_class(k->j, COMMAND_WRITES, "'%s' writes its second file", row->name);

    if (row->operands == OPERANDS_TEXTS || row->operands == OPERANDS_FORMAT)
        return 0;
    if (row->operands == OPERANDS_URLS) {
        if (w->flags & SHELL_SPLITS || strstr(w->text, "::") || !strncasecmp(w->text, "file:", 5) ||
            w->text[0] == '/')
            return doubt(k->j, w, "is not certainly an address");
        return 0;
    }
    if (row->operands == OPERANDS_SCRIPT && n == 0 && !k->has_script) {
        if (!shell_word_is_literal(w) && row->flags & SCRIPT_RUNS)
            return doubt(k->j, w, "is a script that is not known before it runs");
        if (w->flags & SHELL_SPLITS)
            return doubt(k->j, w, "could be several words");
        return row->flags & SCRIPT_RUNS && !is_tame_script(row->name, w->text)
                   ? doubt(k->j, w, "is a script that may do more")
                   : 0;
    }
    return check_path(k->j, w, w->text);
}

/* Could the word turn out to be an option? */
static bool may_be_option(const struct shell_word *w)
{
    return !shell_word_is_literal(w) && !(w->flags & SHELL_FOUND_PATH) &&
           (!w->text[0] || w->text[0] == '-');
}

static int walk_words(struct walk *k)
{
    bool options = true;
    if (k->row->operands == OPERANDS_ANY)
        return 0;

    for (k->at = 1; k->at < k->count; k->at++) {
        const struct shell_word *w = &k->words[k->at];
        /* What a glob finds has no slash in it, so as an option it reaches nothing elsewhere. */
        bool harms = k->row->flags & OPTIONS_HARM ||
                     (k->row->operands != OPERANDS_TEXTS && w->flags & SHELL_EXPANDS);
        if (options && harms && may_be_option(w))
            return doubt(k->j, w, "could be an option");

        bool bundle = k->row->flags & BUNDLE_FIRST && k->at == 1 && w->text[0] != '-';
        int r = bundle ? take_shorts(k, w->text)
                : !options || w->text[0] != '-' || !w->text[1] || !shell_word_is_literal(w)
                    ? take_operand(k)
                : !strcmp(w->text, "--") ? (options = false, 0)
                : w->text[1] == '-'      ? take_long(k)
                                         : take_shorts(k, w->text + 1);
        if (r < 0)
            return -1;
    }
    return 0;
}

/* ---- commands with rules of their own ---- */

static int judge_find(struct judge *j, const struct shell_word *words, size_t count)
{
    bool paths = true;

    for (size_t i = 1; i < count; i++) {
        const struct shell_word *w = &words[i];
        const char *t = w->text;
        if (paths && (t[0] != '-' || !shell_word_is_literal(w)) && strcmp(t, "(") != 0 &&
            strcmp(t, "!") != 0) {
            if (may_be_option(w))
                return doubt(j, w, "could be an option");
            if (check_path(j, w, t) < 0)
                return -1;
            continue;
        }

        paths = false;
        if (w->flags & SHELL_SPLITS)
            return doubt(j, w, "could be several words");
        if (!strcmp(t, "-delete")) {
            add_class(j, COMMAND_WRITES, "'find -delete' writes below the workspace");
        } else if (!strcmp(t, "-exec") || !strcmp(t, "-execdir")) {
            /* The command is judged by itself. */
            while (i < count && strcmp(words[i].text, ";") != 0 && strcmp(words[i].text, "+") != 0)
                i++;
        } else if (listed(find_tests, t, strlen(t))) {
            i++;
            if (i < count && (words[i].flags & SHELL_SPLITS))
                return doubt(j, &words[i], "could be several words");
            if (i < count && !strncmp(t, "-newer", 6) &&
                check_path(j, &words[i], words[i].text) < 0)
                return -1;
        } else if (!listed(find_words, t, strlen(t)) || !shell_word_is_literal(w)) {
            return doubt(j, w, "is not known of find");
        }
    }
    add_class(j, COMMAND_READS, "it only reads below the workspace");
    return 0;
}

/* export, declare, read: each operand is a variable. */
bool command_variable_is_harmless(const char *text)
{
    static const char harmless[] = "LANG LC_ALL LC_CTYPE LC_COLLATE LC_NUMERIC LC_TIME TZ TERM "
                                   "COLUMNS LINES NO_COLOR FORCE_COLOR DEBIAN_FRONTEND CI";
    static const char proxies[] = "http_proxy https_proxy ftp_proxy all_proxy no_proxy";
    char name[64];
    size_t len = strcspn(text, "=+[");

    if (len == 0 || len >= sizeof name)
        return false;
    memcpy(name, text, len);
    name[len] = 0;
    if (listed(harmless, name, len))
        return true;
    return ((name[0] >= 'a' && name[0] <= 'z') || name[0] == '_') && !listed(proxies, name, len);
}

static int judge_variable(struct judge *j, const struct shell_word *w)
{
    return command_variable_is_harmless(w->text)
               ? 0
               : doubt(j, w, "sets a variable that programs go by");
}

static int judge_setter(struct judge *j, const struct shell_word *words, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        if (words[i].text[0] == '-' && shell_word_is_literal(&words[i]))
            continue;
        if (judge_variable(j, &words[i]) < 0)
            return -1;
    }
    add_class(j, COMMAND_READS, "it only reads below the workspace");
    return 0;
}

static int judge_cd(struct judge *j, const struct shell_word *words, size_t count)
{
    if (count != 2 || words[1].text[0] == '-')
        return doubt(j, &words[0], "may leave the workspace");
    if (check_path(j, &words[1], words[1].text) < 0)
        return -1;
    add_class(j, COMMAND_READS, "it only reads below the workspace");
    return 0;
}

/* Package managers and git: what they do is their first word. */
static int judge_manager(struct judge *j, const struct manager *m, const struct shell_word *words,
                         size_t count)
{
    static const char quiet[] = "-y -q -qq --yes --quiet -g";
    size_t first = 1;
    while (first + 1 < count && listed(quiet, words[first].text, strlen(words[first].text)))
        first++;
    const char *verb = first < count ? words[first].text : "";

    for (size_t i = 1; i < count; i++) {
        const char *t = words[i].text;
        if (!shell_word_is_literal(&words[i]))
            return doubt(j, &words[i], "is not known before it runs");
        if (t[0] == '-' && (!strncmp(t, "-o", 2) || !strncmp(t, "-c", 2) || !strncmp(t, "-u", 2) ||
                            !strncmp(t, "--option", 8) || !strncmp(t, "--config", 8) ||
                            !strncmp(t, "--upload", 8) || strstr(t, "script") || strstr(t, "exec")))
            return doubt(j, &words[i], "is an option that may run programs");
        if (strstr(t, "::"))
            return doubt(j, &words[i], "is an address that may run programs");
    }

    if (*verb && listed(m->reads, verb, strlen(verb)))
        add_class(j, COMMAND_READS, "it only reads below the workspace");
    else if (*verb && listed(m->installs, verb, strlen(verb)))
        add_class(j, COMMAND_INSTALLS, "'%s %s' installs", m->name, verb);
    else if (*verb && listed(m->networks, verb, strlen(verb)))
        add_class(j, COMMAND_NETWORKS, "'%s %s' uses the network", m->name, verb);
    else
        return doubt(j, &words[first < count ? first : 0], "is not known to be harmless here");
    return 0;
}

/* python3 -m pip install ... */
static int judge_python(struct judge *j, const struct shell_word *words, size_t count)
{
    if (count == 2 && shell_word_is_literal(&words[1]) &&
        (!strcmp(words[1].text, "--version") || !strcmp(words[1].text, "-V"))) {
        add_class(j, COMMAND_READS, "it only reads below the workspace");
        return 0;
    }
    if (count > 3 && !strcmp(words[1].text, "-m") && !strcmp(words[2].text, "pip"))
        return judge_manager(j, manager_find("pip"), words + 2, count - 2);
    return doubt(j, &words[0], "runs code that is not looked into");
}

/* ---- what the reader tells ---- */

static const char *name_of(const char *written)
{
    static const char *const places[] = {"/bin/", "/usr/bin/", "/usr/local/bin/"};

    if (!strchr(written, '/'))
        return written;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t len = strlen(places[i]);
        if (!strncmp(written, places[i], len) && !strchr(written + len, '/'))
            return written + len;
    }
    return NULL;
}

static int judge_wrapper(struct judge *j, const struct found *f)
{
    static const char plain[] = "command builtin exec nice timeout stdbuf setsid ionice eval";
    const char *name = name_of(f->name);
    const struct shell_word *words = f->words;

    if (!name)
        return doubt(j, &words[0], "is not a program of the system");
    if (listed(plain, name, strlen(name)))
        return 0;
    if (!strcmp(name, "nohup")) {
        add_class(j, COMMAND_WRITES, "'nohup' may write nohup.out");
        return 0;
    }
    if (!strcmp(name, "env") || !strcmp(name, "time")) {
        for (size_t i = 1; i < f->count && words[i].text[0] == '-'; i++)
            if (!listed("-i -0 -v -p -- -", words[i].text, strlen(words[i].text)))
                return doubt(j, &words[i], "is an option that is not known");
        return 0;
    }
    if (!strcmp(name, "xargs") && f->count == 1)
        return 0;
    /* A shell of the system that reads no other files: sh -c, bash -ec. */
    if (listed("sh bash dash", name, strlen(name)) && f->count > 1 && words[1].text[0] == '-' &&
        words[1].text[1] && strspn(words[1].text + 1, "ceux") == strlen(words[1].text + 1))
        return 0;
    return doubt(j, &words[0], "runs others in ways that are not looked into");
}

static int judge_redirection(struct judge *j, const struct found *f)
{
    const struct shell_word *w = f->words;
    const char *op = f->name;

    if (!strcmp(op, "<<<"))
        return 0;
    if ((!strcmp(op, ">&") || !strcmp(op, "<&")) && shell_word_is_literal(w) &&
        strspn(w->text, "0123456789-") == strlen(w->text))
        return 0;
    if (shell_word_is_literal(w) &&
        (!strncmp(w->text, "/dev/tcp/", 9) || !strncmp(w->text, "/dev/udp/", 9))) {
        add_class(j, COMMAND_NETWORKS, "'%.60s' uses the network", w->text);
        return 0;
    }

    if (!shell_word_is_literal(w))
        return doubt(j, w, "is a file that is not known before it runs");
    if (check_path(j, w, w->text) < 0)
        return -1;
    if (strcmp(op, "<") != 0 && strncmp(w->text, "/dev/", 5) != 0)
        add_class(j, COMMAND_WRITES, "'%.60s' is written below the workspace", w->text);
    return 0;
}

static int judge_program(struct judge *j, const struct found *f)
{
    static const char *const verbs[] = {
        [COMMAND_WRITES] = "writes below the workspace",
        [COMMAND_INSTALLS] = "installs",
        [COMMAND_NETWORKS] = "uses the network",
    };
    const char *name = name_of(f->name);

    if (!name)
        return doubt(j, &f->words[0], "is not a program of the system");
    if (!strcmp(name, "find"))
        return judge_find(j, f->words, f->count);
    if (!strcmp(name, "cd") || !strcmp(name, "pushd"))
        return judge_cd(j, f->words, f->count);
    if (listed("export declare local readonly typeset read", name, strlen(name)))
        return judge_setter(j, f->words, f->count);
    if (listed("python python3", name, strlen(name)))
        return judge_python(j, f->words, f->count);

    const struct manager *m = manager_find(name);
    if (m)
        return judge_manager(j, m, f->words, f->count);

    struct walk k = {.j = j, .row = program_find(name), .words = f->words, .count = f->count};
    if (!k.row)
        return doubt(j, &f->words[0], "is not known to be harmless");
    if (walk_words(&k) < 0)
        return -1;
    if (k.row->what == COMMAND_READS)
        add_class(j, COMMAND_READS, "it only reads below the workspace");
    else
        add_class(j, k.row->what, "'%s' %s", name, verbs[k.row->what]);
    return 0;
}

static int judge(void *ctx, const struct found *f, struct pd_err *e)
{
    struct judge *j = ctx;
    int r = 0;

    switch (f->kind) {
    case FOUND_COMMAND:
        r = judge_program(j, f);
        break;
    case FOUND_WRAPPER:
        r = judge_wrapper(j, f);
        break;
    case FOUND_ASSIGNMENT:
        r = judge_variable(j, f->words);
        break;
    case FOUND_REDIRECTION:
        r = judge_redirection(j, f);
        break;
    case FOUND_FUNCTION: /* its body was told of */
    case FOUND_MENTION:  /* its launcher is unknown */
        break;
    }
    return r < 0 ? pd_fail(e, PD_POLICY, "unknown") : 0;
}

void command_classify(const char *line, const char *workspace, struct command_verdict *ret)
{
    struct command_verdict verdict = {.what = COMMAND_READS};
    struct judge j = {.verdict = &verdict, .workspace = workspace};
    struct pd_err e = {.msg = ""};

    int bad = shell_commands(line, judge, &j, &e);
    if (bad < 0 && !(verdict.classes & 1u << COMMAND_UNKNOWN))
        add_class(&j, COMMAND_UNKNOWN, "the line cannot be judged: %.120s", e.msg);
    if (!verdict.classes)
        add_class(&j, COMMAND_READS, "it runs nothing");
    *ret = verdict;
}

/* As a line in which every word is quoted; a word of its own for the reader each. */
void command_classify_argv(const char *const *argv, const char *workspace,
                           struct command_verdict *ret)
{
    auto_buf line = BUF_INIT(ARGV_MAX);

    for (size_t i = 0; argv[i]; i++) {
        buf_puts(&line, i ? " '" : "'");
        for (const char *c = argv[i]; *c; c++)
            if (*c == '\'')
                buf_puts(&line, "'\\''");
            else
                buf_putc(&line, (uint8_t)*c);
        buf_putc(&line, '\'');
    }

    const char *text = buf_cstr(&line);
    if (text) {
        command_classify(text, workspace, ret);
        return;
    }
    *ret = (struct command_verdict){.what = COMMAND_UNKNOWN,
                                    .classes = 1u << COMMAND_UNKNOWN,
                                    .reason = "the command is too long to be judged"};
}
