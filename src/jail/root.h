/* root: the file system that a jail sees.
 *
 *   one-shot      a tmpfs with a small generated skeleton (gone with the jail)
 *   --name N      a root of the store (store.h) that stays
 *   --root DIR    an overlay: DIR below, a tmpfs or a named root above
 *
 * The first two have the host's /usr and friends mounted read-only. On top of all come /proc with
 * masks, /dev with its own devpts, and the caller's binds.
 *
 * Everything that needs the host's view or can take long happens in root_prepare, before the jail
 * exists; root_mount runs in the jail's first process, between vfork and exec. */
#pragma once

#include "jail/template.h"
#include "wire/spec.h"

struct pd_err;

struct root {
    int host_template;                     /* /usr of the host is mounted into it */
    uint32_t uid_root, uid_user, uid_init; /* host ids */
    int top;   /* detached mount: the root itself, or the upper layer of an overlay */
    int lower; /* detached mount of DIR, or -1 */
    int devpts;
    int lock; /* held while the named root is in use, or -1 */
    int bind_mounts[SPEC_BINDS_MAX];
    int bind_is_dir[SPEC_BINDS_MAX];
    unsigned bind_count;
};

#define ROOT_EMPTY ((struct root){.top = -1, .lower = -1, .devpts = -1, .lock = -1})
void root_done(struct root *r);

/* A detached tmpfs with the skeleton in it, for the range `slot` (RANGE_NONE: rootless), with the
 * limits of `l`. Can be made before anybody asks for the jail. A descriptor or -1. */
int root_make_tmpfs(uint32_t slot, const struct limits *l, struct pd_err *e);
/* A detached devpts whose terminals belong to the jail's group tty. */
int root_make_devpts(uint32_t slot, struct pd_err *e);

/* Completes *r for a spec. r->top and r->devpts may be there already (prepared); they are used if
 * they fit. `userns` shows disk ids in the jail's range, -1 when rootless. */
int root_prepare(struct root *r, const struct template *t, const char *state_dir,
                 const struct spec *s, uint32_t slot, int userns, struct pd_err *e);

/* Mounts it and makes it the root directory. 0, or -errno with *ret_step saying what failed. */
int root_mount(const struct root *r, const struct template *t, const struct spec *s,
               const char **ret_step);
