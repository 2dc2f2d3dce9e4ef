/* How this works. Recursive descent over bash's grammar: a list is read until one of the words that
 * may end it there, so every context is known and none is guessed from the words around it. What
 * bash would reject is mostly rejected, and sometimes accepted: then bash runs nothing of it.
 *
 * A function counts as defined for the commands behind it in the same list and below: there it is
 * certain that the definition was run, in this process, before. Everywhere else its name is judged
 * like that of a program. */
#include "base/banned.h"
#include "base/err.h"
#include "policy/shell_reader.h"

/* Bytes of names: each command is looked for among them. */
#define FUNCTIONS_MAX 4096

enum keyword {
    K_NONE,
    K_BANG,
    K_TIME,
    K_BRACE,
    K_IF,
    K_WHILE,
    K_UNTIL,
    K_FOR,
    K_SELECT,
    K_CASE,
    K_FUNCTION,
    K_CONDITION,
    K_COPROC,
    K_STOP /* ends a list: the stop says which */
};

static const struct {
    const char *word;
    enum keyword keyword;
    unsigned stop;
} keywords[] = {{"!", K_BANG, 0},
                {"time", K_TIME, 0},
                {"{", K_BRACE, 0},
                {"if", K_IF, 0},
                {"while", K_WHILE, 0},
                {"until", K_UNTIL, 0},
                {"for", K_FOR, 0},
                {"select", K_SELECT, 0},
                {"case", K_CASE, 0},
                {"function", K_FUNCTION, 0},
                {"[[", K_CONDITION, 0},
                {"coproc", K_COPROC, 0},
                {"}", K_STOP, STOP_BRACE},
                {"then", K_STOP, STOP_THEN},
                {"else", K_STOP, STOP_ELSE},
                {"elif", K_STOP, STOP_ELIF},
                {"fi", K_STOP, STOP_FI},
                {"do", K_STOP, STOP_DO},
                {"done", K_STOP, STOP_DONE},
                {"esac", K_STOP, STOP_ESAC}};

/* Does this unquoted word stand at the position? Nothing is taken. */
static int at_word(struct shell *s, const char *word)
{
    size_t n = 0;
    if (shell_peek(s) != word[0])
        return 0;

    while (word[n] && shell_after(s, n) == word[n])
        n++;
    return !word[n] && shell_is_meta(shell_after(s, n));
}

static enum keyword at_keyword(struct shell *s, unsigned *ret_stop, const char **ret_word)
{
    *ret_stop = 0;
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (at_word(s, keywords[i].word)) {
            *ret_stop = keywords[i].stop;
            *ret_word = keywords[i].word;
            return keywords[i].keyword;
        }
    return K_NONE;
}

static int take_word(struct shell *s, const char *word)
{
    if (!at_word(s, word))
        return shell_fail(s, "'%s' is missing", word);
    shell_skip(s, strlen(word));
    return 0;
}

static int unexpected(struct shell *s)
{
    int c = shell_peek(s);
    if (c == 0)
        return shell_fail(s, "it ends too early");
    return shell_fail(s, "an unexpected '%c'", c >= ' ' && c < 127 ? c : '?');
}

static int deeper(struct shell *s)
{
    if (s->depth >= SHELL_DEPTH_MAX)
        return shell_fail(s, "it is nested more than %d deep", SHELL_DEPTH_MAX);
    s->depth++;
    return 0;
}

int shell_read_substitution(struct shell *s)
{
    unsigned stop;
    size_t docs = s->docs.len;
    int blocked = s->docs_blocked;

    if (deeper(s) < 0)
        return -1;

    s->docs_blocked |= docs > 0;
    if (shell_read_list(s, STOP_PAREN, &stop) < 0)
        return -1;
    if (s->docs.len != docs)
        return shell_fail(s, "a here-document must end inside its substitution");

    s->docs_blocked = blocked;
    s->depth--;
    return 0;
}

static int read_compound(struct shell *s, int *ret_found);

/* A function's body; the name is known in it, because only a call runs it. */
int shell_read_function_body(struct shell *s, const char *name)
{
    size_t before = s->functions->len;
    int found = 0;

    if (buf_put(s->functions, name, strlen(name) + 1) < 0)
        return shell_fail(s, "too many functions");

    if (shell_skip_lines(s) < 0 || read_compound(s, &found) < 0)
        return -1;

    s->functions->len = before;
    return found ? 0 : shell_fail(s, "the function '%.40s' has no body", name);
}

/* A list that must end with exactly this. */
static int read_until(struct shell *s, unsigned stop)
{
    unsigned at;
    return shell_read_list(s, stop, &at);
}

static int read_if(struct shell *s)
{
    unsigned stop = STOP_ELIF;
    while (stop == STOP_ELIF)
        if (read_until(s, STOP_THEN) < 0 ||
            shell_read_list(s, STOP_ELIF | STOP_ELSE | STOP_FI, &stop) < 0)
            return -1;
    return stop == STOP_ELSE ? read_until(s, STOP_FI) : 0;
}

/* The body of a loop with words: do .. done, or in braces. */
static int read_loop_body(struct shell *s)
{
    if (shell_skip_lines(s) < 0)
        return -1;
    if (at_word(s, "{")) {
        shell_skip(s, 1);
        return read_until(s, STOP_BRACE);
    }
    return take_word(s, "do") < 0 ? -1 : read_until(s, STOP_DONE);
}

static int read_for_arithmetic(struct shell *s)
{
    if (shell_only_bash(s, "for ((") < 0)
        return -1;
    shell_skip(s, 2);
    if (shell_read_arithmetic(s) < 0)
        return -1;

    shell_skip_blanks(s);
    if (shell_peek(s) == ';')
        shell_skip(s, 1);
    return read_loop_body(s);
}

/* for NAME [in words] ; do .. done, and select. */
static int read_for(struct shell *s)
{
    auto_reading name;
    reading_init(&name);
    shell_skip_blanks(s);
    if (shell_peek(s) == '(' && shell_after(s, 1) == '(')
        return read_for_arithmetic(s);

    if (shell_read_word(s, &name) < 0)
        return -1;
    if (name.flags || !name.text.len)
        return shell_fail(s, "a loop without a variable");
    if (shell_visit_assignment(s, &name) < 0 || shell_skip_lines(s) < 0)
        return -1;

    if (!at_word(s, "in")) {
        if (shell_peek(s) == ';')
            shell_skip(s, 1);
        return read_loop_body(s);
    }

    shell_skip(s, 2);
    for (;;) {
        auto_reading word;
        reading_init(&word);
        shell_skip_blanks(s);
        if (shell_skip_comment(s))
            break;
        int c = shell_peek(s);
        if (shell_is_meta(c) && !((c == '<' || c == '>') && shell_after(s, 1) == '('))
            break;
        if (shell_read_word(s, &word) < 0)
            return -1;
    }

    int c = shell_peek(s);
    if (c != ';' && c != '\n')
        return shell_fail(s, "a loop without 'do'");
    if (c == ';')
        shell_skip(s, 1);
    return read_loop_body(s);
}

/* Patterns up to the closing bracket. */
static int read_patterns(struct shell *s)
{
    if (shell_peek(s) == '(')
        shell_skip(s, 1);

    for (;;) {
        auto_reading pattern;
        reading_init(&pattern);
        shell_skip_blanks(s);
        if (shell_peek(s) == '#')
            return shell_fail(s, "a comment instead of a case's pattern");
        if (shell_read_word(s, &pattern) < 0)
            return -1;
        if (s->pos == pattern.start)
            return shell_fail(s, "a case without a pattern");

        shell_skip_blanks(s);
        int c = shell_peek(s);
        shell_skip(s, 1);
        if (c == ')')
            return 0;
        if (c != '|')
            return shell_fail(s, "a case's pattern does not end with ')'");
    }
}

static int read_case(struct shell *s)
{
    auto_reading word;
    reading_init(&word);
    shell_skip_blanks(s);
    if (shell_read_word(s, &word) < 0)
        return -1;
    if (s->pos == word.start)
        return shell_fail(s, "a case without a word");
    if (shell_skip_lines(s) < 0 || take_word(s, "in") < 0)
        return -1;

    for (;;) {
        unsigned stop;
        if (shell_skip_lines(s) < 0)
            return -1;
        if (at_word(s, "esac")) {
            shell_skip(s, 4);
            return 0;
        }
        if (read_patterns(s) < 0 || shell_read_list(s, STOP_CASE | STOP_ESAC, &stop) < 0)
            return -1;
        if (stop == STOP_ESAC)
            return 0;

        int next = shell_after(s, 1);
        if ((next == '&' || shell_after(s, 2) == '&') && shell_only_bash(s, ";&") < 0)
            return -1;
        shell_skip(s, next == ';' && shell_after(s, 2) == '&' ? 3 : 2);
    }
}

/* [[ .. ]]: only substitutions run. It ends with the first word that is ]]. */
static int read_condition(struct shell *s)
{
    for (;;) {
        auto_reading word;
        reading_init(&word);
        if (s->docs.len)
            return shell_fail(s, "[[ behind a here-document");
        shell_skip_blanks(s);
        int c = shell_peek(s);
        if (c == 0)
            return shell_fail(s, "a [[ is not closed");
        if (c == '#')
            return shell_fail(s, "a comment inside [[..]]");

        if (at_word(s, "]]")) {
            shell_skip(s, 2);
            return 0;
        }
        if (shell_is_meta(c) && !((c == '<' || c == '>') && shell_after(s, 1) == '(')) {
            s->pos++;
            continue;
        }
        if (shell_read_word(s, &word) < 0)
            return -1;
    }
}

static int read_function(struct shell *s, struct buf *ret_function)
{
    auto_reading name;
    reading_init(&name);
    shell_skip_blanks(s);
    if (shell_read_word(s, &name) < 0)
        return -1;

    shell_skip_blanks(s);
    if (shell_peek(s) == '(')
        return shell_read_definition(s, &name, ret_function);

    const char *text = reading_text(s, &name);
    if (!text || name.flags || !*text)
        return shell_fail(s, "a function without a plain name");
    if (shell_read_function_body(s, text) < 0)
        return -1;
    if (buf_put(ret_function, text, strlen(text) + 1) < 0)
        return shell_fail(s, "no memory for it");
    return 0;
}

static int read_brackets(struct shell *s)
{
    if (shell_after(s, 1) != '(') {
        shell_skip(s, 1);
        return read_until(s, STOP_PAREN);
    }

    if (shell_only_bash(s, "((") < 0)
        return -1;
    shell_skip(s, 2);
    return shell_read_arithmetic(s);
}

static int read_keyword(struct shell *s, enum keyword k)
{
    switch (k) {
    case K_BRACE:
        return read_until(s, STOP_BRACE);
    case K_IF:
        return read_if(s);
    case K_WHILE:
    case K_UNTIL:
        return read_until(s, STOP_DO) < 0 ? -1 : read_until(s, STOP_DONE);
    case K_FOR:
    case K_SELECT:
        return read_for(s);
    case K_CASE:
        return read_case(s);
    case K_CONDITION:
        return read_condition(s);
    default:
        return shell_fail(s, "an unexpected word");
    }
}

/* A compound command with its redirections, if one stands here. */
static int read_compound(struct shell *s, int *ret_found)
{
    unsigned stop;
    const char *word = "";
    enum keyword k = at_keyword(s, &stop, &word);
    int bracket = shell_peek(s) == '(';

    *ret_found = bracket || (k >= K_BRACE && k <= K_CASE) || k == K_CONDITION;
    if (!*ret_found)
        return 0;

    if (deeper(s) < 0)
        return -1;
    if (k == K_SELECT || k == K_CONDITION)
        if (shell_only_bash(s, word) < 0)
            return -1;

    shell_skip(s, bracket ? 0 : strlen(word));
    if ((bracket ? read_brackets(s) : read_keyword(s, k)) < 0 || shell_read_redirections(s) < 0)
        return -1;
    s->depth--;
    return 0;
}

static int read_command(struct shell *s, struct buf *ret_function)
{
    unsigned stop;
    const char *word = "";
    int found = 0;

    if (read_compound(s, &found) < 0)
        return -1;
    if (found)
        return 0;

    enum keyword k = at_keyword(s, &stop, &word);
    if (k == K_COPROC)
        return shell_fail(s, "coproc is not understood here");
    if (k == K_STOP)
        return shell_fail(s, "an unexpected '%s'", word);
    if (k != K_FUNCTION)
        return shell_read_simple(s, ret_function);

    if (shell_only_bash(s, "function") < 0)
        return -1;
    shell_skip(s, strlen("function"));
    return read_function(s, ret_function);
}

/* Takes ! and time in front of a pipeline, in any number. */
static int read_prefixes(struct shell *s)
{
    for (;;) {
        shell_skip_blanks(s);
        if (at_word(s, "!")) {
            shell_skip(s, 1);
            continue;
        }
        if (!at_word(s, "time"))
            return 0;

        if (shell_only_bash(s, "time") < 0)
            return -1;
        shell_skip(s, 4);
        shell_skip_blanks(s);
        while (at_word(s, "-p") || at_word(s, "--")) {
            shell_skip(s, 2);
            shell_skip_blanks(s);
        }
    }
}

/* Pipelines joined by && and ||. A function that is defined in one that is joined or piped may not
 * be defined behind it: then the definition is forgotten. */
static int read_and_or(struct shell *s, struct buf *ret_function)
{
    for (int joined = 0;; joined = 1) {
        shell_skip_blanks(s);
        size_t start = s->pos;
        if (read_prefixes(s) < 0 || read_command(s, ret_function) < 0)
            return -1;
        if (s->pos == start)
            return unexpected(s);
        if (joined)
            buf_clear(ret_function);

        shell_skip_blanks(s);
        int c = shell_peek(s), next = shell_after(s, 1);
        if (c != '|' && (c != '&' || next != '&'))
            return 0;

        if (c == '|' && next != '|')
            buf_clear(ret_function);
        if (c == '|' && next == '&' && shell_only_bash(s, "|&") < 0)
            return -1;
        shell_skip(s, next == '|' || next == '&' ? 2 : 1);
        if (shell_skip_lines(s) < 0)
            return -1;
    }
}

/* Is the end of the list here? Takes it, but for ;; */
static int at_stop(struct shell *s, unsigned until, unsigned *ret_stop)
{
    unsigned stop = 0;
    const char *word = "";

    int c = shell_peek(s), next = shell_after(s, 1);
    if (c == 0)
        stop = STOP_END;
    else if (c == ')')
        stop = STOP_PAREN;
    else if (c == ';' && (next == ';' || next == '&'))
        stop = STOP_CASE;
    else
        at_keyword(s, &stop, &word);

    if (!stop)
        return 0;
    if (!(stop & until))
        return *word ? shell_fail(s, "an unexpected '%s'", word) : unexpected(s);

    shell_skip(s, stop == STOP_PAREN ? 1 : strlen(word));
    *ret_stop = stop;
    return 1;
}

/* Takes what separates two commands. 0 when there is nothing: then only a stop may follow. */
static int take_separator(struct shell *s)
{
    shell_skip_blanks(s);
    int c = shell_peek(s), next = shell_after(s, 1);
    if (c == '\n' || c == '#')
        return c;
    if (c == '&' || (c == ';' && next != ';' && next != '&')) {
        shell_skip(s, 1);
        return c;
    }
    return 0;
}

static int read_commands(struct shell *s, unsigned until, unsigned *ret_stop)
{
    for (int separator = ';';;) {
        auto_buf function = BUF_INIT(SHELL_LINE_MAX);
        if (shell_skip_lines(s) < 0)
            return -1;
        int stopped = at_stop(s, until, ret_stop);
        if (stopped)
            return stopped < 0 ? -1 : 0;

        if (!separator)
            return unexpected(s);
        if (read_and_or(s, &function) < 0)
            return -1;

        separator = take_separator(s);
        if (separator != '&' && buf_put(s->functions, function.data, function.len) < 0)
            return shell_fail(s, "too many functions");
    }
}

int shell_read_list(struct shell *s, unsigned until, unsigned *ret_stop)
{
    size_t functions = s->functions->len;

    if (read_commands(s, until, ret_stop) < 0)
        return -1;
    s->functions->len = functions;
    return 0;
}

/* Reads s to its end as a list of its own. */
static int read_whole(struct shell *s)
{
    unsigned stop;

    s->docs = BUF_INIT(SHELL_LINE_MAX);
    int failed = shell_read_list(s, STOP_END, &stop);
    if (!failed && s->docs.len)
        failed = shell_fail(s, "a here-document without a body");
    buf_done(&s->docs);
    return failed;
}

int shell_read(const char *line, const struct shell_visitor *v, struct pd_err *e)
{
    auto_buf functions = BUF_INIT(FUNCTIONS_MAX);

    struct shell s = {
        .text = line, .len = strlen(line), .functions = &functions, .visitor = v, .e = e};
    if (s.len > SHELL_LINE_MAX)
        return pd_fail(e, PD_TOO_LARGE, "the command line has %zu bytes, at most %u", s.len,
                       SHELL_LINE_MAX);
    return read_whole(&s);
}

int shell_visit_words(const struct shell_word *words, size_t count, const struct shell_visitor *v,
                      struct pd_err *e)
{
    auto_buf functions = BUF_INIT(FUNCTIONS_MAX);
    struct shell s = {.text = "", .functions = &functions, .visitor = v, .e = e};
    struct shell_command c = {.words = words, .count = count, .shell = &s};
    return count ? v->command(v->ctx, &c, e) : 0;
}

int shell_read_nested(const struct shell *s, const char *text, size_t len)
{
    struct shell inner = *s;

    inner.text = text;
    inner.len = len;
    inner.pos = 0;
    inner.origin = s->nested ? s->origin : s->pos;
    inner.nested = 1;
    inner.docs_blocked = 0;
    return deeper(&inner) < 0 ? -1 : read_whole(&inner);
}

int shell_read_inside(const struct shell_command *c, const char *script, enum shell_mode mode,
                      struct pd_err *e)
{
    auto_buf none = BUF_INIT(FUNCTIONS_MAX);
    struct shell outer = *c->shell;

    outer.e = e;
    outer.depth = c->depth;

    if (mode != SHELL_SAME)
        outer.functions = &none;
    if (mode != SHELL_SAME)
        outer.portable = mode == SHELL_OTHER;
    return shell_read_nested(&outer, script, strlen(script));
}

int shell_is_function(const struct shell_command *c, const char *name)
{
    const struct buf *names = c->shell->functions;
    for (size_t at = 0; at < names->len;) {
        const char *known = (const char *)names->data + at;
        if (!strcmp(known, name))
            return 1;
        at += strlen(known) + 1;
    }
    return 0;
}
