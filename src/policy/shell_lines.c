/* Ends of lines: comments, and the here-documents that begin behind a newline. */
#include "base/banned.h"
#include "base/err.h"
#include "policy/shell_reader.h"

int shell_skip_comment(struct shell *s)
{
    if (shell_peek(s) != '#')
        return 0;
    while (s->pos < s->len && s->text[s->pos] != '\n') /* no line is continued in a comment */
        s->pos++;
    return 1;
}

/* A record in s->docs: two letters for how it is read, then the delimiter and its NUL. */
int shell_doc_add(struct shell *s, const struct reading *delimiter, int strip_tabs)
{
    size_t source = s->pos - delimiter->start;
    const char *from = s->text + delimiter->start;

    if (delimiter->flags & SHELL_EXPANDS || memchr(from, '$', source) || memchr(from, '`', source))
        return shell_fail(s, "the end of a here-document is not a plain word");
    if (delimiter->text.len && memchr(delimiter->text.data, '\n', delimiter->text.len))
        return shell_fail(s, "the end of a here-document has a newline in it");

    if (source == 0)
        return shell_fail(s, "a << without a word");
    if (s->docs_blocked && s->docs.len)
        return shell_fail(s, "a here-document inside a substitution behind another one");

    /* A pattern is an ordinary word here, but only its start was kept. */
    if (delimiter->flags & SHELL_PATTERN)
        return shell_fail(s, "the end of a here-document is not a plain word");

    buf_putc(&s->docs, strip_tabs ? '-' : ' ');
    buf_putc(&s->docs, delimiter->flags & SHELL_QUOTED ? 'q' : ' ');
    buf_put(&s->docs, delimiter->text.data, delimiter->text.len);
    buf_putc(&s->docs, 0);
    return s->docs.overflow ? shell_fail(s, "too many here-documents") : 0;
}

/* One line of a body, with those that a backslash joins to it unless the delimiter was quoted:
 * bash looks for the delimiter after it has joined them. 0 at the end of the text. */
static int read_line(struct shell *s, int quoted, struct buf *line)
{
    buf_clear(line);
    if (s->pos >= s->len)
        return 0;

    while (s->pos < s->len && s->text[s->pos] != '\n') {
        char c = s->text[s->pos++];
        if (c != '\\' || quoted || s->pos >= s->len) {
            buf_putc(line, c);
        } else if (s->text[s->pos] == '\n') {
            s->pos++;
        } else {
            buf_putc(line, c);
            buf_putc(line, s->text[s->pos++]);
        }
    }

    s->pos += s->pos < s->len;
    return 1;
}

static int read_doc(struct shell *s, const char *doc)
{
    int strip = doc[0] == '-', quoted = doc[1] == 'q';
    const char *delimiter = doc + 2;
    auto_buf line = BUF_INIT(SHELL_LINE_MAX + 1), body = BUF_INIT(SHELL_LINE_MAX + 1);

    for (;;) {
        if (!read_line(s, quoted, &line))
            return shell_fail(s, "the here-document's end '%.40s' is missing", delimiter);

        const char *text = buf_cstr(&line);
        if (!text || line.overflow)
            return shell_fail(s, "no memory for it");
        while (strip && *text == '\t')
            text++;
        if (!strcmp(text, delimiter))
            break;
        buf_puts(&body, text);
        buf_putc(&body, '\n');
    }

    if (quoted)
        return 0;
    if (body.overflow)
        return shell_fail(s, "no memory for it");
    if (s->depth >= SHELL_DEPTH_MAX)
        return shell_fail(s, "it is nested more than %d deep", SHELL_DEPTH_MAX);

    struct shell inner = *s;
    inner.text = (const char *)body.data;
    inner.len = body.len;
    inner.pos = 0;
    inner.origin = s->nested ? s->origin : s->pos;
    inner.nested = 1;
    inner.depth++;
    inner.docs = BUF_INIT(SHELL_LINE_MAX);
    inner.docs_blocked = 0;

    int failed = shell_read_body(&inner);
    buf_done(&inner.docs);
    return failed;
}

static int read_docs(struct shell *s)
{
    if (s->docs_blocked)
        return shell_fail(s, "a newline in a substitution behind a here-document");

    for (size_t at = 0; at < s->docs.len;) {
        const char *doc = (const char *)s->docs.data + at;
        if (read_doc(s, doc) < 0)
            return -1;
        at += strlen(doc) + 1;
    }
    buf_clear(&s->docs);
    return 0;
}

int shell_skip_lines(struct shell *s)
{
    for (;;) {
        shell_skip_blanks(s);
        if (shell_skip_comment(s))
            continue;
        if (shell_peek(s) != '\n')
            return 0;
        s->pos++;
        if (s->docs.len && read_docs(s) < 0)
            return -1;
    }
}
