/* probe: what the security tests run inside a sandbox. One small static program, so that the tests
 * need nothing of the sandbox's root and are quick under emulation.
 *
 * Every command's contract: exit status 0 means "the attack worked". */
#pragma once

#define DENIED    1
#define WORKED    0
#define MISSING   3 /* denied as well; outside a sandbox: this kernel has no such thing */
#define BAD_USAGE 99

struct probe_command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name */
};

/* Something that `take` can take. */
struct probe_resource {
    const char *name;
    int (*take)(void); /* one more; -1 with errno */
};

/* Ends with a command whose name is null. */
extern const struct probe_command attack_commands[];
extern const struct probe_command load_commands[];
extern const struct probe_command cell_commands[];
/* Ends with a resource whose name is null. */
extern const struct probe_resource machine_resources[];

int try_line(char *line, double limit); /* by the shell; its status, or 124 when time is up */
int verdict(long result);               /* of a system call: was the kernel's code reached? */
