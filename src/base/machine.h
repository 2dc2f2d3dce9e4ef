/* machine: how large the machine is that this process runs on.
 *
 * Each call reads the kernel's own figure anew, takes a few microseconds and cannot fail: where the
 * kernel does not tell, the answer is the one of a small machine. */
#pragma once

#include <stdint.h>

uint64_t machine_memory(void); /* bytes of memory, without swap */
/* Bytes that programs could still have: what is free, and what the kernel can take back. */
uint64_t machine_memory_left(void);
uint64_t machine_pid_max(void); /* processes and threads that may exist at a time */
unsigned machine_cores(void);   /* cores that this process may run on */
/* Bytes of the file system that holds `path`, or would hold it: the nearest parent that exists is
 * looked at. 0 when nothing can be said. */
uint64_t machine_disk(const char *path);
