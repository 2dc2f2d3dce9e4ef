/* The head of an HTTP/1 request is read as strictly as a server could: one Host, no folded line, no
 * bare CR or LF, no blank before a colon, no target that names another host. What follows the first
 * head on the connection goes to the same server. */
#include "gate/head.h"

#include "base/banned.h"

#include <strings.h>

#define METHOD_MAX 20u

static bool is_token(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Begins it like a request of HTTP/1, or like the preface of HTTP/2? */
static enum sniffed begins(const uint8_t *data, size_t len)
{
    size_t i = 0;
    while (i < len && i < METHOD_MAX && data[i] >= 'A' && data[i] <= 'Z')
        i++;
    if (i == len)
        return i < METHOD_MAX ? SNIFF_MORE : SNIFF_OTHER;
    return i >= 3 && data[i] == ' ' ? SNIFF_NAMED : SNIFF_OTHER;
}

/* The host without its port; brackets are an address. */
static enum sniffed read_host(const char *text, size_t len, char ret[RULES_NAME_MAX + 1])
{
    if (!len)
        return SNIFF_NAMELESS;
    if (text[0] == '[')
        return SNIFF_NAMELESS;

    const char *colon = memchr(text, ':', len);
    size_t host = colon ? (size_t)(colon - text) : len;
    for (size_t i = host + 1; i < len; i++)
        if (text[i] < '0' || text[i] > '9')
            return SNIFF_BAD;

    char address[IP_TEXT];
    struct ip ignored;
    if (host < sizeof address) {
        memcpy(address, text, host);
        address[host] = 0;
        if (ip_parse(address, &ignored))
            return SNIFF_NAMELESS;
    }
    return name_normalise(text, host, ret) ? SNIFF_NAMED : SNIFF_BAD;
}

/* "METHOD target HTTP/1.x". An absolute target has a host of its own. */
static enum sniffed read_first(const char *line, size_t len, char ret[RULES_NAME_MAX + 1])
{
    const char *end = line + len;
    const char *target = memchr(line, ' ', len);
    if (!target)
        return SNIFF_BAD;
    target++;

    const char *version = memchr(target, ' ', (size_t)(end - target));
    if (!version || end - version != 9 || memcmp(version, " HTTP/1.", 8) != 0 ||
        (version[8] != '0' && version[8] != '1'))
        return SNIFF_BAD;
    if (len >= 8 && !memcmp(line, "CONNECT ", 8))
        return SNIFF_BAD;

    size_t size = (size_t)(version - target);
    if (!size)
        return SNIFF_BAD;
    if (target[0] == '/' || (size == 1 && target[0] == '*'))
        return SNIFF_NAMELESS;
    if (size < 8 || strncasecmp(target, "http://", 7) != 0)
        return SNIFF_BAD;

    const char *host = target + 7;
    size_t host_len = 0;
    while (host + host_len < version && !strchr("/?#", host[host_len]))
        host_len++;
    if (memchr(host, '@', host_len))
        return SNIFF_BAD;
    return read_host(host, host_len, ret);
}

/* One field. 1: it is Host, and its value is told. -1: not as it should be. */
static int read_field(const char *line, size_t len, const char **ret, size_t *ret_len)
{
    size_t name = 0;
    while (name < len && is_token((uint8_t)line[name]))
        name++;
    if (!name || name == len || line[name] != ':')
        return -1;

    const char *value = line + name + 1, *end = line + len;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    for (const char *c = value; c < end; c++)
        if (((uint8_t)*c < 0x20 && *c != '\t') || *c == 0x7f)
            return -1;
    if (name != 4 || strncasecmp(line, "host", 4) != 0)
        return 0;

    *ret = value;
    *ret_len = (size_t)(end - value);
    return 1;
}

enum sniffed head_read(const uint8_t *data, size_t len, char ret[RULES_NAME_MAX + 1])
{
    char target[RULES_NAME_MAX + 1], host[RULES_NAME_MAX + 1];

    enum sniffed s = begins(data, len);
    if (s != SNIFF_NAMED)
        return s;

    const char *text = (const char *)data;
    const char *end = memmem(data, len, "\r\n\r\n", 4);
    /* A bare LF ends a line for some servers; we would wait for more. */
    for (size_t i = 0; i < len && (!end || text + i < end); i++)
        if (text[i] == '\n' && (!i || text[i - 1] != '\r'))
            return SNIFF_BAD;
    if (!end)
        return len >= HEAD_MAX ? SNIFF_BAD : SNIFF_MORE;

    enum sniffed of_target = SNIFF_BAD, of_host = SNIFF_NAMELESS;
    bool first = true, has_host = false;
    for (const char *line = text; line <= end;) {
        const char *stop = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
        size_t size = (size_t)(stop - line);
        const char *value;
        size_t value_len;

        if (memchr(line, '\r', size) || memchr(line, 0, size))
            return SNIFF_BAD;
        if (first) {
            of_target = read_first(line, size, target);
        } else {
            int r = read_field(line, size, &value, &value_len);
            if (r < 0 || (r && has_host))
                return SNIFF_BAD;
            if (r) {
                has_host = true;
                of_host = read_host(value, value_len, host);
            }
        }
        first = false;
        line = stop + 2;
    }

    if (of_target == SNIFF_BAD || of_host == SNIFF_BAD)
        return SNIFF_BAD;
    if (of_target == SNIFF_NAMED && (of_host != SNIFF_NAMED || strcmp(target, host) != 0))
        return SNIFF_BAD;
    if (of_host == SNIFF_NAMED)
        memcpy(ret, host, strlen(host) + 1);
    return of_host;
}
