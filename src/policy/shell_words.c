/* How this works. One position moves over the text; nothing is read twice. A substitution is read
 * by the grammar where it stands, so its end is found as bash finds it. Only backquotes and bodies
 * of here-documents are copied, because they have a layer of escapes of their own, and are read as
 * texts one level deeper.
 *
 * The danger is a place where bash ends a quotation and this reader does not, because then it would
 * take commands for text. Wherever that depends on the version, on an option or on context that is
 * hard to see (single quotes inside "${..}", (( that is two subshells), the line is refused. */
#include "base/banned.h"
#include "base/err.h"
#include "policy/shell_reader.h"

#include <stdarg.h>

int shell_fail(struct shell *s, const char *fmt, ...)
{
    char why[160];
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    size_t at = s->nested ? s->origin : s->pos;
    return pd_fail(s->e, PD_POLICY, "the command line cannot be judged: %s, at byte %zu", why, at);
}

int shell_only_bash(struct shell *s, const char *what)
{
    if (!s->portable)
        return 0;
    return shell_fail(s, "only bash knows %s, use 'bash -c' instead of 'sh -c'", what);
}

static int is_continued(const struct shell *s, size_t pos)
{
    return pos + 1 < s->len && s->text[pos] == '\\' && s->text[pos + 1] == '\n';
}

int shell_peek(struct shell *s)
{
    while (is_continued(s, s->pos))
        s->pos += 2;
    return s->pos < s->len ? (unsigned char)s->text[s->pos] : 0;
}

int shell_after(const struct shell *s, size_t n)
{
    size_t p = s->pos;
    for (; n > 0 && p < s->len; n--) {
        p++;
        while (is_continued(s, p))
            p += 2;
    }
    return p < s->len ? (unsigned char)s->text[p] : 0;
}

void shell_skip(struct shell *s, size_t n)
{
    for (; n > 0 && shell_peek(s); n--)
        s->pos++;
}

void shell_skip_blanks(struct shell *s)
{
    for (int c = shell_peek(s); c == ' ' || c == '\t'; c = shell_peek(s))
        s->pos++;
}

int shell_is_meta(int c)
{
    return c == 0 || strchr(" \t\n;&|()<>", c) != NULL;
}

int shell_is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

void reading_init(struct reading *r)
{
    *r = (struct reading){.text = BUF_INIT(SHELL_LINE_MAX + 1)};
}

void reading_done(struct reading *r)
{
    buf_done(&r->text);
}

const char *reading_text(struct shell *s, struct reading *r)
{
    const char *text = r->text.overflow ? NULL : buf_cstr(&r->text);
    if (!text)
        shell_fail(s, "no memory for it");
    return text;
}

/* A character whose value is known. What follows something unknown is not kept. */
static void put(struct reading *r, int c)
{
    if (!(r->flags & (SHELL_EXPANDS | SHELL_PATTERN)))
        buf_putc(&r->text, (char)c);
}

static void mark_expansion(struct reading *r, int splits)
{
    r->flags |= SHELL_EXPANDS | (splits ? SHELL_SPLITS : 0);
}

/* The search for NAME=, NAME+= and NAME[..]= at the start of a word. */
enum { A_START, A_NAME, A_SUBSCRIPT, A_BEHIND, A_PLUS, A_FOUND, A_NO };

static void assignment_step(struct reading *r, int c)
{
    switch (r->assignment) {
    case A_START:
        r->assignment = shell_is_name(c) && !(c >= '0' && c <= '9') ? A_NAME : A_NO;
        break;
    case A_NAME:
    case A_BEHIND:
        if (c == '=')
            r->assignment = A_FOUND;
        else if (c == '+')
            r->assignment = A_PLUS;
        else if (c == '[' && r->assignment == A_NAME)
            r->assignment = A_SUBSCRIPT;
        else if (!shell_is_name(c) || r->assignment == A_BEHIND)
            r->assignment = A_NO;
        break;
    case A_SUBSCRIPT:
        if (c == '[')
            r->subscripts++;
        else if (c == ']' && r->subscripts-- == 0)
            r->assignment = A_BEHIND;
        break;
    case A_PLUS:
        r->assignment = c == '=' ? A_FOUND : A_NO;
        break;
    default:
        break;
    }

    if (r->assignment == A_FOUND)
        r->flags |= SHELL_ASSIGNS;
}

static void assignment_quote(struct reading *r)
{
    if (r->assignment != A_SUBSCRIPT && r->assignment != A_FOUND)
        r->assignment = A_NO;
}

/* An unquoted ordinary character: it may be part of a pattern. */
static void put_plain(struct reading *r, int c)
{
    int previous = r->text.len ? r->text.data[r->text.len - 1] : 0;
    if (c == '*' || c == '?' || (c == '~' && r->text.len == 0 && !(r->flags & SHELL_QUOTED)))
        r->flags |= SHELL_PATTERN;
    else if (c == '[')
        r->bracket = 1;
    else if (c == ']' && r->bracket)
        r->flags |= SHELL_PATTERN;
    else if (c == '{')
        r->brace = r->brace ? r->brace : 1;
    else if (r->brace && (c == ',' || (c == '.' && previous == '.')))
        r->brace = 2;
    else if (c == '}' && r->brace == 2)
        r->flags |= SHELL_PATTERN | SHELL_SPLITS;

    put(r, c);
    assignment_step(r, c);
}

static int read_single_quotes(struct shell *s, struct reading *r)
{
    size_t start = ++s->pos;
    while (s->pos < s->len && s->text[s->pos] != '\'')
        put(r, s->text[s->pos++]);

    if (s->pos >= s->len) {
        s->pos = start - 1;
        return shell_fail(s, "a single quote is not closed");
    }
    s->pos++;
    return 0;
}

static int digit_value(int c, int base)
{
    int v = c >= '0' && c <= '9'                 ? c - '0'
            : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87
                                                 : 99;
    return v < base ? v : -1;
}

/* The number in $'\nnn', $'\xHH', $'\uHHHH' at the position. */
static int read_escaped_number(struct shell *s, struct reading *r, int base, unsigned digits)
{
    unsigned value = 0, n = 0;
    for (; n < digits && s->pos < s->len; n++, s->pos++) {
        int d = digit_value(s->text[s->pos], base);
        if (d < 0)
            break;
        value = value * (unsigned)base + (unsigned)d;
    }

    if (n == 0 || (value >= 128 && digits > 3)) {
        mark_expansion(r, 0); /* depends on the version or on the locale */
        return 0;
    }
    if ((value & 255) == 0)
        return shell_fail(s, "a NUL byte in $'..'");

    put(r, (int)(value & 255));
    return 0;
}

static int read_ansi_escape(struct shell *s, struct reading *r)
{
    static const char names[] = "abeEfnrtv\\'\"?", values[] = "\a\b\033\033\f\n\r\t\v\\'\"?";
    int c = s->text[s->pos];

    const char *known = strchr(names, c);
    if (known && c) {
        put(r, values[known - names]);
        s->pos++;
    } else if (c >= '0' && c <= '7') {
        return read_escaped_number(s, r, 8, 3);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        s->pos++;
        return read_escaped_number(s, r, 16, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else {
        mark_expansion(r, 0);
        s->pos++;
    }
    return 0;
}

static int read_ansi_quotes(struct shell *s, struct reading *r)
{
    if (shell_only_bash(s, "$'..'") < 0)
        return -1;
    shell_skip(s, 2);
    while (s->pos < s->len && s->text[s->pos] != '\'') {
        int c = s->text[s->pos++];
        if (c != '\\')
            put(r, c);
        else if (s->pos < s->len && read_ansi_escape(s, r) < 0)
            return -1;
    }

    if (s->pos >= s->len)
        return shell_fail(s, "a $' quote is not closed");
    s->pos++;
    return 0;
}

/* The inside of `..`: unpacked from its layer of escapes, then read as a text of its own. */
static int read_backquotes(struct shell *s, enum quoting q)
{
    auto_buf inside = BUF_INIT(SHELL_LINE_MAX);
    size_t p = s->pos + 1;

    for (; p < s->len && s->text[p] != '`'; p++) {
        char c = s->text[p];
        if (c == '\n' && s->docs.len)
            return shell_fail(s, "a newline in a substitution behind a here-document");
        if (c != '\\' || p + 1 >= s->len) {
            buf_putc(&inside, c);
            continue;
        }

        char next = s->text[++p];
        if (next == '"' && q == Q_DOC)
            return shell_fail(s, "\\\" in backquotes in a here-document");
        if (next == '\n')
            continue;
        if (!strchr("$`\\", next) && !(next == '"' && q == Q_DOUBLE))
            buf_putc(&inside, c);
        buf_putc(&inside, next);
    }

    if (p >= s->len)
        return shell_fail(s, "a backquote is not closed");
    if (inside.overflow)
        return shell_fail(s, "no memory for it");
    if (shell_read_nested(s, (const char *)inside.data, inside.len) < 0)
        return -1;
    s->pos = p + 1;
    return 0;
}

static int read_dollar(struct shell *s, struct reading *r, enum quoting q);

static int read_double_quotes(struct shell *s, struct reading *r)
{
    size_t start = s->pos;

    shell_skip(s, 1);
    for (int c = shell_peek(s); c != '"'; c = shell_peek(s)) {
        int failed = 0;
        if (c == 0) {
            s->pos = start;
            return shell_fail(s, "a double quote is not closed");
        } else if (c == '$') {
            failed = read_dollar(s, r, Q_DOUBLE);
        } else if (c == '`') {
            mark_expansion(r, 0);
            failed = read_backquotes(s, Q_DOUBLE);
        } else if (c == '\\' && s->pos + 1 < s->len) {
            char next = s->text[s->pos + 1];
            if (!strchr("$`\"\\", next))
                put(r, c);
            put(r, next);
            s->pos += 2;
        } else {
            put(r, c);
            s->pos++;
        }
        if (failed)
            return -1;
    }

    s->pos++;
    return 0;
}

/* Single quotes inside "${..}" are quotes for some operators and letters for others. They are
 * taken where that makes no difference to where things end and to what runs. */
static int read_doubtful_quotes(struct shell *s)
{
    size_t p = s->pos + 1;
    while (p < s->len && !strchr("'\"\\`${}", s->text[p]))
        p++;

    if (p >= s->len || s->text[p] != '\'' || s->text[s->pos - 1] == '$')
        return shell_fail(s, "single quotes inside \"${..}\" can be read in two ways");
    s->pos = p + 1;
    return 0;
}

/* One step inside ${..}. */
static int read_parameter_step(struct shell *s, struct reading *unused, int c, enum quoting q)
{
    if (c == 0)
        return shell_fail(s, "a ${ is not closed");
    if (c == '@' && shell_after(s, 1) == 'P' && shell_after(s, 2) == '}')
        return shell_fail(s, "${..@P} runs what is in a variable");
    if (c == '$')
        return read_dollar(s, unused, q);
    if (c == '`')
        return read_backquotes(s, q);
    if (c == '\'')
        return q == Q_NONE ? read_single_quotes(s, unused) : read_doubtful_quotes(s);
    if (c == '"' && q == Q_DOC)
        return shell_fail(s, "double quotes inside ${..} in a here-document");
    if (c == '"')
        return read_double_quotes(s, unused);
    if ((c == '<' || c == '>') && q == Q_NONE && shell_after(s, 1) == '(')
        return shell_fail(s, "a process substitution inside ${..}");
    if (c == '\\' && s->pos + 1 >= s->len)
        return shell_fail(s, "a ${ is not closed");

    s->pos += c == '\\' ? 2 : 1;
    return 0;
}

static int read_parameter(struct shell *s, struct reading *r, enum quoting q)
{
    auto_reading unused;
    reading_init(&unused);
    shell_skip(s, 2);

    int first = shell_peek(s), many = q == Q_NONE;
    if (first == ' ' || first == '\t' || first == '\n' || first == '|')
        return shell_fail(s, "commands inside ${..}");
    if (s->depth >= SHELL_DEPTH_MAX)
        return shell_fail(s, "it is nested more than %d deep", SHELL_DEPTH_MAX);

    s->depth++;
    for (int c = first; c != '}'; c = shell_peek(s)) {
        many |= c == '@' || c == '*';
        if (read_parameter_step(s, &unused, c, q) < 0)
            return -1;
    }

    s->depth--;
    s->pos++;
    mark_expansion(r, many);
    return 0;
}

int shell_read_arithmetic(struct shell *s)
{
    auto_reading unused;
    reading_init(&unused);
    unsigned open = 0;

    for (;;) {
        int c = shell_peek(s), failed = 0;
        if (c == 0)
            return shell_fail(s, "a (( is not closed");
        if (c == '\'' || c == '\\' || c == '`')
            return shell_fail(s, "a quote or a backquote inside ((..))");
        if (c == '\n' && s->docs.len)
            return shell_fail(s, "a newline in (( behind a here-document");

        if (c == ')' && open == 0)
            break;
        if (c == '"')
            failed = read_double_quotes(s, &unused);
        else if (c == '$')
            failed = read_dollar(s, &unused, Q_DOUBLE);
        else {
            open += c == '(';
            open -= c == ')';
            s->pos++;
        }
        if (failed)
            return -1;
    }

    if (shell_after(s, 1) != ')')
        return shell_fail(s, "(( that is not arithmetic: put a space between the two");
    shell_skip(s, 2);
    return 0;
}

static int read_dollar_bracket(struct shell *s, struct reading *r, enum quoting q)
{
    mark_expansion(r, q == Q_NONE);
    if (shell_after(s, 2) != '(') {
        shell_skip(s, 2);
        return shell_read_substitution(s);
    }

    shell_skip(s, 3);
    if (s->depth >= SHELL_DEPTH_MAX)
        return shell_fail(s, "it is nested more than %d deep", SHELL_DEPTH_MAX);
    s->depth++;
    int failed = shell_read_arithmetic(s);
    s->depth--;
    return failed;
}

/* Everything that a dollar can begin; alone it is a letter. */
static int read_dollar(struct shell *s, struct reading *r, enum quoting q)
{
    int next = shell_after(s, 1);
    if (next == '(')
        return read_dollar_bracket(s, r, q);
    if (next == '{')
        return read_parameter(s, r, q);
    if (next == '[')
        return shell_fail(s, "$[..]: write $((..))");
    if (next == '\'' && q == Q_NONE)
        return read_ansi_quotes(s, r);

    if (next == '"' && q == Q_NONE) {
        if (shell_only_bash(s, "$\"..\"") < 0)
            return -1;
        shell_skip(s, 1);
        shell_peek(s);
        return read_double_quotes(s, r);
    }

    if (next && (shell_is_name(next) || strchr("@*#?-$!", next))) {
        mark_expansion(r, q == Q_NONE || next == '@');
        shell_skip(s, 2);
        while (shell_is_name(next) && !(next >= '0' && next <= '9') && shell_is_name(shell_peek(s)))
            s->pos++;
        return 0;
    }

    put(r, '$');
    s->pos++;
    return 0;
}

int shell_read_body(struct shell *s)
{
    auto_reading unused;
    reading_init(&unused);

    for (int c = shell_peek(s); c; c = shell_peek(s)) {
        int failed = 0;
        if (c == '$')
            failed = read_dollar(s, &unused, Q_DOC);
        else if (c == '`')
            failed = read_backquotes(s, Q_DOC);
        else
            s->pos += c == '\\' && s->pos + 1 < s->len ? 2 : 1;
        if (failed)
            return -1;
    }
    return 0;
}

/* The elements of NAME=( .. ), from the bracket on. */
static int read_elements(struct shell *s)
{
    if (shell_only_bash(s, "arrays") < 0)
        return -1;
    shell_skip(s, 1);

    for (;;) {
        auto_reading element;
        reading_init(&element);
        if (s->docs.len)
            return shell_fail(s, "an array behind a here-document");
        if (shell_skip_lines(s) < 0)
            return -1;

        int c = shell_peek(s);
        if (c == ')')
            break;
        if (shell_is_meta(c) && !((c == '<' || c == '>') && shell_after(s, 1) == '('))
            return shell_fail(s, "an array is not closed");

        if (s->depth >= SHELL_DEPTH_MAX)
            return shell_fail(s, "it is nested more than %d deep", SHELL_DEPTH_MAX);
        s->depth++;
        if (shell_read_word(s, &element) < 0)
            return -1;
        s->depth--;
    }

    s->pos++;
    /* The word goes on for bash, and is an assignment still. */
    int next = shell_peek(s);
    if (!shell_is_meta(next) || next == '(' || next == '<' || next == '>')
        return shell_fail(s, "an array with something behind its bracket");
    return 0;
}

/* One piece of a word that is not an ordinary character. 1 when c is one. */
static int read_piece(struct shell *s, struct reading *r, int c)
{
    if (c == '\'' || c == '"' || c == '\\') {
        assignment_quote(r);
        r->flags |= SHELL_QUOTED;
    }
    if (c == '$' || c == '`')
        assignment_quote(r);

    switch (c) {
    case '\'':
        return read_single_quotes(s, r);
    case '"':
        return read_double_quotes(s, r);
    case '\\':
        if (s->pos + 1 >= s->len)
            return shell_fail(s, "a backslash at the end");
        put(r, s->text[s->pos + 1]);
        s->pos += 2;
        return 0;
    case '$':
        if (shell_after(s, 1) == '\'' || shell_after(s, 1) == '"')
            r->flags |= SHELL_QUOTED;
        return read_dollar(s, r, Q_NONE);
    case '`':
        mark_expansion(r, 1);
        return read_backquotes(s, Q_NONE);
    case '<':
    case '>':
        if (shell_only_bash(s, "process substitutions") < 0)
            return -1;
        assignment_quote(r);
        mark_expansion(r, 0);
        shell_skip(s, 2);
        return shell_read_substitution(s);
    default:
        return 1;
    }
}

int shell_read_word(struct shell *s, struct reading *r)
{
    r->start = (shell_peek(s), s->pos);
    for (;;) {
        int c = shell_peek(s);
        if (c == '(' && r->assignment == A_FOUND && s->pos > r->start && s->text[s->pos - 1] == '=')
            return read_elements(s);
        if (shell_is_meta(c) && !((c == '<' || c == '>') && shell_after(s, 1) == '(')) {
            /* Where a command may stand, bash reads on to the ] over blanks and all. */
            if (r->assignment == A_SUBSCRIPT)
                r->flags |= SHELL_PATTERN;
            return 0;
        }

        int piece = read_piece(s, r, c);
        if (piece < 0)
            return -1;
        if (piece > 0) {
            put_plain(r, c);
            s->pos++;
        }
    }
}
