/* skeleton: the generated directories and files of a root made from the host template. */
#pragma once

#include <stdint.h>

/* How many files the skeleton may have: they do not count against a jail's own. */
#define SKELETON_FILES 64u
/* For skeleton_populate: leave every owner as it comes (rootless). */
#define SKELETON_AS_IS UINT32_MAX

/* Fills an empty directory. Inside ids are added to `base` (0 for a root on disk, whose ids are
 * mapped when it is mounted). 0 or -errno. */
int skeleton_populate(int dir, uint32_t base);
