/* quota: project quotas, which limit a directory tree on ext4 and xfs. */
#pragma once

#include <stdint.h>

/* Does the file system of `dir` enforce project quotas, and may we set them? */
int quota_available(int dir);
/* Makes the (empty) directory a project of its own with these limits; what is made below it
 * belongs to it. 0 or -errno. */
int quota_limit(int dir, uint64_t bytes, uint64_t files);
/* The limits of the project that the directory belongs to; 0 when there is none. 0 or -errno. */
int quota_read(int dir, uint64_t *ret_bytes, uint64_t *ret_files);
