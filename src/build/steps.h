/* steps: what a build does in its sandbox. Every call waits for the command's end, for the build's
 * time or until the build is cancelled, whichever is first. */
#pragma once

#include "build/plan.h"

struct job;
struct pd_err;
struct process;

/* What an image lacks that sandboxes count on: names for their two users. */
int step_provision(struct job *j, struct pd_err *e);
int step_run(struct job *j, const struct build_step *s, struct pd_err *e);
/* A command line as the user of the moment, its output in the log at `level` (NULL: not). 1: it
 * ended with a failure, which the error tells. */
int step_line(struct job *j, const char *line, const char *level, struct pd_err *e);
/* Starts one that goes on. */
int step_start(struct job *j, const char *line, struct process **ret, struct pd_err *e);
/* Waits a moment; -1 when the build's time is over or it was cancelled. */
int step_rest(struct job *j, uint64_t ns, struct pd_err *e);
