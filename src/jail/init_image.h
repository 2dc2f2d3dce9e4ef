/* init_image: the program that is pid 1 of every jail, carried inside this one. */
#pragma once

struct pd_err;

/* A sealed copy in memory, to be started with execveat: a jail never sees a file of the host, and
 * nothing in it can change what the next jail starts. A descriptor or -1. */
int init_image_open(struct pd_err *e);
/* The same, but it can be read: for a worker that puts the program somewhere. */
int init_image_open_file(struct pd_err *e);
/* paddock-box in the same way, which is put into boxes on other machines. */
int box_image_open_file(struct pd_err *e);
/* Where `paddock backend` lends it to the programs that come in its place: a broker's own number
 * for it (BROKER_BOX_FD). */
#define BOX_LENT_FD 5
/* One that can be run, and not read. */
int box_image_open(struct pd_err *e);
