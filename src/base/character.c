/* A character of UTF-8 is a byte that says how many follow, and bytes 10xxxxxx, three at most. So a
 * cut is found by looking at no more than four bytes. */
#include "base/character.h"

#include "base/banned.h"

#include <stdint.h>

static int goes_on(uint8_t c)
{
    return (c & 0xc0) == 0x80;
}

size_t character_whole(const void *data, size_t len)
{
    const uint8_t *at = data;
    size_t back = 0;
    while (back < 3 && back < len && goes_on(at[len - 1 - back]))
        back++;
    if (back == len)
        return len;

    uint8_t lead = at[len - 1 - back];
    size_t need = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return need > back + 1 ? len - back - 1 : len;
}

size_t character_rest(const void *data, size_t len)
{
    const uint8_t *at = data;
    size_t n = 0;
    while (n < 3 && n < len && goes_on(at[n]))
        n++;
    return n;
}
