/* image_pattern: which images a setting means, such as `debian` or `registry.example/team`.
 *
 * Pure. A pattern names repositories, never tags or digests, and is completed as the name of an
 * image is: without a registry it is one of docker.io, and a single part is library/NAME. `*` alone
 * stands for every image.
 *
 * Registry and repository are compared apart, so that no repository passes for a registry, and
 * letter by letter. `*` stands for any characters, in the repository also for `/`. A pattern also
 * means all that is below it: `r.example/team` is r.example/team and r.example/team/x, but not
 * r.example/teams. */
#pragma once

#include <stdbool.h>

struct image_ref;
struct pd_err;

struct image_pattern {
    char registry[256];
    char repository[256];
};

/* PD_INVALID names the pattern and what is wrong with it. */
int image_pattern_parse(const char *text, struct image_pattern *ret, struct pd_err *e);
bool image_pattern_matches(const struct image_pattern *p, const struct image_ref *r);
