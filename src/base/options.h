/* options: the command line, one option at a time.
 *
 * Long options take a value behind '=' or as the next argument; short ones as the next argument.
 * Nothing is guessed: an abbreviated option is unknown, and so is a cluster like -df. */
#pragma once

struct pd_err;

struct options {
    int argc;
    char **argv;
    int at;            /* the next argument; start at 1, behind the command's name */
    const char *name;  /* set by options_next: "--memory" */
    const char *value; /* its value when written as --name=value, else NULL */
    int mixed;         /* set it for options behind arguments, too: see options_arguments */
    int kept;          /* arguments that were passed over; they stand at argv[1] */
    char text[64];     /* the name of an option that has its value behind '=' */
};

#define OPTIONS_INIT(count, vector) ((struct options){.argc = (count), .argv = (vector), .at = 1})

/* Moves to the next option. Returns 1, or 0 when the options are over: at `--`, at the end, or
 * unless `mixed` at the first argument that is none. */
int options_next(struct options *o);
/* The option's value: behind '=' or the next argument. NULL with PD_INVALID if there is none. */
const char *options_value(struct options *o, struct pd_err *e);
/* For a flag: PD_INVALID if it was given a value. */
int options_no_value(const struct options *o, struct pd_err *e);
/* Whether this is the option; either name may be NULL. */
int options_is(const struct options *o, const char *short_name, const char *long_name);
/* The arguments that are no options, when options_next has returned 0. Rearranges argv. */
char **options_arguments(struct options *o, int *ret_count);
