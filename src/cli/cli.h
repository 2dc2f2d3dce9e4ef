/* cli: the command line. main.c has the table of commands; each command is a file. */
#pragma once

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
int cmd_probe(int argc, char **argv);

extern const char run_usage[], doctor_usage[], keeper_usage[], root_usage[];

/* Prints "paddock: MESSAGE" to stderr; control characters are escaped. Returns the exit status that
 * the error's code stands for. */
int cli_fail(const struct pd_err *e);

/* One long option at a time. */
struct options {
    int argc;
    char **argv;
    int at;            /* the next argument */
    const char *name;  /* set by options_next: "--memory" */
    const char *value; /* its value when written as --name=value, else NULL */
};

/* Moves to the next option. Returns 1, or 0 when the options are over (at `--` or at the first
 * argument that is none). */
int options_next(struct options *o);
/* The option's value: behind '=' or the next argument. NULL with PD_INVALID if there is none. */
const char *options_value(struct options *o, struct pd_err *e);
/* For a flag: PD_INVALID if it was given a value. */
int options_no_value(const struct options *o, struct pd_err *e);
