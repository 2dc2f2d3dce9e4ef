/* store_in: what the parts of the store share. store.c has the roots, store_image.c the images,
 * store_copy.c copies. Not for others. */
#pragma once

#include "jail/store.h"

/* In the store, beside the roots: what is to be deleted, unless somebody holds a lock on it. */
#define STORE_TRASH   ".trash-"
#define STORE_COPYING ".copy-"

/* Deletes what removals and copies that were killed left behind. */
void store_empty_trash(int roots);

/* In a root on top of an image: a link that nobody follows. Its text is the image's id, there at
 * once or not at all. */
#define STORE_BASE "base"
/* Its text; "" when the root has none. */
void store_base_of(int root, char ret[STORE_BASE_MAX]);

/* A blank image of a size, from which the next root of that size is made: quicker than mkfs. The
 * number is of how mkfs is called. */
#define STORE_BLANK ".blank-1-"

/* Makes <root>/image, under another name first: a crash leaves no half-made image behind.
 * *ret_from_blank: it is a copy of a blank one. When that cannot be mounted, forget the blank one
 * and make it again. */
int image_make(int roots, int root, const struct limits *l, int *ret_from_blank, struct pd_err *e);
void image_forget_blank(int roots, const struct limits *l);
/* Mounts <root>/image: a detached mount, which holds a lock on the image as long as it lives.
 * Without `must_last` a loss of power may spoil it: nothing waits for the disk then, neither an
 * fsync in the jail nor the end of the jail, when it is unmounted. */
int image_mount(int root, const struct limits *l, int must_last, struct pd_err *e);
/* Locks an image (LOCK_EX, LOCK_SH). A dead jail's is let go a moment after the jail itself, when
 * the kernel has unmounted it: waits 2 s for that. 0, or -1 when somebody has it. */
int image_lock(int image, int how);
