/* shed: how an init that somebody else started gives up what it was given.
 *
 * An engine starts it as root with some capabilities, or as any uid with none. What it keeps is at
 * most SETUID, SETGID and KILL (in `dev` the seven of the profile); nothing that it starts can gain
 * more. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

struct shed {
    bool single;    /* no uid can be given: all processes have init's */
    bool unbounded; /* the bounding set could not be emptied: SETPCAP was not given */
};

/* Fails when something could not be given up; nothing may be started then. */
int shed_power(bool dev, struct shed *ret, struct pd_err *e);
