/* Values in answers become asterisks, as many as they had bytes, so that nothing else about an
 * answer changes. A text comes in pieces; what may be the beginning of a word is held back until
 * the next piece or the end says which. */
#include "base/banned.h"
#include "base/buf.h"
#include "change/changes.h"

#define WORD_MAX (16u << 10)

static int add_form(struct blank *b, const uint8_t *word, size_t len)
{
    for (unsigned i = 0; i < b->count; i++)
        if (b->lens[i] == len && !memcmp(b->words[i], word, len))
            return 0;
    if (len < BLANK_MIN || b->count == BLANKS_MAX || !(b->words[b->count] = malloc(len)))
        return -1;

    memcpy(b->words[b->count], word, len);
    b->lens[b->count++] = len;
    b->begins[word[0]] = true;
    return 0;
}

/* As JSON writes it: with `escapes` behind a backslash. */
static void put_json(struct buf *out, const char *word, size_t len, const char *escapes)
{
    for (size_t i = 0; i < len; i++) {
        if (strchr(escapes, word[i]))
            buf_putc(out, '\\');
        buf_putc(out, word[i]);
    }
}

static void put_url(struct buf *out, const char *word, size_t len)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (size_t i = 0; i < len; i++)
        if (strchr(plain, word[i]))
            buf_putc(out, word[i]);
        else
            buf_printf(out, "%%%02X", (unsigned char)word[i]);
}

int blank_add(struct blank *b, const char *word, size_t len)
{
    auto_buf json = BUF_INIT(WORD_MAX), slashes = BUF_INIT(WORD_MAX), url = BUF_INIT(WORD_MAX);

    put_json(&json, word, len, "\"\\");
    put_json(&slashes, word, len, "\"\\/");
    put_url(&url, word, len);
    int r = json.overflow || slashes.overflow || url.overflow ||
                    add_form(b, (const uint8_t *)word, len) < 0 ||
                    add_form(b, json.data, json.len) < 0 ||
                    add_form(b, slashes.data, slashes.len) < 0 || add_form(b, url.data, url.len) < 0
                ? -1
                : 0;
    explicit_bzero(json.data, json.len);
    explicit_bzero(slashes.data, slashes.len);
    explicit_bzero(url.data, url.len);
    return r;
}

int blank_add_all(struct blank *b, const struct changes *c, const char *host, unsigned port)
{
    for (unsigned i = 0; i < c->count; i++) {
        const struct change *n = &c->items[i];
        if (n->port == port && !strcmp(n->host, host) &&
            blank_add(b, n->value, strlen(n->value)) < 0)
            return -1;
    }
    return 0;
}

/* How many bytes from here on are a word; *ret_partly: they may become one with more. */
static size_t word_at(const struct blank *b, const uint8_t *at, size_t left, bool *ret_partly)
{
    size_t longest = 0;

    *ret_partly = false;
    if (!b->begins[*at])
        return 0;
    for (unsigned i = 0; i < b->count; i++) {
        size_t len = b->lens[i], seen = len < left ? len : left;
        if (memcmp(at, b->words[i], seen) != 0)
            continue;
        if (seen < len)
            *ret_partly = true;
        else if (len > longest)
            longest = len;
    }
    return longest;
}

/* Where the first byte is that has to wait for more. */
static size_t tell(struct blank *b, const uint8_t *text, size_t len, bool last, struct buf *out)
{
    size_t i = 0, covered = b->covered; /* the end of what is blanked */

    for (; i < len; i++) {
        bool partly;
        size_t word = word_at(b, text + i, len - i, &partly);
        if (partly && !last)
            break;
        if (word && i + word > covered)
            covered = i + word;
        buf_putc(out, i < covered ? '*' : (char)text[i]);
    }
    b->covered = covered > i ? covered - i : 0;
    return i;
}

static void drop_held(struct blank *b)
{
    if (b->held)
        explicit_bzero(b->held, b->held_len);
    free(b->held);
    b->held = NULL;
    b->held_len = 0;
}

bool blank_pass(struct blank *b, const void *data, size_t len, bool last, struct buf *out)
{
    auto_buf whole = BUF_INIT((1u << 20) + WORD_MAX);

    buf_put(&whole, b->held, b->held_len);
    buf_put(&whole, data, len);
    if (whole.overflow)
        return false;
    size_t at = tell(b, whole.data, whole.len, last, out), left = whole.len - at;

    drop_held(b);
    if (left && !(b->held = malloc(left)))
        return false;
    if (left) {
        memcpy(b->held, whole.data + at, left); /* shorter than the longest word */
        b->held_len = left;
    }
    if (last)
        b->covered = 0;
    return !out->overflow;
}

void blank_done(struct blank *b)
{
    for (unsigned i = 0; i < b->count; i++) {
        explicit_bzero(b->words[i], b->lens[i]);
        free(b->words[i]);
    }
    drop_held(b);
    *b = (struct blank){0};
}
