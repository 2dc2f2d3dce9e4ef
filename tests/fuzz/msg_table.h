/* The messages in the order of fuzz_msg's inputs: the first byte of one is a place in this table.
 * tests/unit/test_msg_seeds.c has the seeds made by it, and checks that they are still what their
 * names say. */
#pragma once

#define MESSAGES(X)                                                                                \
    X(error)                                                                                       \
    X(welcome)                                                                                     \
    X(create)                                                                                      \
    X(created)                                                                                     \
    X(destroy)                                                                                     \
    X(gone)                                                                                        \
    X(kill)                                                                                        \
    X(usage)                                                                                       \
    X(listed)                                                                                      \
    X(counted)                                                                                     \
    X(key)                                                                                         \
    X(build)                                                                                       \
    X(built)                                                                                       \
    X(prepare)                                                                                     \
    X(sweep)                                                                                       \
    X(copy_root)                                                                                   \
    X(copy)                                                                                        \
    X(exec)                                                                                        \
    X(started)                                                                                     \
    X(exited)                                                                                      \
    X(signal)                                                                                      \
    X(empty)                                                                                       \
    X(tree)                                                                                        \
    X(resize)                                                                                      \
    X(facts)                                                                                       \
    X(progress)                                                                                    \
    X(trouble)                                                                                     \
    X(images)                                                                                      \
    X(keep)
