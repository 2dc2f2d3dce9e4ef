/* doctor_checks: what the host offers. What can be tried is tried, in a child that changes nothing
 * for anybody else; the rest is read. */
#pragma once

#include "wire/spec.h"

enum check_status { CHECK_OK, CHECK_INFO, CHECK_WARN, CHECK_FAIL, CHECK_STATUS_COUNT };
const char *check_status_name(enum check_status s);

struct check {
    char name[32];
    enum check_status status;
    char found[160];
    const char *why; /* why it matters, one line */
    char fix[480];   /* a command to paste, or what to do; "" when nothing is wrong */
};

#define CHECKS_MAX 64

struct check_list {
    struct check rows[CHECKS_MAX];
    unsigned count;
    int rootless;
    int in_container, in_chroot;
    int user_namespaces; /* can be made */
    int has_cgroups;
    char cgroup_why[160]; /* why not */
};

/* Adds a row; the list has room for all that there are. `fix` may be NULL. */
struct check *check_add(struct check_list *l, const char *name, enum check_status s,
                        const char *why, const char *fix, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

void checks_place(struct check_list *l);      /* kernel, container, chroot */
void checks_namespaces(struct check_list *l); /* each kind, and what forbids them */
void checks_kernel(struct check_list *l);     /* cgroups, seccomp, overlay */
void checks_store(struct check_list *l);      /* idmapped mounts, quota, loop, mkfs.ext4 */
void checks_settings(struct check_list *l);   /* sysctls and limits */
void checks_engines(struct check_list *l);    /* docker and podman, for their providers */
