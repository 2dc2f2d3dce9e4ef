/* elb_api: what is said to Elastic Load Balancing v2, and what its answers mean (forms and XML).
 * Pure. */
#pragma once

#include "base/buf.h"

#include <stddef.h>

struct pd_err;

/* A form: `action` is RegisterTargets, DeregisterTargets or DescribeTargetHealth. */
void elb_target_form(struct buf *out, const char *action, const char *group, const char *address,
                     unsigned port);

enum elb_health {
    ELB_COMING,  /* initial, unknown, unavailable: healthy or not is not known yet */
    ELB_HEALTHY, /* healthy, or nobody checks */
    ELB_SICK,    /* unhealthy */
    ELB_UNUSED,  /* no listener leads to the group */
    ELB_GONE,    /* draining, or not registered */
};
/* Of the target that was asked for; `why`: AWS's description, "" without. */
int elb_read_health(const char *xml, size_t len, enum elb_health *ret, char *why, size_t size,
                    struct pd_err *e);
