/* carrier: carries the bytes of one box's link between its stand-in and the engine. It has the
 * engine's credentials and looks at no byte of the link; the stand-in reads what a box says and has
 * no credentials. Killing it is a cut of the connection, and no more. */
#pragma once

struct broker_config;

/* Its status when the box has ended, or is not there any more. */
#define CARRIER_GONE 3

/* Serves requests on `orders`, a SOCK_SEQPACKET socket: each is an ADOPT with a descriptor, the
 * end of a stream socket that is to be joined to the box. A new one ends the connection before it.
 * Why the first attempts fail is written to `report`, a line each, until that is closed at the
 * other end. Ends when `orders` does. */
_Noreturn void carrier_main(const struct broker_config *c, const char *place, int orders,
                            int report);
