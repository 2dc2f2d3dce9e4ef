/* client_mcp: a server of one's own, for `paddock mcp` where nobody has named one. */
#pragma once

#include <sys/types.h>

struct pd_err;

/* A process of its own, the guard, looks after the server: it starts it, and ends it with all its
 * sandboxes and files when the other end of `life` is closed, however that comes about. */
struct own_server {
    pid_t guard; /* 0: none */
    int life;    /* -1: none */
    char dir[64];
};
#define OWN_SERVER_INIT ((struct own_server){.life = -1})

/* Starts one and waits until it answers; PADDOCK_URL and PADDOCK_API_KEY name it from then on. To
 * be called before there are threads. */
int own_server_start(struct own_server *s, struct pd_err *e);
/* Ends it and waits for that. */
void own_server_end(struct own_server *s);
#define auto_own_server __attribute__((cleanup(own_server_end))) struct own_server
