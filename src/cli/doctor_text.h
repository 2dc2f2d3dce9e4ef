/* doctor_text: pure readers of the kernel's text files, for doctor. None allocates or fails. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* "6.1.0-18-amd64" into 6 and 1. What is not a version gives 0 and 0. */
void text_kernel_version(const char *release, unsigned *ret_major, unsigned *ret_minor);

/* How many mounts of a /proc/self/mountinfo cover something below /proc, as container engines do to
 * hide it. What hosts mount there themselves (binfmt_misc) is not counted. */
unsigned text_masked_proc(const char *mountinfo);
/* Is there a mount at "/"? If not, the reader was started in a chroot. */
int text_has_root_mount(const char *mountinfo);

/* The container engine that a /proc/PID/cgroup names, or NULL. */
const char *text_container_engine(const char *cgroup);

/* The value of the line "NAME VALUE" in a text, cut to `size`. False when there is none. */
bool text_value(const char *text, const char *name, char *out, size_t size);

/* A line of the probe: "NAME held|broken DETAIL". Cuts `line` up. Returns 0, or -1 if it is none.
 */
int text_probe_line(char *line, const char **ret_name, int *ret_worked, const char **ret_detail);
