/* range: the Range header of a request for bytes. Pure. */
#pragma once

#include "net/http.h"

enum range_kind {
    RANGE_NONE, /* the whole */
    RANGE_FROM, /* at most `count` bytes from `first` on */
    RANGE_LAST  /* the last `count` bytes */
};

struct range {
    enum range_kind kind;
    uint64_t first, count; /* at most INT64_MAX each; numbers beyond it count as that */
};

/* "bytes=0-99", "bytes=100-" or "bytes=-100". Whatever else the header says (several ranges, other
 * units, nonsense) may be ignored, and is: RANGE_NONE. */
struct range range_parse(struct slice value);
