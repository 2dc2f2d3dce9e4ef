/* DNS messages are read with every length checked, names with a bound on their bytes and jumps that
 * go backwards only, so that no loop of pointers ends us. What is answered echoes the question as
 * it was asked and nothing else of it. */
#include "gate/question.h"

#include "base/banned.h"

#define HEAD         12u
#define CLASS_IN     1u
#define TYPE_CNAME   5u
#define TYPE_OPT     41u
#define FLAG_ANSWER  0x8000u
#define FLAG_OPCODE  0x7800u
#define FLAG_RD      0x0100u
#define FLAG_RA      0x0080u
#define ALIASES_MAX  8u
#define OPTION_ERROR 15u
#define PROHIBITED   18u

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, (uint16_t)(v >> 16));
    put16(p + 2, (uint16_t)v);
}

/* Reads the name at *at into dotted lower case; *at goes behind it. False when it is malformed. A
 * label with a dot or a NUL in it becomes '?', which is in no name of ours. */
static bool read_name(const uint8_t *data, size_t len, size_t *at, char out[256])
{
    size_t from = *at, used = 0, bound = *at;
    bool jumped = false;

    for (;;) {
        if (from >= len)
            return false;
        uint8_t n = data[from];
        if ((n & 0xc0) == 0xc0) {
            if (from + 1 >= len)
                return false;
            size_t target = (size_t)(n & 0x3f) << 8 | data[from + 1];
            if (!jumped)
                *at = from + 2;
            jumped = true;
            if (target >= bound)
                return false; /* only backwards: every jump shortens what is left */
            from = bound = target;
            continue;
        }
        if (n & 0xc0 || from + 1 + n > len)
            return false;
        if (!n)
            break;
        if (used + n + 1 > 254)
            return false;
        for (unsigned i = 0; i < n; i++) {
            uint8_t c = data[from + 1 + i];
            out[used++] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c == '.' || !c ? '?' : c);
        }
        out[used++] = '.';
        from += 1u + n;
    }

    if (!jumped)
        *at = from + 1;
    if (used)
        used--;
    out[used] = 0;
    return true;
}

/* An OPT record is what tells that the asker knows EDNS. Others in a query mean nothing to us. */
static bool find_edns(const uint8_t *data, size_t len, size_t at, unsigned records)
{
    char name[256];

    for (unsigned i = 0; i < records && i < 8; i++) {
        if (!read_name(data, len, &at, name) || at + 10 > len)
            return false;
        if (get16(data + at) == TYPE_OPT && !name[0])
            return true;
        at += 10u + get16(data + at + 8);
    }
    return false;
}

enum asked question_read(const uint8_t *data, size_t len, struct question *ret)
{
    struct question q = {0};
    char name[256];
    size_t at = HEAD;

    if (len < HEAD)
        return ASKED_NOTHING;
    uint16_t flags = get16(data + 2);
    if (flags & FLAG_ANSWER)
        return ASKED_NOTHING; /* answering answers is how two servers talk for ever */
    q.id = get16(data);
    q.recursion = flags & FLAG_RD;

    bool good = !(flags & FLAG_OPCODE) && get16(data + 4) == 1 && !get16(data + 6) &&
                read_name(data, len, &at, name) && at + 4 <= len && at - HEAD <= 255 &&
                get16(data + at + 2) == CLASS_IN;
    /* There is nothing that a pointer in the first name could point to. */
    for (size_t i = HEAD; good && i < at; i += 1u + data[i])
        good = !(data[i] & 0xc0);
    if (!good) {
        *ret = q;
        return ASKED_WRONGLY;
    }

    q.type = get16(data + at);
    q.raw_len = at + 4 - HEAD;
    memcpy(q.raw, data + HEAD, q.raw_len);
    q.has_name = name_normalise(name, strlen(name), q.name);
    q.has_edns = find_edns(data, len, at + 4, get16(data + 8) + get16(data + 10));
    *ret = q;
    return ASKED;
}

static size_t put_address(uint8_t *out, struct ip a, uint16_t type, uint32_t ttl)
{
    unsigned size = type == DNS_A ? 4 : 16;

    put16(out, 0xc000 | HEAD); /* the name of the question */
    put16(out + 2, type);
    put16(out + 4, CLASS_IN);
    put32(out + 6, ttl);
    put16(out + 10, (uint16_t)size);
    memcpy(out + 12, a.bytes + (16 - size), size);
    return 12 + size;
}

static size_t put_edns(uint8_t *out, const char *why)
{
    size_t text = why ? strnlen(why, 120) : 0;
    size_t option = why ? 6 + text : 0;

    out[0] = 0;
    put16(out + 1, TYPE_OPT);
    put16(out + 3, DNS_MESSAGE_MAX);
    put32(out + 5, 0);
    put16(out + 9, (uint16_t)option);
    if (why) {
        put16(out + 11, OPTION_ERROR);
        put16(out + 13, (uint16_t)(2 + text));
        put16(out + 15, PROHIBITED);
        memcpy(out + 17, why, text);
    }
    return 11 + option;
}

size_t question_answer(const struct question *q, enum dns_code code, const struct ip *addresses,
                       unsigned count, uint32_t ttl, const char *why, uint8_t out[DNS_MESSAGE_MAX])
{
    size_t at = HEAD;
    uint16_t answers = 0;

    memset(out, 0, HEAD);
    memcpy(out + at, q->raw, q->raw_len);
    at += q->raw_len;

    unsigned most = q->has_edns ? DNS_ADDRESSES_MAX : DNS_ADDRESSES_MAX / 2; /* 512 bytes */
    for (unsigned i = 0; i < count && answers < most; i++) {
        if (ip_is_v4(addresses[i]) != (q->type == DNS_A))
            continue;
        at += put_address(out + at, addresses[i], q->type, ttl < DNS_TTL_MAX ? ttl : DNS_TTL_MAX);
        answers++;
    }
    if (q->has_edns)
        at += put_edns(out + at, why);

    put16(out, q->id);
    put16(out + 2, (uint16_t)(FLAG_ANSWER | FLAG_RA | (q->recursion ? FLAG_RD : 0) | code));
    put16(out + 4, q->raw_len ? 1 : 0);
    put16(out + 6, answers);
    put16(out + 10, q->has_edns ? 1 : 0);
    return at;
}

size_t query_write(uint16_t id, const char *name, enum dns_type type, uint8_t out[DNS_MESSAGE_MAX])
{
    size_t at = HEAD;

    memset(out, 0, HEAD);
    put16(out, id);
    put16(out + 2, FLAG_RD);
    put16(out + 4, 1);
    put16(out + 10, 1);
    for (const char *label = name; *label;) {
        size_t n = strcspn(label, ".");
        out[at++] = (uint8_t)n;
        memcpy(out + at, label, n);
        at += n;
        label += n + (label[n] == '.');
    }
    out[at++] = 0;
    put16(out + at, (uint16_t)type);
    put16(out + at + 2, CLASS_IN);
    at += 4;
    return at + put_edns(out + at, NULL);
}

/* One record of an answer. */
struct record {
    char owner[256];
    uint16_t type, class, size;
    uint32_t ttl;
    size_t data; /* where it begins */
};

static bool read_record(const uint8_t *data, size_t len, size_t *at, struct record *ret)
{
    if (!read_name(data, len, at, ret->owner) || *at + 10 > len)
        return false;
    ret->type = get16(data + *at);
    ret->class = get16(data + *at + 2);
    ret->ttl = (uint32_t)get16(data + *at + 4) << 16 | get16(data + *at + 6);
    ret->size = get16(data + *at + 8);
    ret->data = *at + 10;
    *at = ret->data + ret->size;
    return *at <= len;
}

/* Goes through the answers for one owner: the addresses are collected, or its alias is found. */
static bool collect(const uint8_t *data, size_t len, size_t at, unsigned records,
                    enum dns_type type, char name[256], struct reply *ret, bool *ret_alias)
{
    char alias[256] = "";

    for (unsigned i = 0; i < records; i++) {
        struct record r;
        if (!read_record(data, len, &at, &r))
            return i > 0; /* cut off: what came before counts */
        if (r.class != CLASS_IN || strcmp(r.owner, name) != 0)
            continue;

        size_t target = r.data;
        if (r.type == TYPE_CNAME && !alias[0] && !read_name(data, len, &target, alias))
            return false;
        if (r.type != type || r.size != (type == DNS_A ? 4 : 16) || ret->count == DNS_ADDRESSES_MAX)
            continue;
        if (type == DNS_A)
            ret->addresses[ret->count++] = ip_of_v4(data + r.data);
        else
            memcpy(ret->addresses[ret->count++].bytes, data + r.data, 16);
        ret->ttl = r.ttl < ret->ttl ? r.ttl : ret->ttl;
    }

    *ret_alias = !ret->count && alias[0];
    if (*ret_alias)
        memcpy(name, alias, sizeof alias);
    return true;
}

bool reply_read(const uint8_t *data, size_t len, uint16_t id, const char *name, enum dns_type type,
                struct reply *ret)
{
    struct reply reply = {.ttl = DNS_TTL_MAX};
    char owner[256];
    size_t at = HEAD;

    if (len < HEAD || get16(data) != id || !(get16(data + 2) & FLAG_ANSWER) ||
        get16(data + 2) & FLAG_OPCODE || get16(data + 4) != 1)
        return false;
    if (!read_name(data, len, &at, owner) || strcmp(owner, name) != 0 || at + 4 > len ||
        get16(data + at) != type || get16(data + at + 2) != CLASS_IN)
        return false;

    unsigned code = get16(data + 2) & 0xf;
    reply.code = code == DNS_OK || code == DNS_NO_NAME ? (enum dns_code)code : DNS_FAILED;
    bool alias = reply.code == DNS_OK;
    for (unsigned i = 0; alias && i < ALIASES_MAX; i++)
        if (!collect(data, len, at + 4, get16(data + 6), type, owner, &reply, &alias))
            return false;

    *ret = reply;
    return true;
}
