/* The words of a stream: what a program or a server says beside the bytes of a link. They come from
 * elsewhere and are shown to people, so only plain characters are kept. */
#include "engine/stream.h"

#include "base/banned.h"

#include <string.h>

void byte_stream_note(char *words, size_t size, const void *data, size_t len)
{
    const uint8_t *text = data;
    size_t have = strlen(words);

    for (size_t i = 0; i < len && have + 1 < size; i++)
        if (text[i] >= ' ' && text[i] < 127)
            words[have++] = (char)text[i];
    words[have] = 0;
}
