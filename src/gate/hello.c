/* A ClientHello may be cut into records of any size, down to single bytes, and records into
 * segments. So records are joined first, and the message is looked at when it is complete. What a
 * strict server would refuse is refused here: it could be read differently behind us. */
#include "gate/hello.h"

#include "base/banned.h"

#define RECORD_HANDSHAKE 22u
#define RECORD_HEAD      5u
#define RECORD_MAX       16384u
#define CLIENT_HELLO     1u
#define EXTENSION_NAME   0u
#define NAME_TYPE_HOST   0u

/* Bytes that are still to be read; `bad` once one was missing. */
struct reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static uint32_t take_number(struct reader *r, unsigned bytes)
{
    uint32_t v = 0;

    if (r->bad || r->left < bytes) {
        r->bad = true;
        return 0;
    }
    for (unsigned i = 0; i < bytes; i++)
        v = v << 8 | r->at[i];
    r->at += bytes;
    r->left -= bytes;
    return v;
}

/* A part with its length, of `bytes` bytes, in front. */
static struct reader take_part(struct reader *r, unsigned bytes)
{
    size_t len = take_number(r, bytes);
    if (r->bad || r->left < len) {
        r->bad = true;
        return (struct reader){.bad = true};
    }

    struct reader part = {.at = r->at, .left = len};
    r->at += len;
    r->left -= len;
    return part;
}

/* Joins what the records carry. The head of the message says how long it is: enough is enough. */
static enum sniffed join(const uint8_t *data, size_t len, uint8_t *out, size_t *ret_len)
{
    size_t have = 0;

    for (size_t at = 0;;) {
        size_t wanted = have < 4 ? 4 : 4 + ((size_t)out[1] << 16 | (size_t)out[2] << 8 | out[3]);
        if (have >= 1 && out[0] != CLIENT_HELLO)
            return SNIFF_BAD;
        if (wanted > HELLO_MAX)
            return SNIFF_BAD;
        if (have >= 4 && have >= wanted) {
            *ret_len = wanted;
            return SNIFF_NAMELESS; /* complete */
        }

        if (at < len && data[at] != RECORD_HANDSHAKE)
            return at ? SNIFF_BAD : SNIFF_OTHER;
        if (at + 1 < len && data[at + 1] != 3)
            return at ? SNIFF_BAD : SNIFF_OTHER;
        if (at + RECORD_HEAD > len)
            return SNIFF_MORE;

        size_t size = (size_t)data[at + 3] << 8 | data[at + 4];
        if (!size || size > RECORD_MAX)
            return SNIFF_BAD;
        at += RECORD_HEAD;
        size_t there = len - at < size ? len - at : size;
        if (have + there > HELLO_MAX)
            return SNIFF_BAD;
        memcpy(out + have, data + at, there);
        have += there;
        at += there;
        if (there < size &&
            !(have >= 4 && have >= 4 + ((size_t)out[1] << 16 | (size_t)out[2] << 8 | out[3])))
            return have >= 1 && out[0] != CLIENT_HELLO ? SNIFF_BAD : SNIFF_MORE;
    }
}

/* The list in the extension: one name of a host, and nothing else. */
static enum sniffed read_name(struct reader extension, char ret[RULES_NAME_MAX + 1])
{
    struct reader list = take_part(&extension, 2);
    uint32_t type = take_number(&list, 1);
    struct reader name = take_part(&list, 2);

    if (extension.bad || list.bad || extension.left || list.left || type != NAME_TYPE_HOST)
        return SNIFF_BAD;
    return name_normalise((const char *)name.at, name.left, ret) ? SNIFF_NAMED : SNIFF_BAD;
}

static enum sniffed read_message(const uint8_t *data, size_t len, char ret[RULES_NAME_MAX + 1])
{
    struct reader r = {.at = data + 4, .left = len - 4};

    (void)take_number(&r, 2); /* version */
    for (unsigned i = 0; i < 8; i++)
        (void)take_number(&r, 4); /* random */
    (void)take_part(&r, 1);       /* session */
    (void)take_part(&r, 2);       /* ciphers */
    (void)take_part(&r, 1);       /* compression */
    if (r.bad)
        return SNIFF_BAD;
    if (!r.left)
        return SNIFF_NAMELESS;

    struct reader all = take_part(&r, 2);
    enum sniffed found = SNIFF_NAMELESS;
    while (!all.bad && all.left) {
        uint32_t type = take_number(&all, 2);
        struct reader extension = take_part(&all, 2);
        if (all.bad || type != EXTENSION_NAME)
            continue;
        if (found != SNIFF_NAMELESS)
            return SNIFF_BAD;
        found = read_name(extension, ret);
        if (found == SNIFF_BAD)
            return SNIFF_BAD;
    }
    return r.bad || r.left || all.bad ? SNIFF_BAD : found;
}

enum sniffed hello_read(const uint8_t *data, size_t len, char ret[RULES_NAME_MAX + 1])
{
    uint8_t message[HELLO_MAX];
    char name[RULES_NAME_MAX + 1];
    size_t size = 0;

    enum sniffed s = join(data, len, message, &size);
    if (s != SNIFF_NAMELESS)
        return s;
    s = read_message(message, size, name);
    if (s == SNIFF_NAMED)
        memcpy(ret, name, strlen(name) + 1);
    return s;
}
