/* put: how paddock-box comes into a box of any image: a container that has it copies it into a
 * directory that the box sees. */
#pragma once

struct pd_err;

/* Copies this program to DIR/box. There is no moment at which half of it is there. */
int put_self(const char *dir, struct pd_err *e);
