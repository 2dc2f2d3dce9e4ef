/* checks: what must hold whatever happens. A test build (meson -Dchecks=true) aborts where it does
 * not, so that no test passes over it; a release logs an error and goes on. */
#pragma once

#include <stdlib.h>

#ifdef PADDOCK_CHECKS
enum { CHECKS = 1 };
#else
enum { CHECKS = 0 };
#endif

/* Call it where something does not hold, after saying so. */
static inline void checks_failed(void)
{
    if (CHECKS)
        abort();
}
