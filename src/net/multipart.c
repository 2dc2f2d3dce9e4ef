/* multipart/form-data, piece by piece: a state machine that takes the bytes there are and gives one
 * event at a time: the head of a part, bytes of its content, its end. Bytes that may be the
 * beginning of the delimiter are held back as a number (`matched`), not as a copy: if they turn out
 * to be content, they are given from the delimiter itself. */
#include "net/multipart.h"

#include "base/err.h"
#include "net/http_chars.h"
#include "net/utf8.h"

#include "base/banned.h"

enum {
    PREAMBLE,
    DATA,
    AFTER_BOUNDARY, /* "--" or blanks */
    AFTER_DASH,
    PADDING,
    BOUNDARY_LF,
    HEAD,
    EPILOGUE,
    BROKEN,
};

static int malformed(struct multipart *m, struct pd_err *e, const char *what)
{
    m->state = BROKEN;
    return pd_fail(e, PD_INVALID, "malformed multipart body: %s", what);
}

/* ---- parameters: ; name=token or ; name="text" ---- */

static void skip_blanks(struct slice *s)
{
    while (s->len && (*s->at == ' ' || *s->at == '\t'))
        s->at++, s->len--;
}

static struct slice take_token(struct slice *s)
{
    struct slice t = {s->at, 0};
    while (t.len < s->len && http_is_token(t.at[t.len]))
        t.len++;

    s->at += t.len;
    s->len -= t.len;
    return t;
}

/* A value without quotes: programs put more into it than they should. */
static struct slice take_plain(struct slice *s)
{
    struct slice t = {s->at, 0};
    while (t.len < s->len && !strchr("; \t\"", t.at[t.len]))
        t.len++;

    s->at += t.len;
    s->len -= t.len;
    return t;
}

/* The text between quotes, with \" and \\ in it still. 0 when the end is missing. */
static int take_quoted(struct slice *s, struct slice *ret)
{
    size_t i = 1;
    while (i < s->len && s->at[i] != '"')
        i += s->at[i] == '\\' && i + 1 < s->len && (s->at[i + 1] == '"' || s->at[i + 1] == '\\')
                 ? 2
                 : 1;

    if (i >= s->len)
        return 0;
    *ret = (struct slice){s->at + 1, i - 1};
    s->at += i + 1;
    s->len -= i + 1;
    return 1;
}

/* The next parameter: 1, 0 at the end, -1. */
static int take_parameter(struct slice *s, struct slice *name, struct slice *value, int *quoted)
{
    skip_blanks(s);
    if (!s->len)
        return 0;
    if (*s->at != ';')
        return -1;

    s->at++, s->len--;
    skip_blanks(s);
    if (!s->len)
        return 0;

    *name = take_token(s);
    if (!name->len || !s->len || *s->at != '=')
        return -1;
    s->at++, s->len--;

    *quoted = s->len && *s->at == '"';
    if (*quoted)
        return take_quoted(s, value) ? 1 : -1;
    *value = take_plain(s);
    return value->len ? 1 : -1;
}

static int is_word(struct slice s, const char *word)
{
    return s.len == strlen(word) && strncasecmp(s.at, word, s.len) == 0;
}

/* Whether RFC 2046 allows it as a boundary. */
static int is_boundary(struct slice s)
{
    if (!s.len || s.len > MULTIPART_BOUNDARY_MAX || s.at[s.len - 1] == ' ')
        return 0;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.at[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
              (c && strchr("'()+_,-./:=? ", c))))
            return 0;
    }
    return 1;
}

int multipart_boundary(struct slice type, char ret[MULTIPART_BOUNDARY_MAX + 1], struct pd_err *e)
{
    static const char wanted[] = "multipart/form-data";
    struct slice name, value, found = {NULL, 0};
    int got, quoted;
    size_t len = sizeof wanted - 1;

    if (type.len < len || strncasecmp(type.at, wanted, len) != 0 ||
        (type.len > len && type.at[len] != ';' && type.at[len] != ' ' && type.at[len] != '\t'))
        return 0;

    struct slice rest = {type.at + len, type.len - len};
    while ((got = take_parameter(&rest, &name, &value, &quoted)) == 1) {
        if (!is_word(name, "boundary"))
            continue;
        if (found.at)
            return pd_fail(e, PD_INVALID, "Content-Type: two boundaries");
        found = value;
    }

    if (got < 0 || !found.at || !is_boundary(found))
        return pd_fail(e, PD_INVALID,
                       "Content-Type: multipart/form-data needs a boundary of 1 to %u characters",
                       MULTIPART_BOUNDARY_MAX);

    memcpy(ret, found.at, found.len);
    ret[found.len] = 0;
    return 1;
}

void multipart_init(struct multipart *m, const char *boundary)
{
    m->state = PREAMBLE;
    m->done = 0;
    m->name = "";
    m->filename = NULL;
    m->head_len = 0;
    m->delimiter_len = (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%.*s",
                                        (int)MULTIPART_BOUNDARY_MAX, boundary);
    m->matched = 2; /* the first one may be the very beginning */
}

/* ---- the headers of a part ---- */

static int hex_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static int escaped_byte(struct slice s, size_t i)
{
    if (s.at[i] != '%' || s.len - i < 3)
        return -1;

    int high = hex_of(s.at[i + 1]), low = hex_of(s.at[i + 2]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* All of these decode in place: what comes out is never longer. NULL: it has a NUL. */
static const char *decode(struct slice s, char *out, int quoted, int all_escapes)
{
    char *to = out;

    for (size_t i = 0; i < s.len; i++) {
        int byte = escaped_byte(s, i);
        if (quoted && s.at[i] == '\\' && i + 1 < s.len &&
            (s.at[i + 1] == '"' || s.at[i + 1] == '\\')) {
            *to++ = s.at[++i];
        } else if (byte >= 0 && (all_escapes || byte == '"' || byte == '\r' || byte == '\n')) {
            *to++ = (char)byte;
            i += 2;
        } else {
            *to++ = s.at[i];
        }
    }

    size_t len = (size_t)(to - out);
    if (memchr(out, 0, len))
        return NULL;
    *to = 0;
    return out;
}

/* filename*=UTF-8''%E2%82%AC, as some programs write what is not ASCII. */
static int cut_charset(struct slice *s)
{
    if (s->len < 7 || strncasecmp(s->at, "UTF-8'", 6) != 0)
        return 0;

    const char *quote = memchr(s->at + 6, '\'', s->len - 6);
    if (!quote)
        return 0;

    size_t cut = (size_t)(quote + 1 - s->at);
    s->at += cut;
    s->len -= cut;
    return 1;
}

/* Where the slice is in m->head, which may be written to. */
static char *place_of(struct multipart *m, struct slice s)
{
    return m->head + (s.at - m->head);
}

static int read_disposition(struct multipart *m, struct slice value, struct pd_err *e)
{
    struct slice name, text, plain = {NULL, 0}, extended = {NULL, 0}, field = {NULL, 0};
    int got, quoted, plain_quoted = 0, field_quoted = 0;

    if (!is_word(take_token(&value), "form-data"))
        return malformed(m, e, "a part is no form-data");

    while ((got = take_parameter(&value, &name, &text, &quoted)) == 1) {
        struct slice *to = is_word(name, "name")        ? &field
                           : is_word(name, "filename")  ? &plain
                           : is_word(name, "filename*") ? &extended
                                                        : NULL;
        if (!to)
            continue;
        if (to->at)
            return malformed(m, e, "a part has two names");
        *to = text;
        if (to == &plain)
            plain_quoted = quoted;
        if (to == &field)
            field_quoted = quoted;
    }

    if (got < 0 || (extended.at && !cut_charset(&extended)))
        return malformed(m, e, "Content-Disposition of a part");

    const char *file = "";
    if (extended.at)
        file = decode(extended, place_of(m, extended), 0, 1);
    else if (plain.at)
        file = decode(plain, place_of(m, plain), plain_quoted, 0);
    const char *part = field.at ? decode(field, place_of(m, field), field_quoted, 0) : "";
    if (!file || !part || !utf8_is_valid(file, strlen(file)) || !utf8_is_valid(part, strlen(part)))
        return malformed(m, e, "the name of a part is no text");

    m->name = part;
    m->filename = extended.at || plain.at ? file : NULL;
    return 0;
}

static int read_encoding(struct multipart *m, struct slice value, struct pd_err *e)
{
    if (is_word(value, "binary") || is_word(value, "8bit") || is_word(value, "7bit"))
        return 0;
    return malformed(m, e, "Content-Transfer-Encoding: parts are sent as they are");
}

static int read_header(struct multipart *m, struct slice line, int *seen, struct pd_err *e)
{
    struct slice rest = line, name = take_token(&rest);
    if (!name.len || !rest.len || *rest.at != ':')
        return malformed(m, e, "a header of a part");

    for (size_t i = 0; i < rest.len; i++)
        if ((unsigned char)rest.at[i] < ' ' && rest.at[i] != '\t')
            return malformed(m, e, "a control byte in the headers of a part");

    rest.at++, rest.len--;
    skip_blanks(&rest);
    while (rest.len && (rest.at[rest.len - 1] == ' ' || rest.at[rest.len - 1] == '\t'))
        rest.len--;

    if (is_word(name, "Content-Transfer-Encoding"))
        return read_encoding(m, rest, e);
    if (!is_word(name, "Content-Disposition"))
        return 0;

    if ((*seen)++)
        return malformed(m, e, "two Content-Dispositions in a part");
    return read_disposition(m, rest, e);
}

/* All lines, with the empty one at the end. */
static int read_head(struct multipart *m, struct pd_err *e)
{
    size_t at = 0;
    int seen = 0;

    m->name = "";
    m->filename = NULL;

    while (m->head_len - at > 2) {
        const char *end = memmem(m->head + at, m->head_len - at, "\r\n", 2);
        struct slice line = {m->head + at, (size_t)(end - (m->head + at))};
        if (read_header(m, line, &seen, e) < 0)
            return -1;
        at += line.len + 2;
    }
    return MULTIPART_PART;
}

/* Collects headers up to the empty line. */
static int take_head(struct multipart *m, const char *data, size_t len, size_t *ret_used,
                     struct pd_err *e)
{
    for (size_t i = 0; i < len; i++) {
        if (m->head_len == MULTIPART_HEAD_MAX) {
            m->state = BROKEN;
            return pd_fail(e, PD_TOO_LARGE, "the headers of one part have more than %u bytes",
                           MULTIPART_HEAD_MAX);
        }

        m->head[m->head_len++] = data[i];
        if (data[i] != '\n')
            continue;

        size_t n = m->head_len;
        if (n < 2 || m->head[n - 2] != '\r')
            return malformed(m, e, "a line of a part's headers does not end with CRLF");
        if (n == 2 || (n >= 4 && m->head[n - 4] == '\r' && m->head[n - 3] == '\n')) {
            *ret_used = i + 1;
            m->state = DATA;
            m->matched = 0;
            return read_head(m, e);
        }
    }

    *ret_used = len;
    return MULTIPART_MORE;
}

/* ---- contents, up to the delimiter ---- */

static size_t common(const struct multipart *m, size_t from, const char *data, size_t len)
{
    size_t n = 0;
    while (n < len && from + n < m->delimiter_len && data[n] == m->delimiter[from + n])
        n++;
    return n;
}

static int delimiter_found(struct multipart *m)
{
    int in_part = m->state == DATA;
    m->matched = 0;
    m->state = AFTER_BOUNDARY;
    return in_part ? MULTIPART_PART_END : MULTIPART_MORE;
}

static int data_found(const struct multipart *m, const char *at, size_t len, struct slice *ret)
{
    if (m->state != DATA || !len)
        return MULTIPART_MORE;
    *ret = (struct slice){at, len};
    return MULTIPART_DATA;
}

/* CR is in the delimiter only at its beginning: after a mismatch nothing that was matched can be
 * the beginning of another match. */
static int take_data(struct multipart *m, const char *data, size_t len, size_t *ret_used,
                     struct slice *ret)
{
    if (m->matched) { /* it began in an earlier piece */
        size_t n = common(m, m->matched, data, len);
        m->matched += n;
        *ret_used = n;
        if (m->matched == m->delimiter_len)
            return delimiter_found(m);
        if (n == len)
            return MULTIPART_MORE;
        size_t was = m->matched;
        m->matched = 0;
        return data_found(m, m->delimiter, was, ret);
    }

    size_t at = 0;
    while (at < len) {
        const char *cr = memchr(data + at, '\r', len - at);
        if (!cr)
            break;
        size_t before = (size_t)(cr - data), n = common(m, 0, cr, len - before);
        int whole = n == m->delimiter_len;
        if (!whole && before + n < len) {
            at = before + 1;
            continue;
        }

        if (before && m->state == DATA) {
            *ret_used = before;
            return data_found(m, data, before, ret);
        }

        *ret_used = before + n;
        m->matched = n;
        return whole ? delimiter_found(m) : MULTIPART_MORE;
    }

    *ret_used = len;
    return data_found(m, data, len, ret);
}

/* ---- the rest of a boundary's line ---- */

static int take_boundary_end(struct multipart *m, char c, struct pd_err *e)
{
    if (m->state == AFTER_BOUNDARY && c == '-') {
        m->state = AFTER_DASH;
    } else if (m->state == AFTER_DASH && c == '-') {
        m->state = EPILOGUE;
        m->done = 1;
        return MULTIPART_END;
    } else if (m->state == BOUNDARY_LF && c == '\n') {
        m->state = HEAD;
        m->head_len = 0;
    } else if ((m->state == AFTER_BOUNDARY || m->state == PADDING) && (c == ' ' || c == '\t')) {
        m->state = PADDING;
    } else if ((m->state == AFTER_BOUNDARY || m->state == PADDING) && c == '\r') {
        m->state = BOUNDARY_LF;
    } else {
        return malformed(m, e, "something else behind a boundary");
    }
    return MULTIPART_MORE;
}

int multipart_next(struct multipart *m, const char *data, size_t len, size_t *ret_used,
                   struct slice *ret_data, struct pd_err *e)
{
    *ret_used = 0;
    switch (m->state) {
    case PREAMBLE:
    case DATA:
        return take_data(m, data, len, ret_used, ret_data);
    case HEAD:
        return take_head(m, data, len, ret_used, e);
    case EPILOGUE:
        *ret_used = len;
        return MULTIPART_MORE;
    case BROKEN:
        return pd_fail(e, PD_INVALID, "the multipart body was malformed before");
    default:
        *ret_used = 1;
        return take_boundary_end(m, *data, e);
    }
}
