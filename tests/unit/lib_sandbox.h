/* lib_sandbox: a group of tests with one library, and sandboxes of it. */
#pragma once

#include "lib_place.h"

static struct paddock *lib;
static char why_not[400]; /* there are no sandboxes here; "" when there are */

static inline int group_setup(void **state)
{
    struct paddock_error e;
    (void)state;

    if (program_choose() < 0)
        return -1;
    lib = paddock_open(NULL, &e);
    if (!lib) {
        print_message("# paddock_open: %s: %s\n", e.code, e.message);
        return -1;
    }
    return sandboxes_try(lib, why_not, sizeof why_not);
}

static inline int group_teardown(void **state)
{
    (void)state;
    paddock_close(lib);
    return 0;
}

static inline void need_sandboxes(void)
{
    if (why_not[0])
        skip_because("%s", why_not);
}

static inline struct paddock_sandbox *make(void)
{
    need_sandboxes();

    struct paddock_error e;
    struct paddock_sandbox *s = paddock_create(lib, NULL, &e);
    if (!s)
        fail_msg("create: %s: %s", e.code, e.message);
    return s;
}

static inline void end(struct paddock_sandbox *s)
{
    assert_int_equal(paddock_end(s, 0, NULL), 0);
    paddock_release(s);
}
