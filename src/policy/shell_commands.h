/* shell_commands: every command name that a line would run.
 *
 * On top of shell_words it looks through commands that run other commands: env, xargs, find -exec,
 * command, exec, nohup, timeout, sh -c, eval, trap and their like. A name that is not literal, or
 * that hides where nobody can look (an alias, a shell that reads its commands from a pipe, an
 * option that is not known), makes the line refused.
 *
 * What a program does by itself (awk's system(), python's subprocess, a script file) is not seen:
 * docs/policy.md says what this is good for. */
#pragma once

#include <stddef.h>

struct pd_err;
struct shell_word;

enum found_kind {
    FOUND_COMMAND,    /* a program or builtin */
    FOUND_WRAPPER,    /* one that only runs what is found behind it */
    FOUND_FUNCTION,   /* a function of the line; its body was looked through */
    FOUND_MENTION,    /* a word behind a program that can run others in ways of its own: gdb, su */
    FOUND_ASSIGNMENT, /* NAME=value, or the variable of a loop; also of env */
    FOUND_REDIRECTION /* its name is the operator */
};

struct found {
    enum found_kind kind;
    const char *name; /* as it was written: maybe a path */
    /* The command from its name on; of an assignment and a redirection the one word. A mention has
     * none. */
    const struct shell_word *words;
    size_t count;
};

/* Does bash run what is in a variable of this name (or NAME=value): BASH_ENV, PS4 and their like?
 */
int shell_variable_runs(const char *name);

/* Returns 0 to go on, or -1 with *e set, which ends the search. */
typedef int found_fn(void *ctx, const struct found *f, struct pd_err *e);

/* -1 with PD_POLICY when the line cannot be read or does not say what it runs. */
int shell_commands(const char *line, found_fn *fn, void *ctx, struct pd_err *e);
/* The same for a command that runs without a shell. argv ends with NULL and has a first word. */
int shell_commands_argv(const char *const *argv, found_fn *fn, void *ctx, struct pd_err *e);
