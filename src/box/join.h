/* join: how a connection comes to the far end of a link that is in a box nobody can dial: an engine
 * executes `paddock-box join` there, and what it reads and writes is the connection. */
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

/* What is listened for: connections of the link; before that, the link's key (key.h), which is
 * answered with JOIN_KEY_HEARD. */
enum join_what { JOIN_LINK, JOIN_KEY };
#define JOIN_KEY_HEARD "heard\n"

/* Where the far end listens: an abstract name, which no image can lack a directory for. Returns the
 * address's length. */
socklen_t join_address(enum join_what what, struct sockaddr_un *ret);
/* One connection to the far end, a stream socket; -1 when there is none. */
int join_connect(void);
/* Connects there and copies both ways until either side ends. Returns the exit status. */
int join_main(enum join_what what);
