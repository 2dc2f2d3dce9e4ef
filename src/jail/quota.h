/* quota: project quotas, which limit a directory tree on ext4 and xfs. */
#pragma once

#include <stdint.h>

/* Does the file system of `dir` enforce project quotas, and may we set them? */
int quota_available(int dir);
/* The project id of a tree whose directory has this inode number: the first of its neighbours that
 * is not in use. 0 when none of them is free. Pure. */
uint32_t quota_project(uint64_t inode, int (*in_use)(uint32_t project, void *arg), void *arg);
/* Makes the (empty) directory, two levels below the store's, a project of its own with these
 * limits; what is made below it belongs to it. 0 or -errno. */
int quota_limit(int dir, uint64_t bytes, uint64_t files);
/* The limits of the project that the directory belongs to; 0 when there is none. 0 or -errno. */
int quota_read(int dir, uint64_t *ret_bytes, uint64_t *ret_files);
