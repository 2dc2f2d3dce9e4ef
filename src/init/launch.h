/* launch: what a child of init's goes through until its program runs; shared by the two that can be
 * such a child: one that is made for a command (exec.c), and one that waited for it (runner.c). */
#pragma once

#include "init/init.h"

struct launch {
    const struct msg_exec *m;
    const struct init *in;
    unsigned flags;
    const int *fds;
    char **argv; /* with a spare slot in front, and NULL at the end */
    char **env;
    const char *path; /* $PATH of the command's environment */
    bool joins;       /* the worker `join`, and the command has a cgroup */
    /* set by the child on failure */
    const char *step;
    int sys;
};

/* What of a child's work depends on nothing that comes with the command: signals, session, mask. */
void launch_prepare(void);
/* The rest, and the program. Touches nothing but the child's stack and `l`, and no errno. When a
 * step fails its name and errno are in `l`, and the child ends. */
_Noreturn void launch_go(struct launch *l);
/* Why it did not start. -1. */
int launch_explain(const struct launch *l, struct pd_err *e);
/* Fills in $PATH. */
void launch_find_path(struct launch *l);
/* The list's strings into `v`, which has room for two more: a slot in front stays free, and NULL is
 * put at the end. */
void launch_words(const struct msg_list *list, char **v);
/* -1 when the frame has other descriptors than come with such a command. */
int launch_check_fds(const struct msg_exec *m, const struct frame *f, unsigned flags,
                     struct pd_err *e);
