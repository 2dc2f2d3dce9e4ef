/* Any bytes as a Range header.
 *
 * Properties: what is asked for stays within what a file can have; a range written anew is read as
 * the same; one byte more behind it that is no digit makes it none. */
#include "api/range.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
    if (!holds)
        abort();
}

static void check_again(struct range r)
{
    char text[80];
    unsigned long long first = r.first, last = r.first + r.count - 1;
    if (r.kind == RANGE_LAST)
        snprintf(text, sizeof text, "bytes=-%llu", (unsigned long long)r.count);
    else if (last >= INT64_MAX)
        snprintf(text, sizeof text, "bytes=%llu-", first);
    else
        snprintf(text, sizeof text, "Bytes=%llu-%llu", first, last);

    struct range again = range_parse(slice_of(text));
    require(again.kind == r.kind && again.first == r.first);
    require(again.count == r.count || (r.kind == RANGE_FROM && last >= INT64_MAX));
    strncat(text, ",", sizeof text - strlen(text) - 1);
    require(range_parse(slice_of(text)).kind == RANGE_NONE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct range r = range_parse((struct slice){(const char *)data, size});
    require(r.first <= INT64_MAX && r.count <= INT64_MAX);
    if (r.kind == RANGE_NONE)
        return 0;
    require(r.kind == RANGE_LAST ? r.first == 0 : r.count > 0);
    check_again(r);
    return 0;
}
