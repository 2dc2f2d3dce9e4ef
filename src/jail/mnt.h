/* mnt: the kernel's mount calls, thin. Every function returns 0 (or a descriptor) or -errno; none
 * allocates, so all may be used between vfork and exec.
 *
 * "Detached" mounts are mounts that no namespace has yet: they are made where the source can be
 * seen and attached where the jail is built. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* mount(2), umount2(2), pivot_root(2): libc's headers clash with the kernel's. */
int mnt_mount(const char *source, const char *target, const char *type, unsigned long flags,
              const char *data);
int mnt_detach(const char *target);
int mnt_pivot_here(void); /* the working directory becomes the root, the old root is detached */
/* The working directory becomes the root by covering the old one: saves the 0.1 ms that detaching
 * takes. Only for an old root that holds nothing worth hiding. */
int mnt_cover_root(void);

#define MNT_RDONLY 1u
#define MNT_NOEXEC 2u
#define MNT_DEVS   4u /* device nodes work: only for /dev */
#define MNT_SINGLE 8u /* mnt_clone: without what is mounted below */

/* A detached copy of the mount tree at dir/path; recursive, because a copy without its submounts
 * would show directories that the host hides. Always nosuid, and nodev but for MNT_DEVS. */
int mnt_clone(int dir, const char *path, unsigned flags);
/* The same, with the ids on disk shown through the given user namespace. */
int mnt_clone_idmapped(int dir, const char *path, unsigned flags, int userns);
/* Shows the ids of a detached mount that is not mapped yet through a user namespace. */
int mnt_set_idmap(int mount, int userns);
/* A detached new file system; `options` are "key=value" or "flag", NULL at the end. */
int mnt_filesystem(const char *type, const char *const *options, unsigned flags);
int mnt_tmpfs(const char *const *options, unsigned flags);
/* Gives the file system whose root is at `path` other options. */
int mnt_reconfigure(const char *path, const char *const *options);
/* Puts a detached mount onto dir/path ("" for dir itself). */
int mnt_attach(int mount, int dir, const char *path);

/* Opens a path as if `root` were the root directory: links and ".." cannot leave it. */
int mnt_open_beneath(int root, const char *path, int flags);
/* mkdir -p below root, with the same care. Existing directories are fine. Returns O_PATH fd. */
int mnt_make_dir(int root, const char *path, mode_t mode);
