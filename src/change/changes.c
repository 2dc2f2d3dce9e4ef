/* Placeholders and their values. A value never has a control byte (the vault sees to that), so what
 * is put into a header stays one header. */
#include "change/changes.h"

#include "base/banned.h"
#include "base/base64.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/parse.h"

#include <strings.h>

#define BASIC_MAX (12u << 10)

static int hex_digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool take_seed(const char *text, uint8_t ret[AUTHORITY_SEED_LEN])
{
    if (strlen(text) != (size_t)2 * AUTHORITY_SEED_LEN)
        return false;
    for (unsigned i = 0; i < AUTHORITY_SEED_LEN; i++) {
        int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        ret[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* Cuts off the word before the next blank. NULL: there is none. */
static char *cut_word(char **text)
{
    char *word = *text, *blank = strchr(word, ' ');
    if (!blank || blank == word)
        return NULL;
    *blank = 0;
    *text = blank + 1;
    return word;
}

static bool take_secret(char *text, struct changes *c)
{
    uint64_t port;
    struct change *n = &c->items[c->count];
    if (c->count == CHANGES_MAX)
        return false;

    n->placeholder = cut_word(&text);
    n->host = n->placeholder ? cut_word(&text) : NULL;
    const char *number = n->host ? cut_word(&text) : NULL;
    if (!number || parse_u64("port", number, 1, 65535, &port, NULL) < 0 ||
        strlen(text) < BLANK_MIN || strlen(n->placeholder) < BLANK_MIN)
        return false;
    n->port = (unsigned)port;
    n->value = text;
    c->count++;
    return true;
}

static bool take_header(char *text, struct changes *c)
{
    uint64_t port;
    struct header_set *n = &c->sets[c->set_count];
    if (c->set_count == SETS_MAX)
        return false;

    n->host = cut_word(&text);
    const char *number = n->host ? cut_word(&text) : NULL;
    n->name = number ? cut_word(&text) : NULL;
    if (!n->name || parse_u64("port", number, 0, 65535, &port, NULL) < 0)
        return false;
    n->port = (unsigned)port;
    n->value = text;
    c->set_count++;
    return true;
}

int changes_parse(char *text, struct changes *ret, struct pd_err *e)
{
    bool has_seed = false, good = true;

    ret->count = ret->set_count = 0;
    for (char *line = text, *next; good && line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (!strncmp(line, "authority ", 10))
            good = has_seed = !has_seed && take_seed(line + 10, ret->authority);
        else if (!strncmp(line, "header ", 7))
            good = take_header(line + 7, ret);
        else
            good = !strncmp(line, "secret ", 7) && take_secret(line + 7, ret);
    }
    return good && has_seed ? 0 : pd_fail(e, PD_PROTOCOL, "the secrets of a sandbox are malformed");
}

static bool is_for(const struct change *n, const char *host, unsigned port)
{
    return n->port == port && !strcmp(n->host, host);
}

bool changes_has_secrets(const struct changes *c, const char *host, unsigned port)
{
    for (unsigned i = 0; i < c->count; i++)
        if (is_for(&c->items[i], host, port))
            return true;
    return false;
}

const struct header_set *changes_next_set(const struct changes *c, const char *host, unsigned port,
                                          unsigned *at)
{
    while (*at < c->set_count) {
        const struct header_set *n = &c->sets[(*at)++];
        bool has_port = n->port ? n->port == port : port == 80 || port == 443;
        if (has_port && !strcmp(n->host, host))
            return n;
    }
    return NULL;
}

bool changes_sets(const struct changes *c, const char *host, unsigned port, const char *name,
                  size_t len)
{
    const struct header_set *n;
    unsigned at = 0;

    while ((n = changes_next_set(c, host, port, &at)))
        if (strlen(n->name) == len && !strncasecmp(n->name, name, len))
            return true;
    return false;
}

bool changes_has(const struct changes *c, const char *host, unsigned port)
{
    unsigned at = 0;
    return changes_has_secrets(c, host, port) || changes_next_set(c, host, port, &at);
}

/* The change whose placeholder begins here, or NULL. */
static const struct change *find_at(const struct changes *c, const char *host, unsigned port,
                                    const char *at, size_t left)
{
    for (unsigned i = 0; i < c->count; i++) {
        const struct change *n = &c->items[i];
        size_t len = strlen(n->placeholder);
        if (is_for(n, host, port) && len <= left && !memcmp(at, n->placeholder, len))
            return n;
    }
    return NULL;
}

static bool replace(const struct changes *c, const char *host, unsigned port, const char *text,
                    size_t len, struct buf *out)
{
    bool found = false;

    for (size_t i = 0; i < len;) {
        const struct change *n = find_at(c, host, port, text + i, len - i);
        if (!n) {
            buf_putc(out, text[i++]);
            continue;
        }
        buf_puts(out, n->value);
        i += strlen(n->placeholder);
        found = true;
    }
    return found;
}

/* "Basic", blanks, and base64 of user:password. */
static bool replace_basic(const struct changes *c, const char *host, unsigned port,
                          const char *value, size_t len, struct buf *out)
{
    auto_buf plain = BUF_INIT(BASIC_MAX), changed = BUF_INIT(BASIC_MAX);
    size_t at = 6;

    if (len < 7 || strncasecmp(value, "basic ", 6) != 0)
        return false;
    while (at < len && value[at] == ' ')
        at++;
    if (base64_decode(&plain, value + at, len - at, NULL) != BASE64_GOOD)
        return false;

    bool found =
        replace(c, host, port, (const char *)plain.data, plain.len, &changed) && !changed.overflow;
    if (found) {
        buf_puts(out, "Basic ");
        (void)base64_encode(out, changed.data, changed.len);
    }
    if (changed.data)
        explicit_bzero(changed.data, changed.cap);
    return found;
}

bool changes_apply(const struct changes *c, const char *host, unsigned port, const char *value,
                   size_t len, struct buf *out)
{
    size_t before = out->len;

    if (replace_basic(c, host, port, value, len, out) || replace(c, host, port, value, len, out))
        return true;
    out->len = before;
    return false;
}
