/* unit: what every unit test needs around cmocka.
 *
 * A test program has one group, run by cmocka_run_group_tests, and names its tests
 * test_<what_holds>. tests/run reads the TAP that cmocka writes. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Ends the test as skipped; the reason is listed at the end of `make test`. */
#define skip_because(...)                                                                          \
    do {                                                                                           \
        print_message("# skip: " __VA_ARGS__);                                                     \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

#define COUNT(array) (sizeof(array) / sizeof *(array))
