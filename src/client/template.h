/* template: what the files of `paddock template` share. */
#pragma once

struct options;
struct pd_err;

/* template_build.c: the exit status, or -1. */
int template_build(int argc, char **argv, struct pd_err *e);
int template_unknown(const struct options *o, struct pd_err *e);
