/* policy: which commands a session may run.
 *
 * A guard rail for agents, not a wall: python3 is on the default list, and a program can start
 * others by itself. The wall is the jail; the `restricted` profile also takes the denied programs
 * out of its root. docs/policy.md is the manual.
 *
 * A policy is made once and then only read: any number of threads may check with it. */
#pragma once

#include <stddef.h>

struct buf;
struct pd_err;

enum policy_mode { POLICY_OPEN, POLICY_ALLOW, POLICY_DENY };

#define POLICY_NAMES_MAX 256
#define POLICY_NAME_MAX  64

struct policy {
    enum policy_mode mode;
    int restricted; /* it is the list of that name */
    size_t count;
    char (*names)[POLICY_NAME_MAX]; /* sorted */
};

/* An empty struct is the open policy. */
void policy_done(struct policy *p);
#define auto_policy __attribute__((cleanup(policy_done))) struct policy

/* From the text that the API takes and the store keeps: "open" (also ""), "restricted", or a JSON
 * object {"mode": "allow" | "deny", "commands": [names]}. Fails with PD_INVALID, naming what is
 * wrong; *ret is written only on success, and the caller's to policy_done. */
int policy_parse(const char *text, struct policy *ret, struct pd_err *e);
/* From a list. A name is 1 to 63 printable bytes without blanks and slashes. */
int policy_set(enum policy_mode mode, const char *const *names, size_t count, struct policy *ret,
               struct pd_err *e);
/* Appends the text that policy_parse takes. -1 when the buffer is full. */
int policy_text(const struct policy *p, struct buf *out);

/* May this bash command line run? 0, or -1 with PD_POLICY: the message names the command that is
 * refused, or where the line cannot be judged and why. Pure; linear in the line's length, which is
 * at most SHELL_LINE_MAX (PD_TOO_LARGE). */
int policy_check_command(const struct policy *p, const char *line, struct pd_err *e);
/* The same for a command that runs without a shell; argv ends with NULL. */
int policy_check_argv(const struct policy *p, const char *const *argv, struct pd_err *e);
/* May a request set this variable? Not one whose value bash runs (BASH_ENV, PS4 ...): PD_POLICY. */
int policy_check_variable(const struct policy *p, const char *name, struct pd_err *e);
