/* resolvers: which name servers this machine uses, as lines of a policy. */
#pragma once

#include "base/buf.h"

/* Appends a line `resolver ADDRESS` for each of the first three in the text of a resolv.conf. Those
 * of one link alone (fe80::1%eth0) are left out. None: 127.0.0.1, as libc has it. Pure. */
void resolvers_parse(const char *text, struct buf *out);
/* The same for the machine's own. */
void resolvers_read(struct buf *out);
