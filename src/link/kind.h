/* kind: what the channel of a descriptor of an EXEC becomes in the box. The keeper's end says it
 * for each descriptor in their order (link_ref.kind). */
#pragma once

enum link_kind {
    LINK_NULL = 1, /* no channel: /dev/null */
    LINK_PIPE,     /* one way; the command has the other end of a pipe */
    LINK_SOCKET,   /* both ways */
    LINK_TERMINAL, /* both ways: a terminal of the box's; the command has its side of it */
    LINK_SAME,     /* no channel: the same as the descriptor before */
    LINK_KIND_COUNT
};
