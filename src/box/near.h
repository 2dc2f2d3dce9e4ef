/* near: `paddock-box stand-in`, the program of a stand-in (stand_in.h) on the keeper's machine. It
 * reads what a box says: so it is started anew for each box, with an address space of its own, as
 * nobody, without an environment, and with these descriptors alone. */
#pragma once

#include "link/proof.h"
#include "wire/frame.h"

#include <stdint.h>

#define NEAR_CONTROL 3 /* init's end of the control socket */
#define NEAR_ORDERS  4 /* to who carries: an ADOPT with the end of a stream for each connection */
#define NEAR_SECRET  5 /* struct near_secret can be read there, once */
#define NEAR_REPORT  6 /* an empty line when the link is up for the first time */
#define NEAR_FDS     4

/* What only the box and its stand-in know, and how long the box waits. */
struct near_secret {
    struct wire_id box;
    uint8_t key[LINK_KEY];
    uint32_t lease; /* s */
};

/* argv: the program's name, "stand-in", the pid of the parent with which it ends, and whatever is
 * to be seen of it in a list of processes. Returns the exit status. */
int near_main(int argc, char **argv);
