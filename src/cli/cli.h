/* cli: the command line. main.c has the table of commands; each command is a file. */
#pragma once

#include "base/options.h"

struct pd_err;

struct cli_command {
    const char *name;
    const char *summary; /* one line for the list */
    const char *usage;   /* shown by `paddock help NAME` */
    int (*run)(int argc, char **argv);
};

/* Each gets argv without the program's name: argv[0] is the command's. Returns the exit status. */
int cmd_run(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_keeper(int argc, char **argv);
int cmd_root(int argc, char **argv);
int cmd_image(int argc, char **argv);
int cmd_agent(int argc, char **argv);
int cmd_gate(int argc, char **argv);
int cmd_probe(int argc, char **argv);

extern const char run_usage[], doctor_usage[], keeper_usage[], root_usage[], agent_usage[],
    image_usage[];

/* Prints "paddock: MESSAGE" to stderr; control characters are escaped. Returns the exit status that
 * the error's code stands for. */
int cli_fail(const struct pd_err *e);
