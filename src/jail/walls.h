/* walls: lets a test build leave out one wall, so that an attack test can show what that wall is
 * good for. In a release wall_off() is the constant 0 and the compiler removes every branch. */
#pragma once

#ifdef PADDOCK_WEAK_WALLS
/* Is `name` in the comma-separated list of the environment variable PADDOCK_WALL_OFF? */
int wall_off(const char *name);
#else
static inline int wall_off(const char *name)
{
    (void)name;
    return 0;
}
#endif
