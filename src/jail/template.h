/* template: where jails are built.
 *
 * A builder lives in a mount namespace of its own whose root is a tiny read-only tree: the host's
 * /usr, a finished /dev, something to mask files with, and an empty mount point. A jail starts as a
 * copy of that namespace, which is much cheaper than a copy of the host's, and needs no clean-up of
 * host mounts because there are none.
 *
 *   /jail      where the new root is mounted
 *   /lower /upper  mount points for the layers of an overlay
 *   /usr ...   the host's programs and libraries, read-only, nosuid, nodev
 *   /etc/...   the few files of the host's /etc that programs need to run
 *   /dev       null zero full random urandom tty, and links
 *   /mask/file /mask/dir   empty, mode 0
 *   /shim/sudo what jails of the profile dev have as sudo, once there was one
 *   /ids/boot  the boot id of the next jail, or of the last
 *
 * Host paths are reached between template_visit_host and template_return. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_err;

/* Top-level entries of the host template and whether they are links (merged /usr) or mounts. */
struct template_entry {
    char name[32];
    char link[64]; /* target, or "" for a read-only mount */
};
#define TEMPLATE_ENTRIES_MAX 12

/* Parts of the host's /etc that a jail sees, read-only: how libraries are found, which alternative
 * is chosen, the settings without which R, Java and Chromium do not start. Paths from the root. */
struct template_etc {
    const char *path;
    bool is_dir;
};
extern const struct template_etc template_etc[];
extern const size_t template_etc_count;

struct template
{
    int rootless;
    int proc;      /* the host's /proc, O_PATH */
    int host_ns;   /* mount namespace that sees the host */
    int host_root; /* the host's root directory there (a chroot's, if started in one) */
    int self_ns;   /* the template's own namespace */
    struct template_entry entries[TEMPLATE_ENTRIES_MAX];
    unsigned entry_count;
    uint32_t etc; /* which of template_etc the host has, one bit each */
    int has_shim;
    int ids;         /* /ids, to make files there */
    int has_boot_id; /* there is one that no jail has yet */
    uint32_t masks;  /* which of root.c's masks this kernel needs, one bit each */
};

/* Moves the calling process into a new template. Rootless: also into a user namespace. */
int template_enter(struct template *t, int rootless, struct pd_err *e);
/* Makes /shim/sudo of an open program, the first time it is called. */
int template_add_shim(struct template *t, int program, struct pd_err *e);
/* Sees to it that TEMPLATE_BOOT_ID is a file with a random boot id that no jail has: makes a new
 * one unless has_boot_id, which whoever mounts it clears. What is mounted stays when the next one
 * is made. 0 or -errno. */
int template_new_boot_id(struct template *t);
#define TEMPLATE_BOOT_ID "/ids/boot"
void template_done(struct template *t);

/* Between this and template_return the host's mounts can be cloned. Paths are to be resolved from
 * t->host_root: the process then stands at the root of the host's namespace and not of a chroot
 * that it was started in. What is opened or cloned there stays usable. template_return cannot fail.
 */
int template_visit_host(const struct template *t, struct pd_err *e);
/* During a visit: goes on in that chroot, where every path is as it was at the start. No namespace
 * of users can be made there. */
int template_enter_start(const struct template *t, struct pd_err *e);
/* Both of them. */
int template_visit_start(const struct template *t, struct pd_err *e);
void template_return(const struct template *t);
