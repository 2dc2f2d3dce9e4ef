/* Simple commands: assignments, redirections, words, and the `name ()` that makes one a definition.
 * The words of a command are collected and then shown to the visitor as a whole, because only the
 * end of the command tells how many there are. Redirections stand here, too, since any command may
 * have them. */
#include "base/banned.h"
#include "base/err.h"
#include "policy/shell_reader.h"

/* The end of a redirection's number or {name}, if one stands here; else 0. */
static size_t redirection_prefix(struct shell *s)
{
    size_t n = 0;

    int c = shell_peek(s);
    if (c >= '0' && c <= '9') {
        for (; n < 10 && c >= '0' && c <= '9'; c = shell_after(s, n))
            n++;
        if (n == 10)
            return 0; /* too large for a descriptor: a word */
    } else if (c == '{') {
        n = 1;
        while (shell_is_name(shell_after(s, n)))
            n++;
        if (n == 1 || shell_after(s, n) != '}')
            return 0;
        c = shell_after(s, ++n);
    }
    return n && (c == '<' || c == '>') && shell_after(s, n + 1) != '(' ? n : 0;
}

static int at_redirection(struct shell *s)
{
    int c = shell_peek(s);
    if (c == '&')
        return shell_after(s, 1) == '>';
    return ((c == '<' || c == '>') && shell_after(s, 1) != '(') || redirection_prefix(s) > 0;
}

/* Takes the operator; *ret_doc is a here-document's kind, or 0. */
static int read_operator(struct shell *s, const char **ret, int *ret_doc)
{
    static const char *const operators[] = {"&>>", "&>", "<<<", "<<-", "<<", "<&",
                                            "<>",  "<",  ">>",  ">&",  ">|", ">"};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        const char *op = operators[i];
        size_t n = 0;
        shell_peek(s);
        while (op[n] && shell_after(s, n) == op[n])
            n++;
        if (op[n])
            continue;

        if ((op[0] == '&' || !strcmp(op, "<<<")) && shell_only_bash(s, op) < 0)
            return -1;
        shell_skip(s, n);
        *ret = op;
        *ret_doc = !strcmp(op, "<<") ? 1 : !strcmp(op, "<<-") ? 2 : 0;
        return 0;
    }
    return shell_fail(s, "no redirection");
}

/* The word that was just read, for a visitor. It lives as long as the reading. */
static int word_of(struct shell *s, struct reading *r, struct shell_word *ret)
{
    *ret = (struct shell_word){.text = reading_text(s, r),
                               .source = s->text + r->start,
                               .source_len = s->pos - r->start,
                               .flags = r->flags};
    return ret->text ? 0 : -1;
}

static int visit_redirection(struct shell *s, const char *op, struct reading *r)
{
    struct shell_word w;
    return word_of(s, r, &w) < 0 ? -1 : s->visitor->redirection(s->visitor->ctx, op, &w, s->e);
}

static int read_redirection(struct shell *s)
{
    const char *op = NULL;
    auto_reading word;
    reading_init(&word);
    int doc = 0;
    size_t prefix = redirection_prefix(s);

    if (prefix && shell_peek(s) == '{' && shell_only_bash(s, "{name}>") < 0)
        return -1;
    shell_skip(s, prefix);
    if (read_operator(s, &op, &doc) < 0)
        return -1;

    shell_skip_blanks(s);
    if (shell_peek(s) == '#')
        return shell_fail(s, "a redirection to nothing");
    if (shell_read_word(s, &word) < 0)
        return -1;
    if (s->pos == word.start)
        return shell_fail(s, "a redirection to nothing");
    return doc ? shell_doc_add(s, &word, doc == 2) : visit_redirection(s, op, &word);
}

int shell_read_redirections(struct shell *s)
{
    for (shell_skip_blanks(s); at_redirection(s); shell_skip_blanks(s))
        if (read_redirection(s) < 0)
            return -1;
    return 0;
}

/* Words of a simple command while it is read: their texts lie in one buffer, by offset. */
struct collected {
    struct buf words, texts;
};

static void collected_done(struct collected *c)
{
    buf_done(&c->words);
    buf_done(&c->texts);
}

static int collect(struct shell *s, struct collected *c, const struct reading *r)
{
    struct shell_word w = {.source = s->text + r->start,
                           .source_len = s->pos - r->start,
                           .flags = r->flags,
                           .text = (const char *)(uintptr_t)c->texts.len};

    buf_put(&c->texts, r->text.data, r->text.len);
    buf_putc(&c->texts, 0);
    buf_put(&c->words, &w, sizeof w);
    return c->texts.overflow || c->words.overflow ? shell_fail(s, "no memory for it") : 0;
}

static int visit(struct shell *s, struct collected *c)
{
    struct shell_word *words = (struct shell_word *)c->words.data;
    size_t count = c->words.len / sizeof *words;

    if (!count)
        return 0;

    for (size_t i = 0; i < count; i++)
        words[i].text = (const char *)c->texts.data + (uintptr_t)words[i].text;

    struct shell_command command = {.words = words, .count = count, .depth = s->depth, .shell = s};
    return s->visitor->command(s->visitor->ctx, &command, s->e);
}

int shell_visit_assignment(struct shell *s, struct reading *r)
{
    struct shell_word w;
    return word_of(s, r, &w) < 0 ? -1 : s->visitor->assignment(s->visitor->ctx, &w, s->e);
}

/* NAME () body, from the bracket on. */
int shell_read_definition(struct shell *s, struct reading *name, struct buf *ret_function)
{
    shell_skip(s, 1);
    shell_skip_blanks(s);

    const char *text = reading_text(s, name);
    if (!text || shell_peek(s) != ')' || name->flags || !*text)
        return shell_fail(s, "an unexpected '('");
    shell_skip(s, 1);
    if (shell_read_function_body(s, text) < 0)
        return -1;
    if (buf_put(ret_function, text, strlen(text) + 1) < 0)
        return shell_fail(s, "no memory for it");
    return 0;
}

int shell_read_simple(struct shell *s, struct buf *ret_function)
{
    __attribute__((cleanup(collected_done))) struct collected found = {
        BUF_INIT(SHELL_LINE_MAX * sizeof(struct shell_word)), BUF_INIT(2 * SHELL_LINE_MAX)};
    int before = 0; /* assignments and redirections in front */
    for (;;) {
        shell_skip_blanks(s);
        if (at_redirection(s)) {
            if (read_redirection(s) < 0)
                return -1;
            before = 1;
            continue;
        }

        int c = shell_peek(s);
        if (c == '(')
            return shell_fail(s, "an unexpected '('");
        if (shell_skip_comment(s) ||
            (shell_is_meta(c) && !((c == '<' || c == '>') && shell_after(s, 1) == '(')))
            break;

        auto_reading word;
        reading_init(&word);
        if (shell_read_word(s, &word) < 0)
            return -1;
        if (found.words.len == 0 && word.flags & SHELL_ASSIGNS) {
            if (shell_visit_assignment(s, &word) < 0)
                return -1;
            before = 1;
            continue;
        }

        if (collect(s, &found, &word) < 0)
            return -1;
        if (found.words.len == sizeof(struct shell_word) && !before) {
            shell_skip_blanks(s);
            if (shell_peek(s) == '(')
                return shell_read_definition(s, &word, ret_function);
        }
    }
    return visit(s, &found);
}
