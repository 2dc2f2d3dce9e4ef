/* Names and numbers of the server: random ids, hexadecimal digits, times as text, and SipHash, for
 * tables whose keys clients choose. */
#include "access/ids.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"

#include <time.h>

void id_sandbox(char ret[ID_SANDBOX_LEN + 1])
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";

    /* 252 = 7 * 36: bytes above it are thrown away, or the first letters would come up more often.
     * 32 bytes nearly always hold 20 good ones. */
    uint8_t pool[32];
    size_t used = sizeof pool;

    for (size_t n = 0; n < ID_SANDBOX_LEN;) {
        if (used == sizeof pool) {
            random_bytes(pool, sizeof pool);
            used = 0;
        }
        uint8_t byte = pool[used++];
        if (byte < 252)
            ret[n++] = alphabet[byte % 36];
    }

    ret[ID_SANDBOX_LEN] = '\0';
}

void id_key(char ret[ID_KEY_LEN + 1])
{
    uint8_t secret[20];

    random_bytes(secret, sizeof secret);
    memcpy(ret, ID_KEY_PREFIX, sizeof ID_KEY_PREFIX - 1);
    hex_encode(secret, sizeof secret, ret + sizeof ID_KEY_PREFIX - 1);
    explicit_bzero(secret, sizeof secret);
}

static int is_lower_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

int id_is_sandbox(const char *text)
{
    if (!text || strnlen(text, ID_SANDBOX_LEN + 1) != ID_SANDBOX_LEN)
        return 0;
    for (size_t i = 0; i < ID_SANDBOX_LEN; i++)
        if (!is_lower_or_digit(text[i]))
            return 0;
    return 1;
}

int id_is_key(const char *text)
{
    size_t prefix = sizeof ID_KEY_PREFIX - 1;
    if (!text || strnlen(text, ID_KEY_LEN + 1) != ID_KEY_LEN ||
        memcmp(text, ID_KEY_PREFIX, prefix) != 0)
        return 0;

    for (size_t i = prefix; i < ID_KEY_LEN; i++)
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return 0;
    return 1;
}

int id_is_tenant(const char *text)
{
    size_t len = text ? strnlen(text, ID_TENANT_MAX + 1) : 0;
    if (len == 0 || len > ID_TENANT_MAX)
        return 0;
    for (size_t i = 0; i < len; i++)
        if (!is_lower_or_digit(text[i]) && text[i] != '_' && text[i] != '-')
            return 0;
    return 1;
}

void hex_encode(const void *data, size_t len, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = data;

    for (size_t i = 0; i < len; i++) {
        ret[2 * i] = digits[bytes[i] >> 4];
        ret[2 * i + 1] = digits[bytes[i] & 15];
    }
    ret[2 * len] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int hex_decode(const char *text, void *ret, size_t len)
{
    if (!text || strnlen(text, 2 * len + 1) != 2 * len)
        return -1;
    for (size_t i = 0; i < 2 * len; i++)
        if (hex_digit(text[i]) < 0)
            return -1;

    uint8_t *out = ret;
    for (size_t i = 0; i < len; i++)
        out[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    return 0;
}

/* Times. The calendar is computed here: gmtime_r would do, but timegm accepts the 31st of
 * February, and a parser has to refuse it anyway. */

#define MS_PER_DAY  UINT64_C(86400000)
#define MS_OF_10000 UINT64_C(253402300800000) /* 10000-01-01T00:00:00Z */

uint64_t time_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec < 0 ? 0 : (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Years that begin in March make the leap day the last one: then both directions are plain
 * arithmetic. A "year" below is such a year, day 0 is the 1st of March of the year 0. */
#define DAYS_TO_1970 719468u

static uint64_t days_before_year(unsigned year)
{
    return (uint64_t)year * 365 + year / 4 - year / 100 + year / 400;
}

/* Days from day 0 of the March year to the 1st of its month (0 is March). */
static unsigned days_before_month(unsigned month)
{
    return (153 * month + 2) / 5;
}

void time_format_ms(uint64_t ms, char ret[TIME_TEXT_LEN + 1])
{
    if (ms >= MS_OF_10000)
        ms = MS_OF_10000 - 1;

    uint64_t days = ms / MS_PER_DAY + DAYS_TO_1970;
    unsigned in_day = (unsigned)(ms % MS_PER_DAY);
    unsigned year = (unsigned)(days * 400 / 146097) + 1;
    while (days_before_year(year) > days)
        year--;

    unsigned in_year = (unsigned)(days - days_before_year(year));
    unsigned month = (5 * in_year + 2) / 153;
    unsigned day = in_year - days_before_month(month) + 1;
    month = month < 10 ? month + 3 : month - 9;
    year += month <= 2;

    unsigned fields[] = {
        year, month, day, in_day / 3600000, in_day / 60000 % 60, in_day / 1000 % 60, in_day % 1000};
    static const struct {
        unsigned digits;
        char after;
    } layout[] = {{4, '-'}, {2, '-'}, {2, 'T'}, {2, ':'}, {2, ':'}, {2, '.'}, {3, 'Z'}};

    char *at = ret;
    for (size_t i = 0; i < sizeof layout / sizeof *layout; i++) {
        for (unsigned n = layout[i].digits; n > 0; n--) {
            at[n - 1] = (char)('0' + fields[i] % 10);
            fields[i] /= 10;
        }
        at += layout[i].digits;
        *at++ = layout[i].after;
    }
    *at = '\0';
}

/* Reads exactly `count` digits and what stands behind them ('\0': nothing is asked). */
static int take_digits(const char **at, unsigned count, char after, unsigned *ret)
{
    unsigned value = 0;
    for (unsigned i = 0; i < count; i++) {
        char c = (*at)[i];
        if (c < '0' || c > '9')
            return -1;
        value = value * 10 + (unsigned)(c - '0');
    }

    if (after && (*at)[count] != after)
        return -1;
    *at += count + (after != '\0');
    *ret = value;
    return 0;
}

static unsigned days_in_month(unsigned year, unsigned month)
{
    if (month == 2)
        return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
    return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

static int time_parse(const char *at, uint64_t *ret)
{
    unsigned year, month, day, hour, minute, second, milli = 0, zone_hour = 0, zone_minute = 0;
    if (take_digits(&at, 4, '-', &year) || take_digits(&at, 2, '-', &month) ||
        take_digits(&at, 2, '\0', &day) || (*at != 'T' && *at != 't'))
        return -1;
    at++;
    if (take_digits(&at, 2, ':', &hour) || take_digits(&at, 2, ':', &minute) ||
        take_digits(&at, 2, '\0', &second))
        return -1;

    if (year < 1970 || month < 1 || month > 12 || day < 1 || day > days_in_month(year, month) ||
        hour > 23 || minute > 59 || second > 59)
        return -1;

    if (*at == '.') {
        const char *first = ++at;
        unsigned weight = 100;
        for (; *at >= '0' && *at <= '9'; at++, weight /= 10)
            milli += (unsigned)(*at - '0') * weight;
        if (at == first)
            return -1;
    }

    int sign = 0;
    if (*at == '+' || *at == '-') {
        sign = *at++ == '+' ? 1 : -1;
        if (take_digits(&at, 2, ':', &zone_hour) || take_digits(&at, 2, '\0', &zone_minute) ||
            zone_hour > 23 || zone_minute > 59)
            return -1;
    } else if (*at == 'Z' || *at == 'z') {
        at++;
    } else {
        return -1;
    }

    if (*at)
        return -1;

    unsigned march_year = month > 2 ? year : year - 1;
    uint64_t days = days_before_year(march_year) +
                    days_before_month(month > 2 ? month - 3 : month + 9) + day - 1 - DAYS_TO_1970;
    int64_t ms = (int64_t)(days * MS_PER_DAY) + hour * 3600000 + minute * 60000 + second * 1000 +
                 milli - sign * (int64_t)(zone_hour * 3600000 + zone_minute * 60000);

    if (ms < 0 || (uint64_t)ms >= MS_OF_10000)
        return -1;
    *ret = (uint64_t)ms;
    return 0;
}

int time_parse_ms(const char *what, const char *text, uint64_t *ret, struct pd_err *e)
{
    if (time_parse(text, ret))
        return pd_fail(e, PD_INVALID,
                       "%s: \"%.40s\" is not a time such as 2026-01-02T03:04:05.678Z", what, text);
    return 0;
}

/* Hashes. */

static uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t rotl64(uint64_t v, unsigned by)
{
    return v << by | v >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotl64(v[1], 13) ^ v[0];
    v[3] = rotl64(v[3], 16) ^ v[2];
    v[0] = rotl64(v[0], 32) + v[3];
    v[2] += v[1];
    v[3] = rotl64(v[3], 21) ^ v[0];
    v[1] = rotl64(v[1], 17) ^ v[2];
    v[2] = rotl64(v[2], 32);
}

static void sip_absorb(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_round(v);
    sip_round(v);
    v[0] ^= word;
}

uint64_t siphash(const uint8_t key[16], const void *data, size_t len)
{
    const uint8_t *at = data;
    uint64_t k0 = load64(key), k1 = load64(key + 8);
    uint64_t v[4] = {k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d),
                     k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
    size_t left = len;

    for (; left >= 8; left -= 8, at += 8)
        sip_absorb(v, load64(at));

    uint64_t last = (uint64_t)(len & 0xff) << 56;
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)at[i] << (8 * i);
    sip_absorb(v, last);

    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t hash_bytes(const void *data, size_t len)
{
    static const uint8_t key[16] = "paddock hash v1";
    return siphash(key, data, len);
}
