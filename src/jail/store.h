/* store: named roots, on disk, which outlive jails, keepers and reboots.
 *
 * A root is the directory <state>/roots/<name>, mode 0700. On disk its ids are 0-65535; they are
 * mapped into a jail's range when it is mounted, so it belongs to no range in particular. How its
 * size is limited depends on the host, found out when the root is made:
 *
 *   quota  a project quota on the store's file system         <name>/tree
 *   image  an ext4 image in a sparse file, mounted by loop    <name>/image
 *   plain  no limit possible (rootless)                       <name>/tree */
#pragma once

#include "jail/template.h"
#include "wire/spec.h"

struct pd_err;

enum store_kind { STORE_PLAIN, STORE_QUOTA, STORE_IMAGE };
const char *store_kind_name(enum store_kind k);

/* <state>/roots as a descriptor; makes what is missing of the path. */
int store_open_dir(int host_root, const char *state_dir, struct pd_err *e);
/* Opens a named root of that directory, or makes it. To be called while visiting the host.
 * `layered`: it will be the upper part of an overlay and gets no skeleton. `base`: the id of the
 * image that is below it, or
 * ""; of a root that has one it must be the same, otherwise PD_CONFLICT. Gives a detached mount
 * (idmapped through `userns` unless that is -1) and a descriptor that holds the root's lock: a root
 * has one jail at a time, a second gets PD_CONFLICT. */
int store_open_root(const struct template *t, int roots, const char *name, int layered,
                    const char *base, const struct limits *l, int userns, int *ret_mount,
                    int *ret_lock, struct pd_err *e);
/* The base of a root that was made before. 1; 0 when it has none, or there is no such root. */
#define STORE_BASE_MAX 65
int store_read_base(int roots, const char *name, char ret[STORE_BASE_MAX]);
/* Is an image the base of a root? Its name then. `roots` is the store's directory. */
int store_find_based(int roots, const char *id, char ret_name[SPEC_NAME_MAX + 1]);

/* How roots made in this directory would be limited. `dir` is any directory of the file system. */
enum store_kind store_probe(int dir, int rootless);

/* Removes a named root: renamed out of the way at once, deleted afterwards. Fails with PD_CONFLICT
 * while a jail uses it, PD_NOT_FOUND when there is none. For the command line, in the host's
 * namespaces. */
int store_remove_root(const char *state_dir, const char *name, struct pd_err *e);
/* Marks a root, takes the mark away, or asks for it: a root with the mark is not a leftover,
 * although no jail uses it. The mark stays when a jail uses the root again, which may fail
 * half-way: it goes with the root, or when it is known that the root is to go. */
int store_keep_root(const char *state_dir, const char *name, struct pd_err *e);
void store_unkeep_root(const char *state_dir, const char *name);
int store_is_kept(const char *state_dir, const char *name);
/* Marks a root whose removal was promised, so that a keeper that dies before it is done leaves it
 * to the next one. */
int store_doom_root(const char *state_dir, const char *name, struct pd_err *e);
int store_is_doomed(const char *state_dir, const char *name);
/* Makes the root `to` of `from`, complete or not at all. For the host's namespaces.
 * `jail_root`: the root directory of the jail that uses `from`, whose processes stand still until
 * this returns; -1 when none does. `jail_pid`: a pidfd of its init; when that dies meanwhile, the
 * copy fails. PD_NOT_FOUND; PD_CONFLICT when `to` exists or another jail uses `from`;
 * PD_NO_SPACE. */
int store_copy_root(const char *state_dir, const char *from, const char *to, int jail_root,
                    int jail_pid, struct pd_err *e);
/* Deletes what removals and copies left that were killed. */
void store_clean(const char *state_dir);
/* Calls `each` for every root: its name and kind. */
int store_list_roots(const char *state_dir,
                     void (*each)(const char *name, const char *kind, void *arg), void *arg,
                     struct pd_err *e);
/* Deletes a directory tree below `dir` without recursion depth and without following links, also
 * one with 10^5 levels. Nothing outside of it is deleted when somebody moves its directories
 * meanwhile: -ESTALE, or another error that goes away when he has ended. 0 or -errno. */
int store_remove_tree(int dir, const char *name);
