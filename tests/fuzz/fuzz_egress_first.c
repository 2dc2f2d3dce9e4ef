/* The first bytes of a connection, as TLS and as HTTP: a name that comes out is one, more bytes
 * never change what was decided, and only one of the two readers can claim them. */
#include "base/banned.h"
#include "gate/head.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef enum sniffed (*reader)(const uint8_t *data, size_t len, char ret[RULES_NAME_MAX + 1]);

static enum sniffed check(reader read, const uint8_t *data, size_t size)
{
    char name[RULES_NAME_MAX + 1] = "", again[RULES_NAME_MAX + 1], earlier[RULES_NAME_MAX + 1] = "";

    enum sniffed s = read(data, size, name);
    if (s == SNIFF_NAMED &&
        (!name_normalise(name, strlen(name), again) || strcmp(name, again) != 0))
        abort();

    /* What half of it has decided holds for the whole. */
    enum sniffed half = read(data, size / 2, earlier);
    if (half == SNIFF_NAMED && (s != SNIFF_NAMED || strcmp(name, earlier) != 0))
        abort();
    if (half == SNIFF_OTHER && s != SNIFF_OTHER)
        abort();
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > HELLO_MAX)
        size = HELLO_MAX;
    if (!size)
        return 0;
    enum sniffed tls = check(hello_read, data, size), http = check(head_read, data, size);
    if (tls != SNIFF_OTHER && http != SNIFF_OTHER)
        abort();
    return 0;
}
