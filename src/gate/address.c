/* IP addresses and networks. The table of addresses that are never dialled is the special-purpose
 * registries of IANA, as far as they lead to the host, to its neighbours or to nobody; and the
 * IPv6 forms that a router would turn into any IPv4 address. */
#include "gate/address.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/parse.h"

#include <arpa/inet.h>

static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

struct ip ip_of_v4(const uint8_t bytes[4])
{
    struct ip a;
    memcpy(a.bytes, mapped, sizeof mapped);
    memcpy(a.bytes + sizeof mapped, bytes, 4);
    return a;
}

bool ip_is_v4(struct ip a)
{
    return memcmp(a.bytes, mapped, sizeof mapped) == 0;
}

bool ip_equal(struct ip a, struct ip b)
{
    return memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

bool ip_parse(const char *text, struct ip *ret)
{
    uint8_t v4[4];
    struct ip a;

    if (inet_pton(AF_INET, text, v4) == 1) {
        *ret = ip_of_v4(v4);
        return true;
    }
    if (inet_pton(AF_INET6, text, a.bytes) != 1)
        return false;

    *ret = a;
    return true;
}

void ip_text(struct ip a, char out[IP_TEXT])
{
    const void *from = ip_is_v4(a) ? a.bytes + sizeof mapped : a.bytes;
    out[0] = 0;
    (void)inet_ntop(ip_is_v4(a) ? AF_INET : AF_INET6, from, out, IP_TEXT);
}

bool cidr_has(const struct cidr *c, struct ip a)
{
    unsigned whole = c->bits / 8, rest = c->bits % 8;

    if (memcmp(c->net.bytes, a.bytes, whole) != 0)
        return false;
    if (!rest)
        return true;
    uint8_t mask = (uint8_t)(0xff00u >> rest);
    return (c->net.bytes[whole] & mask) == (a.bytes[whole] & mask);
}

bool cidr_is_single(const struct cidr *c)
{
    return c->bits == 128;
}

/* Are all bits behind the length zero? */
static bool is_clean(const struct cidr *c)
{
    for (unsigned bit = c->bits; bit < 128; bit++)
        if (c->net.bytes[bit / 8] & 0x80u >> bit % 8)
            return false;
    return true;
}

int cidr_parse(const char *text, struct cidr *ret, struct pd_err *e)
{
    char address[IP_TEXT];
    struct cidr c = {.bits = 128};
    size_t len = strcspn(text, "/");

    if (len >= sizeof address)
        return pd_fail(e, PD_INVALID, "'%.60s' is not an address or a network such as 10.0.0.0/8",
                       text);
    memcpy(address, text, len);
    address[len] = 0;
    if (!ip_parse(address, &c.net))
        return pd_fail(e, PD_INVALID, "'%.60s' is not an address or a network such as 10.0.0.0/8",
                       text);

    if (text[len]) {
        bool v4 = !strchr(address, ':');
        uint64_t bits;
        if (parse_u64("the length of a network", text + len + 1, 0, v4 ? 32 : 128, &bits, e) < 0)
            return -1;
        c.bits = (uint8_t)(bits + (v4 ? 96 : 0));
    }

    if (!is_clean(&c))
        return pd_fail(e, PD_INVALID,
                       "'%.60s' has bits behind its length: write the network's "
                       "first address",
                       text);
    *ret = c;
    return 0;
}

bool ip_is_own(struct ip a)
{
    static const uint8_t own[4] = {192, 0, 2, 2};
    static const struct ip loopback = {.bytes = {[15] = 1}};

    return (ip_is_v4(a) && a.bytes[12] == 127) || ip_equal(a, loopback) ||
           ip_equal(a, ip_of_v4(own));
}

/* The bytes of the network, its length of 128, and what it is. */
static const struct {
    uint8_t bytes[16];
    uint8_t bits;
    const char *why;
} forbidden[] = {
#define V4(a, b, c, bits, why)                                                                     \
    {                                                                                              \
        {[10] = 0xff, 0xff, a, b, c}, 96 + (bits), why                                             \
    }
    V4(0, 0, 0, 8, "this host"),
    V4(10, 0, 0, 8, "private"),
    V4(100, 64, 0, 10, "private"),
    V4(127, 0, 0, 8, "loopback"),
    V4(169, 254, 0, 16, "link-local"),
    V4(172, 16, 0, 12, "private"),
    V4(192, 0, 0, 24, "reserved"),
    V4(192, 168, 0, 16, "private"),
    V4(198, 18, 0, 15, "reserved"),
    V4(224, 0, 0, 3, "multicast or reserved"),
#undef V4
    {{0}, 96, "loopback or an embedded address"},
    {{0, 0x64, 0xff, 0x9b}, 96, "an embedded address"},
    {{0, 0x64, 0xff, 0x9b, 0, 1}, 48, "an embedded address"},
    {{0x20, 0x01}, 32, "an embedded address"},
    {{0x20, 0x02}, 16, "an embedded address"},
    {{0xfc}, 7, "private"},
    {{0xfe, 0x80}, 10, "link-local"},
    {{0xfe, 0xc0}, 10, "private"},
    {{0xff}, 8, "multicast"},
};

const char *ip_forbidden(struct ip a)
{
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) {
        struct cidr c = {.bits = forbidden[i].bits};
        memcpy(c.net.bytes, forbidden[i].bytes, sizeof c.net.bytes);
        if (cidr_has(&c, a))
            return forbidden[i].why;
    }
    return NULL;
}
