/* address: IP addresses and networks, and which of them a gate dials only if its operator says so.
 *
 * Both families are 16 bytes: IPv4 is its mapped form ::ffff:a.b.c.d, so that a mapped address
 * cannot be a second name of a plain one. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

struct ip {
    uint8_t bytes[16];
};

#define IP_TEXT 46 /* with the NUL */

struct cidr {
    struct ip net;
    uint8_t bits; /* of 128: an IPv4 network has 96 more than it is written with */
};

/* Reads a dotted quad or an IPv6 literal, without brackets; no other spelling of either. */
bool ip_parse(const char *text, struct ip *ret);
void ip_text(struct ip a, char out[IP_TEXT]);
struct ip ip_of_v4(const uint8_t bytes[4]);
bool ip_is_v4(struct ip a);
bool ip_equal(struct ip a, struct ip b);

/* "203.0.113.0/24", "2001:db8::/32", or an address alone. Bits behind the length must be zero. */
int cidr_parse(const char *text, struct cidr *ret, struct pd_err *e);
bool cidr_has(const struct cidr *c, struct ip a);
/* Is it one address alone? */
bool cidr_is_single(const struct cidr *c);

/* Is it the sandbox's own: loopback, or the address that its network gives it? */
bool ip_is_own(struct ip a);
#define IP_OWN "192.0.2.2"

/* Why an address is never dialled unless the operator names it: "private", "loopback" ...; NULL for
 * a public one. The forms that carry an IPv4 address inside (NAT64, 6to4, Teredo) are all in it. */
const char *ip_forbidden(struct ip a);
