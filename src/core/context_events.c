/* How events are read: a checker walks over the JSON text once, without a tree and without
 * recursion. It keeps the kinds of the open brackets on a small stack, and notes where the members
 * of the outermost object are. What goes into an answer is a piece of the line itself, which was
 * checked byte by byte, so nothing of 16 MiB has to be copied or held twice. */
#include "core/context_events.h"

#include "base/banned.h"
#include "base/buf.h"
#include "base/err.h"

#include <string.h>

struct cursor {
    char *at, *end;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_blanks(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\r' || *c->at == '\n'))
        c->at++;
}

/* The value of four hexadecimal digits, or -1. */
static int read_hex4(const char *p, const char *end)
{
    int value = 0;
    if (end - p < 4)
        return -1;

    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int digit = is_digit(c)              ? c - '0'
                    : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                    : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                             : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Behind `\u` at c->at. A surrogate without its other half becomes U+FFFD. */
static bool skip_unicode(struct cursor *c)
{
    int high = read_hex4(c->at, c->end);
    if (high < 0)
        return false;

    if (high >= 0xd800 && high <= 0xdbff && c->end - c->at >= 10 && c->at[4] == '\\' &&
        c->at[5] == 'u') {
        int low = read_hex4(c->at + 6, c->end);
        if (low >= 0xdc00 && low <= 0xdfff) {
            c->at += 10;
            return true;
        }
    }

    if (high >= 0xd800 && high <= 0xdfff)
        memcpy(c->at, "fffd", 4);
    c->at += 4;
    return true;
}

/* At the opening quote. */
static bool skip_string(struct cursor *c)
{
    for (c->at++; c->at < c->end;) {
        unsigned char byte = (unsigned char)*c->at++;
        if (byte == '"')
            return true;
        if (byte < 0x20 || byte > 0x7f)
            return false;
        if (byte != '\\')
            continue;

        if (c->at >= c->end)
            return false;
        char escape = *c->at++;
        if (escape == 'u') {
            if (!skip_unicode(c))
                return false;
        } else if (!escape || !strchr("\"\\/bfnrt", escape)) {
            return false;
        }
    }
    return false;
}

static bool skip_digits(struct cursor *c)
{
    const char *from = c->at;
    while (c->at < c->end && is_digit(*c->at))
        c->at++;
    return c->at > from;
}

static bool skip_number(struct cursor *c)
{
    if (c->at < c->end && *c->at == '-')
        c->at++;

    bool zero = c->at < c->end && *c->at == '0';
    if (zero)
        c->at++;
    else if (!skip_digits(c))
        return false;

    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!skip_digits(c))
            return false;
    }

    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-'))
            c->at++;
        return skip_digits(c);
    }
    return true;
}

static bool skip_word(struct cursor *c, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(c->end - c->at) < len || memcmp(c->at, word, len) != 0)
        return false;
    c->at += len;
    return true;
}

static bool skip_scalar(struct cursor *c)
{
    switch (*c->at) {
    case '"':
        return skip_string(c);
    case 't':
        return skip_word(c, "true");
    case 'f':
        return skip_word(c, "false");
    case 'n':
        return skip_word(c, "null");
    default:
        return skip_number(c);
    }
}

/* A key and its colon. */
static bool skip_key(struct cursor *c)
{
    skip_blanks(c);
    if (c->at >= c->end || *c->at != '"' || !skip_string(c))
        return false;

    skip_blanks(c);
    return c->at < c->end && *c->at++ == ':';
}

/* Behind a value, inside `open[depth - 1]`: closes what ends here, and goes to the next value.
 * False when that is malformed; *depth is 0 when the outermost value has ended. */
static bool skip_between(struct cursor *c, const char *open, unsigned *depth)
{
    while (*depth) {
        skip_blanks(c);
        if (c->at >= c->end)
            return false;

        char last = open[*depth - 1], byte = *c->at++;
        if (byte == ',')
            return last == '[' || skip_key(c);
        if (byte != (last == '[' ? ']' : '}'))
            return false;
        --*depth;
    }
    return true;
}

static bool skip_value(struct cursor *c)
{
    char open[EVENT_DEPTH_MAX];
    unsigned depth = 0;

    do {
        skip_blanks(c);
        if (c->at >= c->end)
            return false;

        char byte = *c->at;
        if (byte != '[' && byte != '{') {
            if (!skip_scalar(c) || !skip_between(c, open, &depth))
                return false;
            continue;
        }

        if (depth == EVENT_DEPTH_MAX)
            return false;
        c->at++;
        open[depth++] = byte;
        skip_blanks(c);
        if (c->at < c->end && *c->at == (byte == '[' ? ']' : '}')) {
            c->at++;
            depth--;
            if (!skip_between(c, open, &depth))
                return false;
        } else if (byte == '{' && !skip_key(c)) {
            return false;
        }
    } while (depth);
    return true;
}

/* ---- pieces ---- */

int json_piece_next(struct json_piece *rest, struct json_piece *ret_key,
                    struct json_piece *ret_value)
{
    /* What was checked is walked again, by the same steps; they write nothing any more. */
    struct cursor c = {(char *)(uintptr_t)rest->at, (char *)(uintptr_t)rest->at + rest->len};
    skip_blanks(&c);
    if (c.at >= c.end || (*c.at != '{' && *c.at != ','))
        return 0;

    c.at++;
    skip_blanks(&c);
    if (c.at >= c.end || *c.at != '"')
        return 0;
    const char *key = c.at;
    (void)skip_string(&c);
    *ret_key = (struct json_piece){key, (size_t)(c.at - key)};

    skip_blanks(&c);
    c.at++; /* ':' */
    skip_blanks(&c);
    const char *value = c.at;
    (void)skip_value(&c);
    *ret_value = (struct json_piece){value, (size_t)(c.at - value)};

    *rest = (struct json_piece){c.at, (size_t)(c.end - c.at)};
    return 1;
}

bool json_piece_is(const struct json_piece *p, const char *text)
{
    size_t len = strlen(text);
    return p->at && p->len == len + 2 && p->at[0] == '"' && !memcmp(p->at + 1, text, len);
}

struct json_piece json_piece_bare(const struct json_piece *string)
{
    struct json_piece in = {string->at + 1, string->len - 2};

    if (in.len >= 2 && in.at[0] == '\'' && in.at[in.len - 1] == '\'')
        return (struct json_piece){in.at + 1, in.len - 2};

    /* `\"` at both ends. The last one is a quotation mark if an odd number of backslashes is before
     * it. */
    if (in.len < 4 || memcmp(in.at, "\\\"", 2) != 0 || in.at[in.len - 1] != '"')
        return in;
    size_t slashes = 0;
    while (slashes < in.len - 1 && in.at[in.len - 2 - slashes] == '\\')
        slashes++;
    return slashes % 2 ? (struct json_piece){in.at + 2, in.len - 4} : in;
}

static void put_utf8(struct buf *out, uint32_t c)
{
    if (c < 0x80) {
        buf_putc(out, (char)c);
    } else if (c < 0x800) {
        buf_putc(out, (char)(0xc0 | c >> 6));
        buf_putc(out, (char)(0x80 | (c & 0x3f)));
    } else if (c < 0x10000) {
        buf_putc(out, (char)(0xe0 | c >> 12));
        buf_putc(out, (char)(0x80 | (c >> 6 & 0x3f)));
        buf_putc(out, (char)(0x80 | (c & 0x3f)));
    } else {
        buf_putc(out, (char)(0xf0 | c >> 18));
        buf_putc(out, (char)(0x80 | (c >> 12 & 0x3f)));
        buf_putc(out, (char)(0x80 | (c >> 6 & 0x3f)));
        buf_putc(out, (char)(0x80 | (c & 0x3f)));
    }
}

int json_piece_decode(const struct json_piece *string, struct buf *out)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *end = string->at + string->len - 1;

    for (const char *at = string->at + 1; at < end;) {
        if (*at != '\\') {
            buf_putc(out, *at++);
            continue;
        }
        if (at[1] != 'u') {
            const char *letter = strchr(letters, at[1]);
            buf_putc(out, letter ? meant[letter - letters] : at[1]);
            at += 2;
            continue;
        }

        uint32_t c = (uint32_t)read_hex4(at + 2, end);
        at += 6;
        if (c >= 0xd800 && c <= 0xdbff) { /* the other half follows: it was checked */
            c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)read_hex4(at + 2, end) - 0xdc00);
            at += 6;
        }
        put_utf8(out, c);
    }
    return out->overflow ? -1 : 0;
}

static bool piece_number(const struct json_piece *p, uint64_t *ret)
{
    uint64_t n = 0;
    if (!p->len || p->len > 18)
        return false;

    for (size_t i = 0; i < p->len; i++) {
        if (!is_digit(p->at[i]))
            return false;
        n = n * 10 + (uint64_t)(p->at[i] - '0');
    }
    *ret = n;
    return true;
}

static bool piece_flag(const struct json_piece *p, bool *ret)
{
    bool yes = p->len == 4 && !memcmp(p->at, "true", 4);
    if (!yes && (p->len != 5 || memcmp(p->at, "false", 5) != 0))
        return false;
    *ret = yes;
    return true;
}

static bool piece_string(const struct json_piece *p, struct json_piece *ret)
{
    if (p->at[0] != '"')
        return false;
    *ret = *p;
    return true;
}

static bool is_id_char(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

bool execution_id_is_valid(const char *id)
{
    size_t len = strnlen(id, EXECUTION_ID + 1);
    for (size_t i = 0; i < len; i++)
        if (!is_id_char(id[i]))
            return false;
    return len > 0 && len <= EXECUTION_ID;
}

static bool piece_id(const struct json_piece *p, char ret[EXECUTION_ID + 1])
{
    char id[EXECUTION_ID + 1] = "";
    if (p->at[0] != '"' || p->len < 3 || p->len > EXECUTION_ID + 2)
        return false;

    memcpy(id, p->at + 1, p->len - 2);
    if (!execution_id_is_valid(id))
        return false;
    memcpy(ret, id, sizeof id);
    return true;
}

/* ---- events ---- */

static enum context_event_type type_of(const struct json_piece *p)
{
    static const char *const names[] = {
        [EVENT_READY] = "ready",   [EVENT_START] = "start",   [EVENT_RESULT] = "result",
        [EVENT_ERROR] = "error",   [EVENT_END] = "end",       [EVENT_STDOUT] = "stdout",
        [EVENT_STDERR] = "stderr", [EVENT_FORKED] = "forked", [EVENT_REFUSED] = "refused",
    };

    for (unsigned i = EVENT_READY; i < sizeof names / sizeof *names; i++)
        if (json_piece_is(p, names[i]))
            return (enum context_event_type)i;
    return EVENT_OTHER;
}

/* False when the member is known and of the wrong kind. */
static bool take_member(struct context_event *ret, const struct json_piece *key,
                        const struct json_piece *value)
{
    if (json_piece_is(key, "type")) {
        ret->type = type_of(value);
        return value->at[0] == '"';
    }
    if (json_piece_is(key, "id"))
        return piece_id(value, ret->id);
    if (json_piece_is(key, "seq"))
        return piece_number(value, &ret->seq);
    if (json_piece_is(key, "count"))
        return piece_number(value, &ret->count);
    if (json_piece_is(key, "memory"))
        return piece_number(value, &ret->memory);

    if (json_piece_is(key, "ok"))
        return piece_flag(value, &ret->ok);
    if (json_piece_is(key, "truncated"))
        return piece_flag(value, &ret->truncated);
    if (json_piece_is(key, "main"))
        return piece_flag(value, &ret->main);

    if (json_piece_is(key, "name"))
        return piece_string(value, &ret->name);
    if (json_piece_is(key, "value"))
        return piece_string(value, &ret->value);
    if (json_piece_is(key, "traceback"))
        return piece_string(value, &ret->traceback);
    if (json_piece_is(key, "text"))
        return piece_string(value, &ret->text);
    if (json_piece_is(key, "why"))
        return piece_string(value, &ret->why);

    if (json_piece_is(key, "pid"))
        return piece_number(value, &ret->pid);
    if (json_piece_is(key, "threads_lost"))
        return piece_number(value, &ret->threads_lost);
    if (json_piece_is(key, "data")) {
        ret->data = *value;
        return value->at[0] == '{';
    }
    return true;
}

/* Has it what its type needs? */
static bool is_complete(const struct context_event *v)
{
    if (!v->seq || (!v->id[0] && v->type != EVENT_READY && v->type != EVENT_OTHER))
        return false;

    switch (v->type) {
    case EVENT_RESULT:
        return v->data.at;
    case EVENT_ERROR:
        return v->name.at && v->value.at && v->traceback.at;
    case EVENT_STDOUT:
    case EVENT_STDERR:
        return v->text.at;
    case EVENT_REFUSED:
        return v->why.at;
    case EVENT_FORKED:
        return v->pid;
    default:
        return true;
    }
}

int context_event_parse(char *line, size_t len, struct context_event *ret, struct pd_err *e)
{
    struct cursor c = {line, line + len};
    skip_blanks(&c);
    bool good = len <= EVENT_MAX && c.at < c.end && *c.at == '{' && skip_value(&c);
    if (good)
        skip_blanks(&c);
    if (!good || c.at != c.end)
        return pd_fail(e, PD_PROTOCOL, "a driver's event is no JSON object in ASCII (byte %zu)",
                       (size_t)(c.at - line));

    struct context_event v = {.type = EVENT_OTHER};
    struct json_piece rest = {line, len}, key, value;
    while (json_piece_next(&rest, &key, &value))
        if (!take_member(&v, &key, &value))
            return pd_fail(e, PD_PROTOCOL, "a driver's event has a wrong member %.*s",
                           key.len > 40 ? 40 : (int)key.len, key.at);

    if (!is_complete(&v))
        return pd_fail(e, PD_PROTOCOL, "a driver's event lacks a member");
    *ret = v;
    return 0;
}

/* ---- marks ---- */

#define MARK        '\x1e'
#define MARK_DIGITS 18u

/* Is there a mark at text[0]? */
static enum mark_found mark_at(const char *text, size_t len, const char *id, size_t *ret_len,
                               uint64_t *ret_seq)
{
    size_t at = 1, id_len = strlen(id), same = len - at < id_len ? len - at : id_len;
    if (memcmp(text + at, id, same) != 0)
        return MARK_NONE;
    at += same;
    if (at == len)
        return MARK_PARTIAL;
    if (text[at++] != ' ')
        return MARK_NONE;

    uint64_t seq = 0;
    size_t first = at;
    for (; at < len && at - first < MARK_DIGITS && is_digit(text[at]); at++)
        seq = seq * 10 + (uint64_t)(text[at] - '0');
    if (at == len)
        return MARK_PARTIAL;
    if (at == first || text[at] != MARK)
        return MARK_NONE;

    *ret_len = at + 1;
    *ret_seq = seq;
    return MARK_WHOLE;
}

enum mark_found mark_find(const char *text, size_t len, const char *id, size_t *ret_at,
                          size_t *ret_len, uint64_t *ret_seq)
{
    for (size_t at = 0; at < len;) {
        const char *found = memchr(text + at, MARK, len - at);
        if (!found)
            break;

        at = (size_t)(found - text);
        enum mark_found is = mark_at(found, len - at, id, ret_len, ret_seq);
        if (is != MARK_NONE) {
            *ret_at = at;
            return is;
        }
        at++;
    }
    *ret_at = len;
    return MARK_NONE;
}
