/* root: the file system that a jail sees.
 *
 *   one-shot      a tmpfs with a small generated skeleton (gone with the jail)
 *   --name N      a root of the store (store.h) that stays
 *   --root DIR    an overlay: DIR below, a tmpfs or a named root above
 *   --image NAME  an overlay: the image's layers below, a tmpfs or a named root above
 *
 * The first two have the host's /usr and friends mounted read-only. On top of all come /proc with
 * masks, /dev with its own devpts, and the caller's binds.
 *
 * Everything that needs the host's view or can take long happens in root_prepare, before the jail
 * exists; root_mount_rest runs in the jail's first process, between vfork and exec. */
#pragma once

#include "jail/template.h"
#include "wire/image_record.h"
#include "wire/spec.h"

#include <sys/types.h>

struct pd_err;

/* What a program needs of the host to use its network: how names are resolved, whom TLS trusts. The
 * first is a file, the second a directory. */
#define ROOT_NETWORK_FILES 2
extern const char *const root_network_files[ROOT_NETWORK_FILES];

struct root {
    int host_template;                     /* /usr of the host is mounted into it */
    uint32_t uid_root, uid_user, uid_init; /* host ids */
    int top; /* detached mount: the root itself, or the upper layer of an overlay */
    /* Detached mounts of DIR, or of an image's layers, the lowest first. */
    int lowers[IMAGE_LAYERS_MAX];
    unsigned lower_count;
    int devpts;
    int lock;         /* held while the named root is in use, or -1 */
    int image_lock;   /* held while the image is, or -1 */
    char **image_env; /* the image's variables, or NULL */
    int base_mounted; /* root_mount_base was done in the mount namespace that goes with it */
    int bind_mounts[SPEC_BINDS_MAX];
    int bind_is_dir[SPEC_BINDS_MAX];
    unsigned bind_count;
    int network_files[ROOT_NETWORK_FILES]; /* with the host's network: resolv.conf, certificates */
};

#define ROOT_EMPTY                                                                                 \
    ((struct root){                                                                                \
        .top = -1, .devpts = -1, .lock = -1, .image_lock = -1, .network_files = {-1, -1}})
void root_done(struct root *r);

/* Fills an empty *r with the root that most specs want: a tmpfs with the skeleton in it and the
 * default limits, for the range `slot` (RANGE_NONE: rootless), and a devpts. Can be done before
 * anybody asks for the jail. */
int root_prepare_usual(struct root *r, uint32_t slot, struct pd_err *e);

/* Completes *r for a spec: empty, or from root_prepare_usual if root_is_usual says that it fits.
 * `userns` shows disk ids in the jail's range, -1 when rootless. */
int root_prepare(struct root *r, const struct template *t, const char *state_dir,
                 const struct spec *s, uint32_t slot, int userns, struct pd_err *e);

/* Which parts of /proc must be masked on this host: a bit each, for template.masks. */
uint32_t root_needed_masks(int host_root);

/* Is a prepared root of the usual kind what this spec wants? */
int root_is_usual(const struct spec *s);

/* Gives the tmpfs that is the root of this process the size that the limits want. 0 or -errno. */
int root_resize(pid_t pid, const struct limits *l);

/* Mounts it in the caller's mount namespace, a copy of the template's, in two steps: what no spec
 * changes, which can be done in advance, and the rest (/proc, which belongs to the jail's
 * processes, binds), which makes it the root directory. 0, or -errno with *ret_step saying what
 * failed. */
int root_mount_base(const struct root *r, const struct template *t, const char **ret_step);
int root_mount_rest(const struct root *r, const struct template *t, const struct spec *s,
                    const char **ret_step);
