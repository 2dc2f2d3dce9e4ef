/* command_class: what a command line is about to do, judged before it runs.
 *
 * For `auto`: a line that only reads can run in a cheaper place than one that installs things. The
 * line is taken apart by the policy's own reader (policy/shell_commands.h), and each command is
 * looked up in a table of programs whose options are known. Everything else is unknown: a program
 * that is not in the table, an option that its row does not have, a word whose value is not known
 * before the line runs, a path outside of the workspace, a line that cannot be read for certain.
 *
 * Pure, and linear in the line's length. It judges what is written, not what files are: a symbolic
 * link in the workspace may lead out of it. The wall is the sandbox; this only chooses which. */
#pragma once

#include <stdbool.h>

enum command_class {
    COMMAND_READS,    /* files below the workspace, and what every program may know */
    COMMAND_WRITES,   /* below the workspace */
    COMMAND_INSTALLS, /* packages, by a package manager */
    COMMAND_NETWORKS, /* talks to other machines */
    COMMAND_UNKNOWN,
    COMMAND_CLASSES
};

struct command_verdict {
    enum command_class what; /* the last in the order above of all commands of the line */
    unsigned classes;        /* a bit 1 << class for each that is there */
    char reason[160];        /* a sentence about the command that decided */
};

/* `workspace` is an absolute path without a slash at its end; the line starts there. */
void command_classify(const char *line, const char *workspace, struct command_verdict *ret);
/* The same of a program with its arguments, which no shell reads; `argv` ends with NULL. */
void command_classify_argv(const char *const *argv, const char *workspace,
                           struct command_verdict *ret);
/* May NAME=VALUE be in the environment of a line without making its class wrong? PATH may not. */
bool command_variable_is_harmless(const char *variable);
const char *command_class_name(enum command_class c);
