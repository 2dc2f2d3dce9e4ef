/* How this works: the text is cut into lines, each with its indentation. A block is read by the
 * indentation of its first line: `- ` begins a list, everything else a mapping. What stands behind
 * `- ` is a line of its own, further in. */
#include "engine/yaml.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LINES_MAX 20000u

struct line {
    const char *at; /* behind the indentation */
    size_t len;     /* without blanks at the end */
    unsigned indent, number;
    bool blank; /* or only a comment */
};

struct yaml {
    struct line *lines;
    unsigned count, at;
    struct pd_err *e;
};

static json_t *read_block(struct yaml *y, struct line *l, unsigned depth);

static json_t *fail(const struct yaml *y, unsigned number, const char *what)
{
    pd_fail(y->e, PD_INVALID, "line %u: %s", number, what);
    return NULL;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* ---- lines ---- */

/* Where a comment begins, outside of quotes; else the whole length. */
static size_t without_comment(const char *at, size_t len)
{
    char quote = 0;

    for (size_t i = 0; i < len; i++) {
        bool first = i == 0 || is_blank(at[i - 1]);
        bool escaped = (quote == '"' && at[i] == '\\') ||
                       (quote == '\'' && at[i] == '\'' && i + 1 < len && at[i + 1] == '\'');
        if (escaped)
            i++;
        else if (quote)
            quote = at[i] == quote ? 0 : quote;
        else if (at[i] == '#' && first)
            return i;
        else if ((at[i] == '"' || at[i] == '\'') && first)
            quote = at[i];
    }
    return len;
}

static size_t trimmed(const char *at, size_t len)
{
    while (len && (is_blank(at[len - 1]) || at[len - 1] == '\r'))
        len--;
    return len;
}

static int add_line(struct yaml *y, const char *at, size_t len, unsigned number)
{
    unsigned indent = 0;

    while (indent < len && at[indent] == ' ')
        indent++;
    struct line l = {.at = at + indent, .indent = indent, .number = number};
    l.len = trimmed(l.at, len - indent);
    l.blank = l.len == 0 || l.at[0] == '#';
    if (!l.blank && l.at[0] == '\t') {
        fail(y, number, "a tab is no indentation");
        return -1;
    }
    y->lines[y->count++] = l;
    return 0;
}

static int cut_lines(struct yaml *y, const char *text, size_t len)
{
    unsigned number = 0;
    bool begun = false;

    while (len) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        number++;
        if (y->count == LINES_MAX) {
            fail(y, number, "there are too many lines");
            return -1;
        }

        bool marker = n >= 3 && !memcmp(text, "---", 3);
        if (marker && (begun || trimmed(text, n) != 3)) {
            fail(y, number, "only one document is read");
            return -1;
        }
        if (!marker && add_line(y, text, n, number) < 0)
            return -1;
        begun = begun || marker || !y->lines[y->count - 1].blank;
        text += n + (end ? 1 : 0);
        len -= n + (end ? 1 : 0);
    }
    return 0;
}

/* The next line with something in it, or NULL. */
static struct line *current(struct yaml *y)
{
    while (y->at < y->count && y->lines[y->at].blank)
        y->at++;
    return y->at < y->count ? &y->lines[y->at] : NULL;
}

static bool is_dash(const struct line *l)
{
    return l->at[0] == '-' && (l->len == 1 || is_blank(l->at[1]));
}

/* ---- scalars ---- */

static json_t *text_of(const struct yaml *y, unsigned number, const struct buf *b)
{
    json_t *v = b->overflow ? NULL : json_stringn(b->data ? (const char *)b->data : "", b->len);
    return v ? v : fail(y, number, "a text is not UTF-8");
}

static json_t *read_single(struct yaml *y, const char *at, size_t len, unsigned number)
{
    auto_buf out = BUF_INIT(YAML_MAX);

    for (size_t i = 1; i < len; i++) {
        if (at[i] != '\'') {
            buf_putc(&out, at[i]);
        } else if (i + 1 < len && at[i + 1] == '\'') {
            buf_putc(&out, '\'');
            i++;
        } else {
            return i + 1 == len ? text_of(y, number, &out)
                                : fail(y, number, "something follows a quoted text");
        }
    }
    return fail(y, number, "a quote is not closed on its line");
}

/* JSON knows what double quotes mean; YAML's further escapes are not taken. */
static json_t *read_json(struct yaml *y, const char *at, size_t len, unsigned number)
{
    json_t *v = json_loadb(at, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    return v ? v : fail(y, number, "this way of writing a value is not read here");
}

static bool is_word(const char *at, size_t len, const char *word)
{
    return len == strlen(word) && !memcmp(at, word, len);
}

static json_t *read_scalar(struct yaml *y, const char *at, size_t len, unsigned number)
{
    len = trimmed(at, without_comment(at, len));

    if (at[0] == '\'')
        return read_single(y, at, len, number);
    if (at[0] == '"' || at[0] == '{' || at[0] == '[')
        return read_json(y, at, len, number);
    if (strchr("&*!>%@`,]}?", at[0]) && at[0])
        return fail(y, number, "anchors, tags and folded texts are not read here");

    if (is_word(at, len, "null") || is_word(at, len, "~"))
        return json_null();
    if (is_word(at, len, "true"))
        return json_true();
    if (is_word(at, len, "false"))
        return json_false();
    auto_buf out = BUF_INIT(YAML_MAX);
    buf_put(&out, at, len);
    return text_of(y, number, &out);
}

/* The lines further in than `indent`, as they are. */
static json_t *read_literal(struct yaml *y, const struct line *head, const char *how, size_t len)
{
    auto_buf out = BUF_INIT(YAML_MAX);
    unsigned in = 0;

    len = trimmed(how, without_comment(how, len));
    bool strip = len == 2 && how[1] == '-';
    if (len != 1 && !strip)
        return fail(y, head->number, "of blocks only `|` and `|-` are read here");

    for (; y->at < y->count; y->at++) {
        const struct line *l = &y->lines[y->at];
        if (l->len && l->indent <= head->indent)
            break;
        if (l->len && !in)
            in = l->indent;
        if (l->len && l->indent < in)
            return fail(y, l->number, "a line of a block stands too far out");
        for (unsigned i = in; l->len && i < l->indent; i++)
            buf_putc(&out, ' ');
        buf_put(&out, l->at, l->len);
        buf_putc(&out, '\n');
    }
    while (out.len > 1 && out.data[out.len - 1] == '\n' && (strip || out.data[out.len - 2] == '\n'))
        out.len--;
    return text_of(y, head->number, &out);
}

/* ---- blocks ---- */

static json_t *read_list(struct yaml *y, unsigned indent, unsigned depth)
{
    json_t *list = json_array();

    for (struct line *l; list && (l = current(y)) && l->indent == indent && is_dash(l);) {
        unsigned skip = 1;
        while (skip < l->len && is_blank(l->at[skip]))
            skip++;

        json_t *item;
        if (skip == l->len || l->at[skip] == '#') {
            y->at++;
            struct line *next = current(y);
            item = next && next->indent > indent ? read_block(y, next, depth + 1) : json_null();
        } else {
            l->at += skip;
            l->len -= skip;
            l->indent += skip;
            item = read_block(y, l, depth + 1);
        }
        if (!item || json_array_append_new(list, item) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Where the colon behind a key is; 0 when there is none. */
static size_t key_end(const struct line *l)
{
    char quote = l->at[0] == '"' || l->at[0] == '\'' ? l->at[0] : 0;

    for (size_t i = quote ? 1 : 0; i < l->len; i++) {
        if (quote)
            quote = l->at[i] == quote ? 0 : quote;
        else if (l->at[i] == ':' && (i + 1 == l->len || is_blank(l->at[i + 1])))
            return i;
    }
    return 0;
}

static json_t *read_value(struct yaml *y, struct line *l, size_t colon, unsigned depth)
{
    const char *at = l->at + colon + 1, *end = l->at + l->len;

    while (at < end && is_blank(*at))
        at++;
    y->at++;
    if (at < end && *at == '|')
        return read_literal(y, l, at, (size_t)(end - at));
    if (at < end && *at != '#')
        return read_scalar(y, at, (size_t)(end - at), l->number);

    /* A list may stand as far out as the key that it belongs to. */
    struct line *next = current(y);
    if (next && (next->indent > l->indent || (next->indent == l->indent && is_dash(next))))
        return read_block(y, next, depth + 1);
    return json_null();
}

static json_t *read_mapping(struct yaml *y, unsigned indent, unsigned depth)
{
    json_t *map = json_object();

    for (struct line *l; map && (l = current(y)) && l->indent == indent && !is_dash(l);) {
        size_t colon = key_end(l);
        json_t *key = colon ? read_scalar(y, l->at, colon, l->number)
                            : fail(y, l->number, "there is no `key: value`");
        const char *name = json_string_value(key);
        json_t *value = NULL;

        if (key && !name)
            fail(y, l->number, "a key is no text");
        else if (name && json_object_get(map, name))
            fail(y, l->number, "a key is there twice");
        else if (name)
            value = read_value(y, l, colon, depth);
        int r = value ? json_object_set_new(map, name, value) : -1;
        json_decref(key);
        if (r < 0) {
            json_decref(map);
            return NULL;
        }
    }
    return map;
}

static json_t *read_block(struct yaml *y, struct line *l, unsigned depth)
{
    unsigned indent = l->indent;

    if (depth > YAML_DEPTH)
        return fail(y, l->number, "this is nested too deep");
    if (!is_dash(l) && !key_end(l)) {
        y->at++;
        return read_scalar(y, l->at, l->len, l->number);
    }

    json_t *v = is_dash(l) ? read_list(y, indent, depth) : read_mapping(y, indent, depth);
    const struct line *next = current(y);
    if (v && next && next->indent > indent) {
        json_decref(v);
        return fail(y, next->number, "the indentation fits nothing above");
    }
    return v;
}

struct json_t *yaml_read(const char *text, size_t len, struct pd_err *e)
{
    struct yaml y = {.e = e};
    json_t *v = NULL;

    if (len > YAML_MAX) {
        pd_fail(e, PD_INVALID, "it has more than %u bytes", YAML_MAX);
        return NULL;
    }
    if (len && text[0] == '{') {
        v = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
        if (!v)
            pd_fail(e, PD_INVALID, "it is no JSON");
        return v;
    }

    size_t lines = 1;
    for (size_t i = 0; i < len && lines < LINES_MAX; i++)
        lines += text[i] == '\n';
    y.lines = calloc(lines, sizeof *y.lines);
    if (!y.lines) {
        pd_fail(e, PD_CAPACITY, "no memory for its lines");
        return NULL;
    }
    if (len && memchr(text, 0, len)) {
        fail(&y, 1, "it has a NUL");
    } else if (cut_lines(&y, text, len) == 0) {
        struct line *first = current(&y);
        if (first)
            v = read_block(&y, first, 0);
        else
            fail(&y, 1, "it is empty");
    }

    const struct line *rest = current(&y);
    if (v && rest) {
        json_decref(v);
        v = fail(&y, rest->number, "the indentation fits nothing above");
    }
    free(y.lines);
    return v;
}
