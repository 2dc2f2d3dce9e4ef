/* run_network: the way out of a `paddock run`, by rules: options, a gate of its own, refusals. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "gate/rules.h"

struct pd_err;
struct json;
struct jail;

#define RUN_RULES_MAX  64u
#define RUN_DENIED_MAX 32u

/* The options as they were given. */
struct run_egress {
    bool given;
    bool mode_given;
    enum egress_mode mode;
    const char *allow[RUN_RULES_MAX], *deny[RUN_RULES_MAX], *privates[RUN_RULES_MAX];
    const char *hosts[RUN_RULES_MAX], *resolvers[POLICY_RESOLVERS];
    unsigned allow_count, deny_count, private_count, host_count, resolver_count;
};

/* Is it an option of these? */
bool run_egress_knows(const char *name);
int run_egress_parse(struct run_egress *g, const char *name, const char *value, struct pd_err *e);
/* Once all are known: is it a policy? */
int run_egress_check(const struct run_egress *g, struct pd_err *e);

struct run_denied {
    char host[RULES_NAME_MAX + 1];
    char why[80];
    unsigned port, times;
};

struct run_network {
    int sock; /* to the gate, or -1 */
    struct run_denied denied[RUN_DENIED_MAX];
    unsigned denied_count;
};

/* Starts a gate. */
int run_network_start(struct run_network *n, struct pd_err *e);
/* Gives it the jail's sockets and the rules. */
int run_network_open(struct run_network *n, const struct run_egress *g, struct jail *j,
                     struct pd_err *e);
/* Takes the gate's news, without waiting. */
void run_network_hear(struct run_network *n);
/* Ends the connections, and waits for the last news. */
void run_network_finish(struct run_network *n, deadline d);
/* "network": {"denied": [...]} */
void run_network_json(const struct run_network *n, struct json *j);
void run_network_explain(const struct run_network *n);
