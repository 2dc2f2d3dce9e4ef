/* No parser of XML: it looks for "<NAME>" and takes what is before the next "<". AWS's answers have
 * no attributes, comments or sections of data there; where something else comes, nothing is found.
 */
#include "engine/xml_text.h"

#include "base/banned.h"

#include <string.h>

static const struct {
    const char *entity;
    char c;
} entities[] = {{"&lt;", '<'}, {"&gt;", '>'}, {"&amp;", '&'}, {"&quot;", '"'}, {"&apos;", '\''}};

static void copy(const char *text, size_t len, char *out, size_t size)
{
    size_t have = 0;

    for (size_t i = 0; i < len && have + 1 < size;) {
        size_t used = 1;
        char c = text[i];
        for (size_t k = 0; c == '&' && k < sizeof entities / sizeof *entities; k++) {
            size_t n = strlen(entities[k].entity);
            if (len - i >= n && !memcmp(text + i, entities[k].entity, n)) {
                c = entities[k].c;
                used = n;
                break;
            }
        }
        if (c)
            out[have++] = c;
        i += used;
    }
    out[have] = 0;
}

size_t xml_text(const char *xml, size_t len, const char *name, char *ret, size_t size)
{
    size_t n = strlen(name);

    ret[0] = 0;
    for (size_t at = 0; at + n + 2 <= len; at++) {
        if (xml[at] != '<' || memcmp(xml + at + 1, name, n) != 0 || xml[at + 1 + n] != '>')
            continue;
        size_t from = at + n + 2;
        const char *end = memchr(xml + from, '<', len - from);
        if (!end)
            return 0;
        if (end + 1 == xml + len || end[1] != '/')
            continue;
        copy(xml + from, (size_t)(end - (xml + from)), ret, size);
        return (size_t)(end - xml);
    }
    return 0;
}
