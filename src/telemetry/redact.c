/* How this works: one pass from left to right. At the start of each word the rules are tried: the
 * shape of a known key, there or further on in the word, a name that speaks of a secret and has a
 * value, a URL with a password. The pass knows whether it is inside quotes, since that is where a
 * value ends. */
#include "telemetry/redact.h"

#include "base/banned.h"
#include "base/buf.h"

#include <strings.h>

static const char mask[] = "[redacted]";

struct scan {
    const char *text;
    size_t len, at;
    char quote; /* that is open at `at`, or 0 */
    struct buf *out;
};

static int is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static int is_name(char c)
{
    return is_alnum(c) || c == '_' || c == '-' || c == '.';
}

static int is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The character at `i`, or NUL behind the end. */
static char peek(const struct scan *s, size_t i)
{
    return i < s->len ? s->text[i] : 0;
}

static int starts(const struct scan *s, size_t i, const char *prefix, int ignore_case)
{
    size_t n = strlen(prefix);
    if (n > s->len - i)
        return 0;
    return ignore_case ? !strncasecmp(s->text + i, prefix, n) : !memcmp(s->text + i, prefix, n);
}

/* Copies up to `to` as it is, minding quotes. */
static void copy_to(struct scan *s, size_t to)
{
    for (size_t i = s->at; i < to; i++) {
        char c = s->text[i];
        if (c == '\\' && s->quote != '\'')
            i++;
        else if (s->quote ? c == s->quote : c == '"' || c == '\'')
            s->quote = s->quote ? 0 : c;
    }

    (void)buf_put(s->out, s->text + s->at, to - s->at);
    s->at = to;
}

static void hide_to(struct scan *s, size_t to)
{
    if (to > s->at)
        (void)buf_puts(s->out, mask);
    s->at = to;
}

/* ---- words that have the shape of a key ---- */

static const struct {
    const char *prefix;
    size_t least;     /* further characters */
    const char *also; /* besides letters and digits */
} shapes[] = {
    {"e2b_", 16, ""},         {"AKIA", 16, ""},     {"ASIA", 16, ""},      {"ghp_", 20, ""},
    {"gho_", 20, ""},         {"ghu_", 20, ""},     {"ghs_", 20, ""},      {"ghr_", 20, ""},
    {"github_pat_", 20, "_"}, {"sk-", 16, "-_"},    {"sk_live_", 16, ""},  {"sk_test_", 16, ""},
    {"rk_live_", 16, ""},     {"xoxb-", 10, "-"},   {"xoxp-", 10, "-"},    {"xoxa-", 10, "-"},
    {"xapp-", 10, "-"},       {"glpat-", 16, "-_"}, {"AIza", 30, "-_"},    {"hf_", 20, ""},
    {"dtn_", 20, ""},         {"npm_", 20, ""},     {"pypi-", 20, "-_"},   {"dop_v1_", 20, ""},
    {"eyJ", 20, "-_."},       {"ya29.", 16, "-_."}, {"GOCSPX-", 16, "-_"},
};

/* The end of a key of the k-th shape that begins at `at`, or 0. */
static size_t shape_end(const struct scan *s, size_t at, size_t k)
{
    if (!starts(s, at, shapes[k].prefix, 0))
        return 0;

    size_t first = at + strlen(shapes[k].prefix), i = first;
    while (i < s->len &&
           (is_alnum(s->text[i]) || (s->text[i] && strchr(shapes[k].also, s->text[i]))))
        i++;
    return i - first >= shapes[k].least ? i : 0;
}

/* The end of a key that begins at `at`, or 0. */
static size_t key_end(const struct scan *s, size_t at)
{
    size_t end = 0;
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes && !end; k++)
        end = shape_end(s, at, k);
    return end;
}

/* Is the shape told from the middle of any word? A short one is only behind a sign: "disk-..." has
 * no key in it. */
static int is_distinct(const char *prefix)
{
    size_t len = strlen(prefix);
    return len >= 4 && !is_alnum(prefix[len - 1]);
}

/* The beginning of a key within the word that goes on to `to`, or `to`. */
static size_t key_within(const struct scan *s, size_t to)
{
    for (size_t i = s->at + 1; i < to; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            if ((!is_alnum(s->text[i - 1]) || is_distinct(shapes[k].prefix)) && shape_end(s, i, k))
                return i;
    return to;
}

/* The end of a private key in PEM, or 0. An unfinished one goes to the end. */
static size_t pem_end(const struct scan *s)
{
    static const char begin[] = "-----BEGIN ", key[] = "PRIVATE KEY", end[] = "-----END ";
    if (!starts(s, s->at, begin, 0))
        return 0;

    const char *from = s->text + s->at;
    size_t rest = s->len - s->at;
    const char *what = memmem(from, rest < 60 ? rest : 60, key, strlen(key));
    if (!what)
        return 0;

    const char *last = memmem(from, rest, end, strlen(end));
    if (!last)
        return s->len;

    size_t i = (size_t)(last - s->text) + strlen(end);
    while (i < s->len && s->text[i] != '-' && s->text[i] != '\n')
        i++;
    while (i < s->len && s->text[i] == '-')
        i++;
    return i;
}

/* ---- names ---- */

static int contains(const char *name, size_t len, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= len; i++)
        if (!strncasecmp(name + i, word, n))
            return 1;
    return 0;
}

static int ends_with(const char *name, size_t len, const char *word)
{
    size_t n = strlen(word);
    return len >= n && !strncasecmp(name + len - n, word, n);
}

static int is_whole(const char *name, size_t len, const char *word)
{
    return len == strlen(word) && !strncasecmp(name, word, len);
}

/* Whether a name speaks of something that is nobody's business. */
static int is_secret_word(const char *name, size_t len)
{
    static const char *const words[] = {"token", "secret", "passw", "passphrase", "credential"};
    static const char *const ends[] = {"key", "pwd", "pass", "auth"};

    if (is_whole(name, len, "pwd") || is_whole(name, len, "oldpwd"))
        return 0;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (contains(name, len, words[i]))
            return 1;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, len, ends[i]))
            return 1;
    return 0;
}

static int is_header(const char *name, size_t len)
{
    return ends_with(name, len, "authorization") || is_whole(name, len, "cookie") ||
           is_whole(name, len, "set-cookie") ||
           (len > 2 && !strncasecmp(name, "x-", 2) && is_secret_word(name, len));
}

/* ---- values ---- */

static int ends_value(const struct scan *s, char c)
{
    return !c || is_space(c) || strchr(";&|()<>`,}", c) || (s->quote && c == s->quote);
}

/* The end of the quoted piece that begins at `i`. The quote around all of it ends it, too. */
static size_t quoted_end(const struct scan *s, size_t i)
{
    char q = s->text[i++];
    while (i < s->len && s->text[i] != q && !(s->quote && s->text[i] == s->quote))
        i += s->text[i] == '\\' && q != '\'' && i + 1 < s->len ? 2 : 1;
    return i;
}

/* Hides the value at s->at, quoted or not; the quotes stay. */
static void hide_value(struct scan *s)
{
    char c = peek(s, s->at);
    if (c == '$' || ends_value(s, c))
        return;

    /* \"...\" inside of quotes: JSON in a shell's string. */
    if (c == '\\' && s->quote == '"' && peek(s, s->at + 1) == '"') {
        const char *end = memmem(s->text + s->at + 2, s->len - s->at - 2, "\\\"", 2);
        (void)buf_put(s->out, s->text + s->at, 2);
        s->at += 2;
        hide_to(s, end ? (size_t)(end - s->text) : s->len);
        return;
    }

    if (c == '"' || c == '\'') {
        size_t end = quoted_end(s, s->at);
        char after = peek(s, end) == c ? peek(s, end + 1) : 0;
        (void)buf_putc(s->out, c);
        s->at++;
        if (peek(s, s->at) == '$' && c == '"') {
            if (!s->quote)
                s->quote = c;
            return;
        }
        hide_to(s, end);
        if (peek(s, end) == c) {
            (void)buf_putc(s->out, c);
            s->at++;
        }
        /* 'abc'def: the shell sees one word. */
        if (s->quote || ends_value(s, after) || after == ':' || after == ']')
            return;
    }

    size_t end = s->at;
    while (end < s->len && !ends_value(s, s->text[end])) {
        char e = s->text[end];
        if ((e == '"' || e == '\'') && !s->quote) {
            end = quoted_end(s, end);
            end += end < s->len;
        } else if (e == '\\' && s->quote == '"' && peek(s, end + 1) == '"') {
            break;
        } else {
            end += e == '\\' && end + 1 < s->len ? 2 : 1;
        }
    }
    hide_to(s, end);
}

/* The end of the word at i. */
static size_t word_end(const struct scan *s, size_t i)
{
    while (i < s->len && !ends_value(s, s->text[i]) && s->text[i] != '"' && s->text[i] != '\'')
        i += s->text[i] == '\\' && i + 1 < s->len ? 2 : 1;
    return i;
}

/* The value of a header goes to the end of its quotes or line; the scheme stays. */
static void hide_header(struct scan *s)
{
    static const char *const schemes[] = {"bearer ", "basic ", "token ", "digest "};

    char c = peek(s, s->at);
    if ((c == '"' || c == '\'') && c != s->quote) {
        hide_value(s);
        return;
    }

    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (starts(s, s->at, schemes[i], 1))
            copy_to(s, s->at + strlen(schemes[i]));

    if (!s->quote) {
        hide_value(s);
        return;
    }
    if (peek(s, s->at) == '$')
        return;

    size_t end = s->at;
    while (end < s->len && s->text[end] != s->quote && s->text[end] != '\n')
        end += s->text[end] == '\\' && end + 1 < s->len ? 2 : 1;
    hide_to(s, end);
}

/* Skips blanks, but only on the line. */
static size_t skip_blanks(const struct scan *s, size_t i)
{
    while (i < s->len && (s->text[i] == ' ' || s->text[i] == '\t'))
        i++;
    return i;
}

/* A name at s->at (behind its dashes, if it is an option's): hides its value if it has one. */
static void handle_name(struct scan *s, size_t dashes, size_t end)
{
    const char *name = s->text + s->at;
    size_t len = end - s->at, i = end;

    int header = is_header(name, len);
    if (!header && !is_secret_word(name, len)) {
        copy_to(s, end);
        return;
    }

    /* "name": or \"name\": */
    if (peek(s, i) == '\\' && (peek(s, i + 1) == '"' || peek(s, i + 1) == '\''))
        i += 2;
    else if (peek(s, i) == '"' || peek(s, i) == '\'')
        i++;
    if (peek(s, i) == ']')
        i++;

    size_t sign = skip_blanks(s, i);
    if (peek(s, sign) == ':' && peek(s, sign + 1) == '=')
        sign++;
    if (peek(s, sign) == '=' || (peek(s, sign) == ':' && peek(s, sign + 1) != '/')) {
        while (peek(s, sign) == '=' || peek(s, sign) == ':')
            sign++;
        /* `NAME= command` of a shell sets nothing; `name = value` of a program does. */
        if (is_space(peek(s, sign)) && peek(s, sign - 1) == '=' && sign - 1 == i)
            copy_to(s, sign);
        else
            copy_to(s, skip_blanks(s, sign));
    } else if (dashes && sign > end && peek(s, sign) != '-') {
        copy_to(s, sign);
    } else {
        copy_to(s, end);
        return;
    }

    if (header)
        hide_header(s);
    else
        hide_value(s);
}

/* ---- other places ---- */

/* The user's name may be copied as it is: one word, and no key itself. */
static int is_user_name(const struct scan *s, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (is_space(s->text[i]) || key_end(s, i))
            return 0;
    return 1;
}

/* scheme://user:password@host, at the "://". */
static void handle_url(struct scan *s)
{
    size_t i = s->at + 3, colon = 0;
    for (;
         i < s->len && !is_space(s->text[i]) && !strchr("/?#\"'`<>", s->text[i] ? s->text[i] : '/');
         i++) {
        if (s->text[i] == ':' && !colon)
            colon = i;
        if (s->text[i] == '@')
            break;
    }

    size_t user = s->at + 3;
    if (peek(s, i) != '@' || !colon || peek(s, colon + 1) == '$') {
        copy_to(s, user);
        return;
    }

    copy_to(s, is_user_name(s, user, colon) ? colon + 1 : user);
    hide_to(s, i);
}

/* -u NAME:PASSWORD, at the "-u" or "--user". Returns 0 when it is something else. */
static int handle_user(struct scan *s)
{
    size_t n = starts(s, s->at, "--user", 0) ? 6 : starts(s, s->at, "-u", 0) ? 2 : 0;

    char next = peek(s, s->at + n);
    if (!n || !(is_space(next) || next == '='))
        return 0;

    copy_to(s, skip_blanks(s, s->at + n + (next == '=')));
    char c = peek(s, s->at);
    if ((c == '"' || c == '\'') && !s->quote)
        copy_to(s, s->at + 1);

    size_t end = word_end(s, s->at), colon = s->at;
    while (s->quote && end < s->len && s->text[end] != s->quote && (c == '"' || c == '\''))
        end++;
    while (colon < end && s->text[colon] != ':')
        colon++;

    if (colon < end && peek(s, colon + 1) != '$' && is_user_name(s, s->at, colon)) {
        copy_to(s, colon + 1);
        hide_to(s, end > s->at ? end : s->at);
    }
    return 1;
}

/* "Bearer TOKEN" in any place. */
static int handle_bearer(struct scan *s)
{
    if (!starts(s, s->at, "bearer", 1) || !is_space(peek(s, s->at + 6)))
        return 0;

    copy_to(s, skip_blanks(s, s->at + 6));
    size_t end = word_end(s, s->at);
    if (end - s->at >= 8 && peek(s, s->at) != '$')
        hide_to(s, end);
    return 1;
}

/* At the start of a word. */
static void handle_word(struct scan *s)
{
    size_t end = pem_end(s), dashes = 0;
    if (!end)
        end = key_end(s, s->at);
    if (end) {
        hide_to(s, end);
        return;
    }

    if (s->text[s->at] == '-' && handle_user(s))
        return;
    if (handle_bearer(s))
        return;

    while (peek(s, s->at + dashes) == '-')
        dashes++;
    copy_to(s, s->at + dashes);
    if ((end = key_end(s, s->at))) {
        hide_to(s, end);
        return;
    }

    for (end = s->at; end < s->len && is_name(s->text[end]);)
        end++;
    size_t key = key_within(s, end);
    if (key < end) {
        copy_to(s, key);
        hide_to(s, key_end(s, key));
        return;
    }
    handle_name(s, dashes, end);
}

void redact(const char *text, size_t len, struct buf *out)
{
    struct scan s = {.text = text, .len = len, .out = out};
    while (s.at < s.len) {
        char c = s.text[s.at];
        if (starts(&s, s.at, "://", 0))
            handle_url(&s);
        else if (is_name(c))
            handle_word(&s);
        else
            copy_to(&s,
                    s.at + (c == '\\' && s.at + 1 < s.len && !is_alnum(s.text[s.at + 1]) ? 2 : 1));
    }
}
