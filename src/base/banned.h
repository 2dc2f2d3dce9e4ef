/* banned: libc calls that this project does not use, turned into compile errors.
 * Each has a bounded or explicit counterpart: snprintf, memcpy, parse_*, posix_spawn. */
#pragma once

/* The system headers must come first, or their own declarations would trip over the poison. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* With clang and _FORTIFY_SOURCE, glibc makes it a macro, and a macro cannot be poisoned. */
#undef sprintf

#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets strtok atoi atol atoll
#pragma GCC poison gmtime localtime ctime asctime popen mktemp tmpnam
