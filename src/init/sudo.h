/* sudo: the same program as init, started as `sudo` inside a `dev` jail. */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Where init listens for it: INIT_SUDO_SOCKET, or INIT_SUDO_NAME. Returns the address's length. */
socklen_t sudo_address(bool by_name, struct sockaddr_un *ret);
int sudo_main(int argc, char **argv);
