/* apart: a box that a command starts in a machine which runs already, such as one that is rented:
 * paddock-box is nobody's first process there, and whoever starts it does not wait for its end. */
#pragma once

struct pd_err;

/* Goes on in a process of its own, in a session of its own, whose parent is the machine's first
 * process or whoever stands for it. The process that called exits: with 0 after apart_ready, with 1
 * when the other one ends before that or takes too long. Standard error is shared until then. -1:
 * there is no other process. */
int apart_begin(int *ret_ready, struct pd_err *e);
/* Lets it go. Descriptors 0 to 2 are /dev/null from now on. */
void apart_ready(int ready);
/* For the other processes of a box: whoever waits for the end of the command's output must not wait
 * for theirs. */
void apart_be_silent(void);

/* A listening socket, not blocking, for who dials the box. */
int apart_listen(unsigned port, struct pd_err *e);
